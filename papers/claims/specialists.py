"""Claims of 001 about generalists and specialists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from companion import frames
from companion.claims import Claim, greater, on_par
from papers.claims.floor import floor_claims
from papers.published import published
from papers.recipes import FEDAVG, LOCAL, MAJORITY, MIXTURE, SMALL, TUNED

GLOBAL, OWN, HELD = "balanced_accuracy", "test_accuracy", "validation_accuracy"
LOSSES = {"training": "train_loss", "validation": "validation_nll"}
SKEWS = ("least p", "largest p")
Score = Callable[..., dict[int, float]]


def scores(frame: pd.DataFrame, clients: int) -> pd.DataFrame:
    """Return what each run ended with, method taken apart: global, own and validation accuracy.

    Columns method, seed, metric, value, and p, q or alpha where methods have them; of the first
    ``clients`` clients, for which the personal stages were trained.
    """
    parts = [
        frames.apart(frames.ended(frame, metric, clients)).assign(metric=metric)
        for metric in (GLOBAL, OWN, HELD)
    ]
    return pd.concat(parts, ignore_index=True)


def lookup(table: pd.DataFrame) -> Score:
    """Return a look-up of scores: the mean by seed over what it is not asked about."""

    def score(method: str, metric: str, **where: float | Sequence[float]) -> dict[int, float]:
        rows = table[(table["method"] == method) & (table["metric"] == metric)]
        for name, value in where.items():
            wanted = value if isinstance(value, Sequence) else [value]
            rows = rows[rows[name].isin(wanted)]
        return frames.by_seed(rows)

    return score


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what sec. 5 of 001 says of Table 1 and Fig. 3 and 4, without opting out."""
    score = lookup(table)
    low, high = float(table["p"].min()), float(table["p"].max())
    skewed = sorted(p for p in table["p"].unique() if p >= 0.6)
    mild = sorted(p for p in table["p"].unique() if p < 1)
    return [
        greater(
            "The mixture generalises better than fine-tuning: global test, all p",
            "Sec. 5, Table 1, Fig. 4",
            score(MIXTURE, GLOBAL),
            score(TUNED, GLOBAL),
        ),
        on_par(
            "... and is on par on the clients' own tests (at most a point below)",
            "Sec. 5, Table 1",
            score(MIXTURE, OWN),
            score(TUNED, OWN),
        ),
        greater(
            "FedAvg generalises better than the mixture: global test, all p",
            "Table 1, Fig. 4",
            score(FEDAVG, GLOBAL),
            score(MIXTURE, GLOBAL),
        ),
        greater(
            "On skewed clients (p >= 0.6) the mixture beats FedAvg at home",
            "Table 1, Fig. 3",
            score(MIXTURE, OWN, p=skewed),
            score(FEDAVG, OWN, p=skewed),
        ),
        greater(
            "The mixture beats training alone at home: own tests, all p",
            "Table 1, Fig. 3",
            score(MIXTURE, OWN),
            score(LOCAL, OWN),
        ),
        greater(
            f"FedAvg gets worse on a client's own test as p grows: p = {low:g} vs {high:g}",
            "Table 1, Fig. 3",
            score(FEDAVG, OWN, p=low),
            score(FEDAVG, OWN, p=high),
        ),
        greater(
            f"Training alone gets better with p: p = {high:g} vs {low:g}",
            "Table 1, Fig. 3",
            score(LOCAL, OWN, p=high),
            score(LOCAL, OWN, p=low),
        ),
        greater(
            "The mixture generalises better than fine-tuning where clients hold all classes: p < 1",
            "Sec. 5, Table 1, Fig. 4",
            score(MIXTURE, GLOBAL, p=mild),
            score(TUNED, GLOBAL, p=mild),
        ),
        *floor_claims(table[table["metric"] == OWN], "p"),
    ]


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 5: as with majority classes, so with Dirichlet shares."""
    score = lookup(table)
    return [
        greater(
            "The mixture generalises better than fine-tuning: global test, all alpha",
            "Sec. 5, Fig. 5",
            score(MIXTURE, GLOBAL),
            score(TUNED, GLOBAL),
        ),
        *floor_claims(table[table["metric"] == OWN], "alpha"),
    ]


def architecture_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of experts: any differentiable ones will do."""
    score = lookup(table)
    small = table[table["method"].isin([SMALL, MAJORITY]) & table["metric"].eq(OWN)]
    claims = [
        greater(
            f"A small specialist and a tiny gate beat FedAvg on the clients' {where} tests",
            "Sec. 3",
            score(SMALL, metric),
            score(FEDAVG, metric),
        )
        for metric, where in ((OWN, "own"), (GLOBAL, "global"))
    ]
    return [*claims, *floor_claims(small)]


