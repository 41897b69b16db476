"""What the released code of 001 does otherwise, and which of it the published numbers show."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import Claim, greater
from papers.claims.specialists import GLOBAL, OWN
from papers.recipes import FEDAVG, departed


def released_claims(
    released: pd.DataFrame, plain: pd.DataFrame, printed: pd.DataFrame
) -> list[Claim]:
    """Test which FedAvg Table 1 shows: the average, or the model of the client that trained last.

    By how far each is from the published accuracy, mean over p; not a claim of the paper (A21).
    """
    last = released[released["method"] == departed(FEDAVG, "last client")]
    average = plain[(plain["method"] == FEDAVG) & plain["p"].isin(last["p"].unique())]
    theirs = printed[printed["method"] == FEDAVG]

    def distance(table: pd.DataFrame, metric: str) -> dict[int, float]:
        rows = table[table["metric"] == metric]
        known = theirs[theirs["metric"] == metric].set_index("p")["value"]
        rows = rows.assign(off=(rows["value"] - rows["p"].map(known)).abs()).dropna(subset="off")
        return frames.by_seed(rows, "off")

    return [
        greater(
            f"The published FedAvg is the last client's model: the average is further off, {where}",
            "A21, Table 1",
            distance(average, metric),
            distance(last, metric),
        )
        for metric, where in ((GLOBAL, "global test"), (OWN, "own tests"))
    ]


def moved(table: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Return what departures of the released code change: method, seed, metric, departure, value.

    ``table`` has methods "Mixture (log pool)", ``plain`` "Mixture"; differences are on the same
    seed and p, averaged over p.
    """
    both = _departures(table).merge(
        plain, on=["method", "seed", "metric", "p"], suffixes=("", "_plain")
    )
    both["value"] = both["value"] - both["value_plain"]
    groups = both.groupby(["departure", "method", "metric", "seed"], as_index=False, sort=False)
    return groups["value"].mean()  # type: ignore[return-value]


def explained(
    released: pd.DataFrame, plain: pd.DataFrame, printed: pd.DataFrame, metric: str
) -> pd.DataFrame:
    """Return Table 1 as published, as described, and with departures of the released code.

    One row by p and method, one column by way; means over seeds, empty where a departure leaves a
    method as it is.
    """
    changed = _departures(released).rename(columns={"departure": "way"})
    parts = [printed.assign(way="published"), plain.assign(way="as described"), changed]
    table = pd.concat(parts, ignore_index=True)
    table = table[(table["metric"] == metric) & table["p"].isin(released["p"].unique())]
    table = table[table["method"].isin(changed["method"].unique())]
    wide = table.pivot_table("value", ["p", "method"], "way", sort=False)
    ways = ["published", "as described", *changed["way"].unique()]
    return wide[[w for w in ways if w in wide]].sort_index(level="p", sort_remaining=False)


def _departures(table: pd.DataFrame) -> pd.DataFrame:
    """Return methods "Mixture (log pool)" taken apart: "Mixture" and a column departure."""
    names = table["method"].str.extract(r"^(.*) \((.*)\)$")
    return table.assign(method=names[0], departure=names[1])
