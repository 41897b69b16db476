"""Claims of 003 about clusters found with exploration, and a mixture over all of them."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, greater, on_par
from papers.claims.floor import floor_claims
from papers.published import published
from papers.recipes import ALL_EQUAL, BEST, EAGER, LOCAL, MAJORITY, MOE, TUNED

WITHOUT = "no exploration"
RIVALS = {
    BEST: "the best cluster",
    ALL_EQUAL: "the ensemble",
    TUNED: "the fine-tuned best cluster",
    LOCAL: "training alone",
}


def scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every run's mean client accuracy and its spread, the method taken apart.

    Columns method, seed, p, J, eps, value, and spread: the standard deviation over clients.
    """
    each = frames.ended(frame, "test_accuracy", each=True)
    groups = each.groupby(frames.RUN, sort=False)["value"]
    table = groups.agg(value="mean", spread="std").reset_index()
    return _filled(frames.apart(table))


def clients(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every client's accuracy: method, seed, client, p, J, eps, value."""
    return _filled(frames.apart(frames.ended(frame, "test_accuracy", each=True)))


def sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how many clients use each cluster in the end, the most popular first (Fig. 5).

    Columns method, seed, p, J, eps, rank (from 1) and value.
    """
    rows = frames.last(frame[frame["round"] > 0], "clusters")
    count = rows.groupby([*frames.RUN, "expert"])["value"].sum().reset_index()
    count["rank"] = count.groupby(frames.RUN)["value"].rank(ascending=False, method="first")
    return _filled(frames.apart(count.drop(columns="expert")))


def strategies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the most exploration and those without, which have it in their name.

    One cluster leaves nothing to explore: it is both. So is *Local*, which has no clusters. The
    floor is in once.
    """
    most, none = table[_at(table, table["eps"].max())], table[_at(table, 0.0)]
    none = none[none["method"] != MAJORITY]
    none = none.assign(method=none["method"] + f", {WITHOUT}")
    return pd.concat([most, none], ignore_index=True)


def _at(table: pd.DataFrame, eps: float) -> pd.Series:
    return table["eps"].eq(eps) | table["J"].eq(1) | table["J"].isna()


def printed(dataset: str = "cifar10") -> pd.DataFrame:
    """Return Table 2 as scores: method, p, eps (0.33 or 0), value and sigma, as fractions; row.

    The paper has numbers for CIFAR-10 only: no rows for another ``dataset``.
    """
    rows = published("003", "Table 2").dropna(subset="value")
    rows = rows if dataset == "cifar10" else rows[:0]
    setting = rows["setting"].str
    return pd.DataFrame(
        {
            "method": rows["method"],
            "p": setting.extract(r"p=([\d.]+)")[0].astype(float),
            "eps": setting.contains("greedy").map({True: 0.33, False: 0.0}),
            "value": rows["value"] / 100,
            "sigma": rows["std"] / 100,
            "row": rows["row"],
        }
    ).reset_index(drop=True)


def conclusion() -> dict[str, float]:
    """Return what 003 concludes from Table 2 at its largest p, computed from the table.

    The exploring mixture's accuracy over IFCA's and over training alone, and the part of IFCA's
    spread that is gone.
    """
    rows = printed()
    rows = rows[rows["p"] == rows["p"].max()].set_index(["method", "eps"])
    ours, ifca = rows.loc[(MOE, 0.33)], rows.loc[(BEST, 0.0)]
    return {
        "over_ifca": float(ours["value"] - ifca["value"]),
        "over_local": float(ours["value"] - rows.loc[(LOCAL, 0.0), "value"]),
        "less_spread": float(1 - ours["sigma"] / ifca["sigma"]),
    }


def table_2(table: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return Table 2 at the largest J: by p and eps, each method's mean and interval, [published].

    In braces stands the standard deviation over clients, mean over runs.
    """
    rates = table["eps"].dropna().unique()
    alone = [table[table["J"].isna()].assign(eps=eps) for eps in rates]
    most = pd.concat([table[table["J"].eq(table["J"].max())], *alone])
    theirs = known.set_index(["method", "p", "eps"])["value"].to_dict()
    rows: dict[tuple[float, float], dict[str, str]] = {}
    for (p, eps, method), runs in most.groupby(["p", "eps", "method"], sort=False):
        said = theirs.get((method, p, 0.33 if eps else 0.0))
        row = rows.setdefault((float(str(p)), float(str(eps))), {})
        row[str(method)] = frames.stated(runs["value"], said, spread=runs["spread"].mean())
    out = pd.DataFrame.from_dict(rows, orient="index")
    out.index = pd.MultiIndex.from_tuples(out.index, names=["p", "eps"])
    return out.sort_index().fillna("")


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of Table 2 and Fig. 3 to 5, at the largest J and most exploration."""
    most, high = float(table["J"].max()), float(table["eps"].max())

    def score(method: str, column: str = "value", like: float = 0, **where: float) -> BySeed:
        """Return the score by seed, mean over p; over those only at which J = ``like`` was run."""
        wanted = {"J": most, "eps": high, **where} if method != LOCAL else where
        rows = table[table["method"] == method]
        if like:
            rows = rows[rows["p"].isin(table.loc[table["J"].eq(like), "p"])]
        for name, value in wanted.items():
            rows = rows[rows[name] == value]
        return frames.by_seed(rows, column)

    low_p, high_p = float(table["p"].min()), float(table["p"].max())
    beats = [
        greater(f"The mixture beats {name} (mean over p)", "Table 2", score(MOE), score(method))
        for method, name in RIVALS.items()
    ]
    best, own = score(BEST, eps=0.0, p=high_p), score(LOCAL, p=high_p)
    even = score(BEST, "spread", eps=0.0, p=high_p), score(LOCAL, "spread", p=high_p)
    ours, spread = score(MOE, p=high_p), score(MOE, "spread", p=high_p)
    theirs = conclusion()
    extreme = f"where clients differ most (p = {high_p:g}; published:"
    judged = table[table["J"].isin([most, float("nan")]) & table["eps"].isin([high, float("nan")])]
    fewer = sorted(j for j in table["J"].dropna().unique() if 1 < j < most)
    return [
        *beats,
        greater(
            "Exploration makes the mixture better (mean over p)",
            "Table 2, Fig. 3",
            score(MOE),
            score(MOE, eps=0.0),
        ),
        greater(
            f"... and the best cluster alone worse where clients differ most (p = {high_p:g})",
            "Table 2, Fig. 3",
            score(BEST, eps=0.0, p=high_p),
            score(BEST, p=high_p),
        ),
        greater(
            f"Exploration makes clients more alike: spread of the mixture at p = {low_p:g}",
            "Sec. 5, Table 2",
            score(MOE, "spread", eps=0.0, p=low_p),
            score(MOE, "spread", p=low_p),
        ),
        greater(
            f"The mixture beats IFCA {extreme} by {theirs['over_ifca']:.3f})", "Sec. 6", ours, best
        ),
        greater(
            f"... and training alone {extreme} by {theirs['over_local']:.3f})", "Sec. 6", ours, own
        ),
        greater(
            f"Its clients are more alike than IFCA's {extreme} spread less by "
            f"{theirs['less_spread']:.0%})",
            "Sec. 6",
            even[0],
            spread,
        ),
        greater(
            f"... but less than with training alone (p = {high_p:g})", "Sec. 6", spread, even[1]
        ),
        *(
            on_par(
                f"The mixture does not depend on J: J = {j:g} at most a point below J = {most:g}",
                "Fig. 4",
                score(MOE, J=j),
                score(MOE, like=j),
            )
            for j in fewer
        ),
        on_par(
            "The gate hardly leaves its initial weights: the ensemble is at most a point below",
            "not in the paper (D11)",
            score(ALL_EQUAL),
            score(MOE),
        ),
        greater(
            "A gate that learns faster is better than the paper's",
            "not in the paper (D11)",
            score(EAGER),
            score(MOE),
        ),
        *floor_claims(judged, "p"),
    ]


def _filled(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with all of p, J and eps, NaN where a method has no such value."""
    missing = {name: float("nan") for name in ("p", "J", "eps") if name not in table}
    return table.assign(**missing)