_PRINTED = {
    "global_test_accuracy": GLOBAL,
    "local_test_accuracy": OWN,
    "global_test_accuracy_rescaled_DERIVED": GLOBAL,
    "local_validation_accuracy": HELD,
}


def printed(paper: str = "001") -> pd.DataFrame:
    """Return Table 1 of 001, or of 002, as scores: data, method, metric, p, value in [0, 1], row.

    Of the global accuracies on AG News those that were divided by 7,600 and not by 1,000 (all but
    the first row of Table 1e) are replaced by the rescaled ones.
    """
    rows = published(paper, "Table 1")
    rows = rows[rows["metric"].isin(_PRINTED)]
    rows = rows.assign(
        p=rows["setting"].str.extract(r"p=([\d.]+)")[0].astype(float),
        derived=rows["metric"].str.endswith("DERIVED"),
        metric=rows["metric"].map(_PRINTED),
        data=rows["dataset"].str.lower().str.replace("[- ]", "_", regex=True),
        value=rows["value"] / 100,
    ).replace({"data": {"cifar_10": "cifar10"}})
    rows = rows.sort_values("derived").drop_duplicates(
        ["data", "method", "metric", "p"], keep="last"
    )
    return (
        rows[["data", "method", "metric", "p", "value", "row"]].sort_index().reset_index(drop=True)
    )


def of_fedavg(table: pd.DataFrame, metric: str, over: str) -> pd.DataFrame:
    """Return every method's score divided by FedAvg's at the same ``over`` and seed (Fig. 4 and 5).

    Columns method, seed, ``over`` and value.
    """
    rows = table[table["metric"] == metric]
    base = rows[rows["method"] == FEDAVG].set_index([over, "seed"])["value"].rename("base")
    both = rows[rows["method"] != FEDAVG].join(base, on=[over, "seed"])
    both["value"] = both["value"] / both["base"]
    return both[["method", "seed", over, "value"]].reset_index(drop=True)


def beside(table: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1: by test and p, every method's mean and interval, published in brackets."""
    known = printed.set_index(["method", "metric", "p"])["value"].to_dict()
    names = {GLOBAL: "global test", OWN: "own test", HELD: "own validation"}
    rows: dict[tuple[str, float], dict[str, str]] = {}
    runs = table[table["metric"].isin(list(names))].groupby(["metric", "p", "method"], sort=False)
    for (metric, p, method), values in runs["value"]:
        row = rows.setdefault((names[str(metric)], float(str(p))), {})
        row[str(method)] = frames.stated(values, known.get((method, metric, p)))
    out = pd.DataFrame.from_dict(rows, orient="index")
    out.index = pd.MultiIndex.from_tuples(out.index, names=["test", "p"])
    return out.sort_index().fillna("")


def tried(frame: pd.DataFrame) -> pd.DataFrame:
    """Return FedAvg's accuracy on balanced validation examples by learning rate (Fig. 2).

    Columns method (the majority fraction: "p = 0.6"), seed, lr, value.
    """
    table = frames.apart(frames.ended(frame, "balanced_validation_accuracy"))
    return table.assign(method=table["p"].map("p = {:g}".format))[["method", "seed", "lr", "value"]]


def losses(frame: pd.DataFrame) -> pd.DataFrame:
    """Return FedAvg's losses over its rounds at the least and the largest p (001's appendix).

    Training: of a cohort while it trains; validation: the mean over clients that were evaluated.
    Columns method ("least p, training"), seed, round, value.
    """
    generalists = frame[frame["method"].str.startswith(FEDAVG + ",")]
    named = [frames.apart(frames.curve(generalists, m)).assign(of=n) for n, m in LOSSES.items()]
    rows = pd.concat(named, ignore_index=True)
    ends = dict(zip((rows["p"].min(), rows["p"].max()), SKEWS, strict=True))
    rows = rows[rows["p"].isin(list(ends))]
    rows = rows.assign(method=rows["p"].map(ends) + ", " + rows["of"])
    return rows[["method", "seed", "round", "value"]]


def of_clients(frame: pd.DataFrame, clients: int) -> pd.DataFrame:
    """Return every client's accuracy on the global test and on its own, method taken apart.

    Columns method, seed, client, metric, value, and p, q or alpha where methods have them.
    """
    parts = [
        frames.apart(frames.ended(frame, metric, clients, each=True)).assign(metric=metric)
        for metric in (GLOBAL, OWN)
    ]
    return pd.concat(parts, ignore_index=True)
