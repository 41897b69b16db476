"""What runs of 003 logged, as the frames behind its tables and figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from companion import frames
from papers.adaptive.experiments import BEST, MOE
from papers.floor import LOCAL, MAJORITY
from papers.published import published

WITHOUT = "no exploration"
FIRST = 10  # clients that the released code evaluates


def scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every run's mean client accuracy and its spread.

    Columns method, seed, where it stands, as p, J and eps, value, and spread: the standard
    deviation over clients.
    """
    each = frames.ended(frame, "test_accuracy", each=True)
    groups = each.groupby(frames.run_columns(each), sort=False, dropna=False)["value"]
    return groups.agg(value="mean", spread="std").reset_index()


def clients(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every client's accuracy: method, seed, where the run stands, client, value."""
    return frames.ended(frame, "test_accuracy", each=True)


def sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how many clients use each cluster in the end, the most popular first (Fig. 5).

    Columns method, seed, where the run stands, rank (from 1) and value.
    """
    rows = frames.last(frame[frame["round"] > 0], "clusters")
    run = frames.run_columns(rows)
    count = rows.groupby([*run, "expert"], dropna=False)["value"].sum().reset_index()
    ranks = count.groupby(run, dropna=False)["value"].rank(ascending=False, method="first")
    return count.assign(rank=ranks).drop(columns="expert")


def at_most(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the rows at the largest value of each column, and what has none there."""
    here = [table[c].eq(table[c].max()) | table[c].isna() for c in columns]
    return table[np.logical_and.reduce(here)]


def at_eps(table: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Return the rows with a rate of exploration, and what has none."""
    return table[table["eps"].eq(eps) | table["eps"].isna()]


def by_exploration(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows without exploration and those with the most of it, by name."""
    return {WITHOUT: at_eps(table, 0.0), "exploring": at_most(table, "eps")}


def strategies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the most exploration and those without, which have it in their name.

    One cluster leaves nothing to explore: it is both. So is *Local*, which has no clusters. The
    floor is in once.
    """
    one = table["J"].eq(1) | table["J"].isna()
    most, none = (table[table["eps"].eq(eps) | one] for eps in (table["eps"].max(), 0.0))
    none = none[none["method"] != MAJORITY]
    none = none.assign(method=none["method"] + f", {WITHOUT}")
    return pd.concat([most, none], ignore_index=True)


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
    most = at_most(table, "J")
    here = pd.concat([at_eps(most, eps).assign(eps=eps) for eps in table["eps"].dropna().unique()])
    theirs = known.set_index(["method", "p", "eps"])["value"].to_dict()
    rows: dict[tuple[float, float], dict[str, str]] = {}
    for (p, eps, method), runs in here.groupby(["p", "eps", "method"], sort=False):
        said = theirs.get((method, p, 0.33 if eps else 0.0))
        row = rows.setdefault((float(str(p)), float(str(eps))), {})
        row[str(method)] = frames.stated(runs["value"], said, spread=runs["spread"].mean())
    out = pd.DataFrame.from_dict(rows, orient="index")
    out.index = pd.MultiIndex.from_tuples(out.index, names=["p", "eps"])
    return out.sort_index().fillna("")


def worth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, for every run of a mixture, what it is worth beside the best choice of one expert.

    Columns method, p, J, eps, seed; ``mixture``; ``oracle``, the mean accuracy if every client
    knew which expert is best on its tests, which nobody can; ``local``, the share of the clients
    for whom that is the local one; ``entropy`` of the gate, 1 where it trusts all alike.
    """
    each = frames.last(frame, "expert_accuracy")
    run = frames.run_columns(each)

    def by_run(rows: pd.DataFrame) -> Any:
        return rows.groupby(run, sort=False, dropna=False)

    each = each.assign(last=by_run(each)["expert"].transform("max"))
    top = each.loc[each.groupby([*run, "item"], sort=False, dropna=False)["value"].idxmax()]
    top = top.assign(own=top["expert"] == top["last"])
    entropy = by_run(frames.last(frame, "gate_entropy"))["value"].mean()
    best = by_run(top)["value"].mean()
    table = pd.DataFrame(
        {
            "oracle": best,
            "local": by_run(top)["own"].mean(),
            "entropy": entropy / np.log(by_run(each)["last"].max() + 1),
        }
    ).reset_index()
    mixture = frames.ended(frame, "test_accuracy").rename(columns={"value": "mixture"})
    return table.merge(mixture, how="left", on=run)


def matrices(frame: pd.DataFrame, seed: int = 0) -> dict[str, np.ndarray]:
    """Return expert accuracies ``[clients, J + 1]`` of one seed by p, at most J and exploration.

    On the clients' own tests; the last expert is the local one.
    """
    rows = frames.last(frame[frame["method"] == MOE], "expert_accuracy")
    rows = at_most(rows[rows["seed"] == seed], "J", "eps")
    rows = rows.assign(client=rows["item"].astype(int))
    return {
        f"p = {p:g}": at_p.pivot_table("value", "client", "expert").to_numpy()
        for p, at_p in rows.groupby("p")
    }


def recovery(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the adjusted Rand index of clusters and orientations in the end, by run.

    Columns method, seed, orientations, J, eps, value; where there are as many clusters as
    orientations.
    """
    rows = frames.last(frame, "recovery:angle")
    rows = rows[rows["J"] == rows["orientations"]]
    return rows[[*frames.run_columns(rows), "value"]].reset_index(drop=True)


def protocols(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracies under the described and the released protocol, by method.

    Columns of "all clients" and of the "first ten", each with half a 95% interval.
    """
    table = clients(frame)
    sides = {"all clients": table, f"first {FIRST}": table[table["client"] < FIRST]}
    columns = {}
    for name, rows in sides.items():
        run = frames.run_columns(rows)
        runs = rows.groupby(run, sort=False, dropna=False)["value"].mean().reset_index()
        columns[name] = runs.groupby("method", sort=False)["value"].agg(frames.stated)
    return pd.DataFrame(columns).rename_axis(None)


def participation(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean client accuracies by how many clients take part in a round, a row per run.

    Columns method, seed, cohort, eps, value, spread; what has no cohort, as training alone, is the
    same at each.
    """
    table = scores(frame)
    alone = table["cohort"].isna()
    cohorts = table.loc[~alone, "cohort"].unique()
    same = [table[alone].assign(cohort=cohort) for cohort in cohorts]
    return pd.concat([table[~alone], *same], ignore_index=True)


def options(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how other ways to find clusters compare: by method accuracy, spread, use, traffic.

    ``clusters in use`` are some client's best in the end, ``open`` those still trained. A method
    stands in a row for each rate of exploration that it was run at.
    """
    rows = {}
    frame = frame.assign(method=labelled(frame))
    for method, mine in frame.groupby("method", sort=False):
        by_seed = clients(mine).groupby("seed")["value"]
        used = frames.last(mine, "cluster_share").assign(used=lambda t: t["value"] > 0)
        down = mine[mine["metric"] == "bytes_down"].groupby("seed")["value"].sum()
        rows[str(method)] = {
            "accuracy": frames.stated(by_seed.mean()),
            "spread over clients": round(float(by_seed.std().mean()), 3),
            "clusters in use": round(float(used.groupby("seed")["used"].sum().mean()), 1),
            "open": round(float(frames.last(mine, "open_clusters")["value"].mean()), 1),
            "MB down": round(float(down.mean()) / 1e6, 2),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def labelled(table: pd.DataFrame) -> pd.Series:
    """Return the methods' names, with the rate of exploration where it is one of several."""
    return table["method"] + table["eps"].map(", eps = {:g}".format, na_action="ignore").fillna("")
