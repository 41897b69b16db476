"""Numbers by seed, and what they say together: what claims compare and figures draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

# What a row of metrics says besides which run it is of, and what tables made of it add.
_OF_ROWS = {"round", "metric", "client", "expert", "item", "value"}
_OF_ROWS |= {"rule", "gigabytes", "server", "gain", "weight", "tensor", "rank"}
# Student's interval of two runs is 13 standard errors wide to each side: it would hold anything.
LEAST_SEEDS = 3


def run_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns that name a run: method, seed, and where it stands, as p.

    Where some runs have no such place the column is NaN, or "" for a word.
    """
    where = [str(c) for c in table.columns if c not in _OF_ROWS and c not in ("method", "seed")]
    return ["method", "seed", *where]


def by_seed(table: pd.DataFrame, column: str = "value") -> dict[int, float]:
    """Return a column's mean by seed, over all else: what claims compare."""
    means = table.groupby("seed")[column].mean()
    return {int(str(seed)): float(value) for seed, value in means.items()}


def same_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that every method of a table has, none if there is no such seed.

    Runs can lack a metric that was not logged yet when they were trained.
    """
    methods = table.groupby("seed")["method"].nunique()
    return table[table["seed"].isin(methods.index[methods == table["method"].nunique()])]


class ByMethod(dict[str, dict[int, float]]):
    """Numbers by method and seed; a method that was not run has none."""

    def __missing__(self, method: str) -> dict[int, float]:
        return {}


def by_method(table: pd.DataFrame) -> ByMethod:
    """Return the mean of ``value`` by method and seed, over all else."""
    return ByMethod({str(method): by_seed(rows) for method, rows in table.groupby("method")})


def interval(
    values: Sequence[float] | pd.Series, level: float = 0.95
) -> tuple[float, float, float]:
    """Return mean, lower and upper end of Student's interval over runs; NaN ends for one or two."""
    v = np.asarray(values, dtype=float)
    mean = float(v.mean())
    if len(v) < LEAST_SEEDS:
        return mean, float("nan"), float("nan")
    half = stats.t.ppf((1 + level) / 2, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))
    return mean, mean - float(half), mean + float(half)


def stated(
    values: Sequence[float] | pd.Series, published: float | None = None, spread: float | None = None
) -> str:
    """Return a mean, half its 95% interval if it has one, and the runs, "0.612 ± 0.020 (3)".

    Where they are known followed by the spread over clients in braces and by what is published in
    brackets: "0.612 ± 0.020 (3) {0.041} [0.633]".
    """
    mean, low, high = interval(values)
    half = "" if np.isnan(low) else f" ± {(high - low) / 2:.3f}"
    clients = "" if spread is None else f" {{{spread:.3f}}}"
    said = "" if published is None else f" [{published:.3f}]"
    return f"{mean:.3f}{half} ({len(values)}){clients}{said}"


def bands(curve: pd.DataFrame, by: Sequence[str] = ("method", "round")) -> pd.DataFrame:
    """Return mean, low, high (95% over seeds) and the number of seeds of a curve."""
    rows = []
    for key, group in curve.groupby(list(by), sort=False):
        mean, low, high = interval(group["value"].tolist())
        rows.append((*(key if isinstance(key, tuple) else (key,)), mean, low, high, len(group)))
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high", "seeds"])
