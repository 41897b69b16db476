"""Analysis of 003: from stored metrics to the frames of its tables and figures."""

from typing import Any

import numpy as np
import pandas as pd

from companion import frames
from papers.adaptive.experiments import BEST, MOE
from papers.published import published
from papers.scaled import LOCAL, MAJORITY

WITHOUT = "no exploration"
FIRST = 10  # the number of clients that the released code evaluates
FEWER = 3  # their number if there are no more than 10 clients


def clients(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every client's accuracy: method, seed, the place of the run, client, value."""
    return frames.ended(frame, "test_accuracy", each=True)


def scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean client accuracy of every run, and its standard deviation over clients.

    Columns method, seed, the place of the run (such as p, J and eps), value and spread.
    """
    groups = _by_run(clients(frame))["value"]
    return groups.agg(value="mean", spread="std").reset_index()


def _by_run(table: pd.DataFrame, *more: str) -> Any:
    return table.groupby([*frames.run_columns(table), *more], sort=False, dropna=False)


def sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how many clients use each cluster after training, the most popular first (Fig. 5).

    Columns method, seed, the place of the run, rank (from 1) and value.
    """
    rows = frames.last(frame[frame["round"] > 0], "clusters")
    run = frames.run_columns(rows)
    count = rows.groupby([*run, "expert"], dropna=False)["value"].sum().reset_index()
    ranks = count.groupby(run, dropna=False)["value"].rank(ascending=False, method="first")
    return count.assign(rank=ranks).drop(columns="expert")


def largest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the clients that use the most popular cluster, of a table of `sizes`."""
    values = table.groupby([c for c in table if c not in ("rank", "value")], dropna=False)["value"]
    return table.assign(value=table["value"] / values.transform("sum"))[table["rank"].eq(1)]


def at_most(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the rows at the largest value of each column, and those without a value."""
    here = [table[c].isin([table[c].max(), np.nan]) for c in columns]
    return table[np.logical_and.reduce(here)]


def at_eps(table: pd.DataFrame, eps: float) -> pd.DataFrame:
    """Return the rows with a rate of exploration, and those without one."""
    return table[table["eps"].isin([eps, np.nan])]


def by_exploration(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows without exploration and those with the most of it, by name.

    Runs with one cluster, which leaves nothing to explore, are in both, and so is *Local*, which
    has no clusters.
    """
    one = table["J"].eq(1) if "J" in table else table["eps"].isna()
    most = table["eps"].isin([table["eps"].max(), np.nan]) | one
    return {WITHOUT: at_eps(table, 0.0), "exploring": table[most]}


def strategies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the most exploration, and those without it, with other names.

    The majority-class baseline occurs once.
    """
    none, most = by_exploration(table).values()
    none = none[none["method"] != MAJORITY]
    none = none.assign(method=none["method"] + f", {WITHOUT}")
    return pd.concat([most, none], ignore_index=True)


def printed(dataset: str = "cifar10") -> pd.DataFrame:
    """Return Table 2: method, p, eps (0.33 or 0), value and sigma, as fractions, and row.

    The paper has numbers for CIFAR-10 only: there are no rows for another ``dataset``.
    """
    rows = published("003", "Table 2").dropna(subset="value").reset_index(drop=True)
    setting = rows["setting"].str
    rows = rows.assign(
        p=setting.extract(r"p=([\d.]+)")[0].astype(float),
        eps=np.where(setting.contains("greedy"), 0.33, 0.0),
        value=rows["value"] / 100,
        sigma=rows["std"] / 100,
    )
    rows = rows[["method", "p", "eps", "value", "sigma", "row"]]
    return rows if dataset == "cifar10" else rows[:0]


def conclusions(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return, by seed, the conclusions that 003 draws from Table 2 at its largest p.

    They are the accuracy of the exploring mixture over IFCA's and over training alone, and the
    reduction of IFCA's spread over clients.

    Args:
        table: scores.
    """
    here = at_most(table, "p").fillna({"eps": 0.0})
    value, spread = (here.pivot_table(c, "seed", ["method", "eps"]) for c in ("value", "spread"))
    ours, ifca, alone = (MOE, here["eps"].max()), (BEST, 0.0), (LOCAL, 0.0)
    return {
        "over_ifca": value[ours] - value[ifca],
        "over_local": value[ours] - value[alone],
        "less_spread": 1 - spread[ours] / spread[ifca],
    }


def conclusion() -> dict[str, float]:
    """Return 003's own conclusions, computed from its published table."""
    rows = printed().rename(columns={"sigma": "spread"}).assign(seed=0)
    return {name: float(found[0]) for name, found in conclusions(rows).items()}


def concluded(table: pd.DataFrame, known: pd.DataFrame) -> pd.Series:
    """Return the same in words at the largest J: mean, interval and, if known, [published]."""
    named = {
        "over_ifca": "accuracy over IFCA's",
        "over_local": "accuracy over training alone",
        "less_spread": "reduction of IFCA's spread",
    }
    found, theirs = conclusions(at_most(table, "J")), conclusion() if len(known) else {}
    return pd.Series({named[n]: frames.stated(v, theirs.get(n)) for n, v in found.items()})


def table_2(table: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return Table 2 at the largest J by p and eps: each method's mean and interval, [published].

    The standard deviation over clients, mean over runs, is in braces.
    """
    most, cells = at_most(table, "J"), {}
    here = pd.concat([at_eps(most, eps).assign(eps=eps) for eps in table["eps"].dropna().unique()])
    theirs = known.set_index(["method", "p", "eps"])["value"].to_dict()
    for (p, eps, method), runs in here.groupby(["p", "eps", "method"], sort=False):
        said = theirs.get((method, p, 0.33 if eps else 0.0))
        cells[p, eps, method] = frames.stated(runs["value"], said, runs["spread"].mean())
    return pd.Series(cells).unstack(sort=False).rename_axis(["p", "eps"]).sort_index().fillna("")


def worth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, for every run of a mixture, its accuracy beside that of the best single expert.

    Returns:
        Columns method, p, J, eps, seed; ``mixture``; ``oracle``, the mean accuracy if every client
        knew which expert is best on its tests; ``local``, the share of the clients for which that
        is the local expert; ``entropy`` of the gate, 1 for an even one.
    """
    each = frames.last(frame, "expert_accuracy")
    own = each["expert"].eq(_by_run(each)["expert"].transform("max"))
    top = each.assign(expert=own).loc[_by_run(each, "item")["value"].idxmax()]
    table = _by_run(top).agg(oracle=("value", "mean"), local=("expert", "mean"))
    entropy = _by_run(frames.last(frame, "gate_entropy"))["value"].mean()
    table["entropy"] = entropy / np.log(_by_run(each)["expert"].max() + 1)
    mixture = frames.ended(frame, "test_accuracy").rename(columns={"value": "mixture"})
    return table.reset_index().merge(mixture, how="left")


def recovery(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the adjusted Rand index of clusters and orientations after the last round, by run.

    Only runs with as many clusters as orientations are included. Columns method, seed,
    orientations, J, eps, value.
    """
    rows = frames.last(frame, "recovery:angle")
    rows = rows[rows["J"] == rows["orientations"]]
    return rows[[*frames.run_columns(rows), "value"]].reset_index(drop=True)


def protocols(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracies under the described and the released protocol, by method.

    The columns are "all clients" and "first 10" (3 if there are so few), each with half of the 95%
    interval.
    """
    table = clients(frame)
    first = FIRST if table["client"].nunique() > FIRST else FEWER
    sides = {"all clients": table, f"first {first}": table[table["client"] < first]}
    means = {name: _by_run(rows)["value"].mean() for name, rows in sides.items()}
    stated = {n: m.groupby("method", sort=False).agg(frames.stated) for n, m in means.items()}
    return pd.DataFrame(stated).rename_axis(None)


def participation(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean client accuracies by the number of clients in a round, a row per run.

    A method without rounds, such as training alone, is repeated for each cohort. Columns method,
    seed, cohort, eps, value, spread.
    """
    table = scores(frame)
    alone = table["cohort"].isna()
    same = [table[alone].assign(cohort=cohort) for cohort in table.loc[~alone, "cohort"].unique()]
    return pd.concat([table[~alone], *same], ignore_index=True)


def options(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how other ways to find clusters compare: accuracy, spread, use and traffic by method.

    ``clusters in use`` are some client's best after training, ``open`` ones are still trained. A
    method has a row for each rate of exploration.
    """
    rows = {}
    explored = frame["eps"].map(", eps = {:g}".format, na_action="ignore").fillna("")
    for method, mine in frame.groupby(frame["method"] + explored, sort=False):
        by_seed = clients(mine).groupby("seed")["value"]
        share = frames.last(mine, "cluster_share").groupby("seed")["value"]
        down = mine[mine["metric"] == "bytes_down"].groupby("seed")["value"].sum()
        rows[str(method)] = {
            "accuracy": frames.stated(by_seed.mean()),
            "spread over clients": round(float(by_seed.std().mean()), 3),
            "clusters in use": round(float(share.agg(lambda v: (v > 0).sum()).mean()), 1),
            "open": round(float(frames.last(mine, "open_clusters")["value"].mean()), 1),
            "MB down": round(float(down.mean()) / 1e6, 2),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
