"""Every method on the same task: who is best at what, and at what cost."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from companion import frames
from fedlib.metrics import over_clients
from papers.comparison.experiments import FAMILIES
from papers.floor import MAJORITY
from papers.pm_moe import TRADITIONAL

OWN, WORST, ALL, NEW = "own tests", "worst tenth", "all tests", "newcomer"


def standings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every run's accuracies in the end, four to a run: method, seed, kind, value.

    "own tests" is the mean over clients, "worst tenth" that of the tenth with the lowest,
    "all tests" how clients do on what anybody tests on, "newcomer" how all of them together label
    these examples for someone who has no labels.
    """

    own, everywhere, new = (
        frames.last(frame, metric).groupby(["method", "seed"], sort=False)["value"]
        for metric in ("test_accuracy", "everywhere_accuracy", "global_accuracy")
    )
    worst = own.agg(lambda v: over_clients(v.to_numpy(), np.ones(len(v)))["worst_decile"])
    kinds = {OWN: own.mean(), WORST: worst, ALL: everywhere.mean(), NEW: new.mean()}
    wide = pd.concat(kinds, axis=1).reset_index()
    return wide.melt(["method", "seed"], var_name="kind")


def leaderboard(table: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method, the best on own tests first.

    Accuracies are means and half their 95% intervals over seeds; costs are means: megabytes sent
    and received by all clients in all rounds and stages, what a client holds in MiB, and the time
    of training over FedAvg's.
    """
    by_method = table.groupby(["method", "kind"], sort=False)["value"]
    said = by_method.agg(lambda v: frames.stated(v).rsplit(" ", 1)[0]).unstack()
    spent = costs.groupby("method", sort=False)[["megabytes", "client_mib", "seconds"]].mean()
    seconds = spent.pop("seconds")
    spent["time over FedAvg's"] = seconds / seconds.get(TRADITIONAL[0], np.nan)
    names = {"megabytes": "MB sent", "client_mib": "MiB held"}
    whole = said[[OWN, WORST, ALL, NEW]].join(spent.rename(columns=names).round(2))
    order = table[table["kind"] == OWN].groupby("method")["value"].mean()
    whole.insert(0, "family", [family(m) for m in whole.index])
    return whole.loc[order.sort_values(ascending=False).index].rename_axis(None)


def family(method: str) -> str:
    """Return what a method has instead of one model for all; "" if it is no method of these."""
    return next((name for name, methods in FAMILIES.items() if method in methods), "")


def frontier(table: pd.DataFrame, x: str = ALL, y: str = OWN) -> pd.DataFrame:
    """Return the means of two kinds by method, and whether no other method has more of both.

    Columns method, family, x, y, best. The floor is no rival.
    """
    means = table.groupby(["method", "kind"], sort=False)["value"].mean().unstack()
    return _unbeaten(means.rename(columns={x: "x", y: "y"})[["x", "y"]], sign=1)


def by_bytes(table: pd.DataFrame, costs: pd.DataFrame, y: str = OWN) -> pd.DataFrame:
    """Return the same over the megabytes sent: fewer are better.

    Who sends none is left out, but for the floor.
    """
    means = table[table["kind"] == y].groupby("method", sort=False)["value"].mean()
    sent = costs.groupby("method")["megabytes"].mean()
    both = pd.DataFrame({"x": sent.reindex(means.index), "y": means})
    return _unbeaten(both[(both["x"] > 0) | (both.index == MAJORITY)], sign=-1)


def _unbeaten(means: pd.DataFrame, sign: int) -> pd.DataFrame:
    """Return x and y by method with who is unbeaten; ``sign`` -1 where a smaller x is better."""
    xs, ys, rival = sign * means["x"], means["y"], means.index != MAJORITY
    best = [
        name != MAJORITY and not (rival & (xs >= x) & (ys >= y) & ((xs > x) | (ys > y))).any()
        for name, x, y in zip(means.index, xs, ys, strict=True)
    ]
    named = means.assign(best=best).rename_axis("method").reset_index()
    return named.assign(family=named["method"].map(family))


def correlations(table: pd.DataFrame, one: str, other: str) -> dict[int, float]:
    """Return each seed's rank correlation over methods of two kinds of accuracy."""
    wide = table.pivot_table("value", ["seed", "method"], "kind").groupby("seed")
    return {int(str(s)): float(stats.spearmanr(w[one], w[other]).statistic) for s, w in wide}
