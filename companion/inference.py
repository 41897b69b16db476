"""What a handful of seeds can say: intervals, tests, and how many seeds would say more.

Student's interval of a mean, of its angle where the quantity is bounded: with mean u and standard
error e on the unit interval, asin(sqrt(u)) -+ t e / (2 sqrt(u (1 - u))), ending where the range
does. It is Student's own in the middle of the range. Tests use the same scale, so that p < 0.05
exactly where the 95% interval leaves the bound out.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

LEVEL, POWER = 0.95, 0.80
# Student's interval of two runs is 13 standard errors wide to each side: it would hold anything.
LEAST_SEEDS = 3
MOST_SEEDS = 1000
"""How many seeds are asked about; what needs more is told as one more than these."""
Numbers = Sequence[float] | pd.Series
Limits = tuple[float, float] | None


def interval(values: Numbers, limits: Limits = None) -> tuple[float, float, float]:
    """Return mean, lower and upper end of the 95% interval over runs; NaN ends for one or two.

    ``limits`` are the ends of the quantity's range, if it has any: ValueError outside.
    """
    mean, error = _moments(values)
    if len(values) < LEAST_SEEDS:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    if limits is None or half == 0:
        return mean, mean - half, mean + half
    (least, most), at = limits, _angle(mean, limits)
    turn = half / (most - least) / np.sin(2 * at)
    ends = np.clip([at - turn, at + turn], 0, np.pi / 2)
    low, high = least + (most - least) * np.sin(ends) ** 2
    return mean, float(low), float(high)


def p_value(values: Numbers, bound: float, limits: Limits = None) -> float:
    """Return the two-sided p of the mean being ``bound``; NaN for fewer than three runs.

    Runs that are all the same leave no doubt: 1 at the bound and 0 elsewhere.
    """
    mean, error = _moments(values)
    if len(values) < LEAST_SEEDS:
        return float("nan")
    if error == 0:
        return float(mean == bound)
    steps = (mean - bound) / error
    if limits is not None:
        at, there = _angle(mean, limits), _angle(bound, limits)
        steps = (at - there) * float(np.sin(2 * at)) * (limits[1] - limits[0]) / error
    return float(2 * stats.t.sf(abs(steps), len(values) - 1))


def detectable(values: Numbers) -> float:
    """Return the smallest difference from a bound that so many runs detect with 80% power.

    That of a t test at 5%, with the spread that the runs have; paired where they are differences.
    """
    _, error = _moments(values)
    return float("nan") if len(values) < LEAST_SEEDS else _noncentrality(len(values)) * error


def needed(values: Numbers, bound: float) -> int:
    """Return how many runs would detect the difference from ``bound`` that is seen, with 80% power.

    ``MOST_SEEDS`` + 1 if so many are not enough.
    """
    mean, error = _moments(values)
    if error == 0:
        return LEAST_SEEDS if mean != bound else MOST_SEEDS + 1
    effect = abs(mean - bound) / (error * np.sqrt(len(values)))
    counts = range(LEAST_SEEDS, MOST_SEEDS + 1)
    enough = bisect_left(counts, True, key=lambda n: _noncentrality(n) <= effect * n**0.5)
    return LEAST_SEEDS + enough


def discoveries(p_values: pd.Series) -> pd.Series:
    """Return which p survive Benjamini and Hochberg's (1995) control of false discoveries.

    NaN is no test, and counts as none.
    """
    tested = p_values.dropna()
    adjusted = stats.false_discovery_control(tested) if len(tested) else []
    return pd.Series(adjusted, tested.index, dtype=float).reindex(p_values.index).le(1 - LEVEL)


def concordance(
    ours: Numbers, theirs: Numbers, families: Sequence[object], draws: int = 9999
) -> tuple[float, float]:
    """Return the rank correlation of two lists within families, and how often chance does as well.

    The correlation is Spearman's of ranks within each family. Chance shuffles ``ours`` within
    families: what lies between families is no evidence. NaN, 1 where no family has two members.
    """
    groups = np.unique(np.asarray(families, dtype=str), return_inverse=True)[1]
    ranks = pd.DataFrame({"ours": [*ours], "theirs": [*theirs]}).groupby(groups).rank()
    one, two = (ranks - ranks.groupby(groups).transform("mean")).to_numpy().T
    scale = float(np.sqrt((one**2).sum() * (two**2).sum()))
    if scale == 0:
        return float("nan"), 1.0
    rng, seen = np.random.default_rng(0), float(one @ two)
    # A random key below each family's number shuffles within families only.
    keys, shuffled = groups + rng.random((draws, len(one))), np.empty((draws, len(one)))
    shuffled[:, np.argsort(groups, kind="stable")] = one[np.argsort(keys, axis=1)]
    reached = int((shuffled @ two >= seen - 1e-9).sum())
    return seen / scale, (reached + 1) / (draws + 1)


def _moments(values: Numbers) -> tuple[float, float]:
    """Return the mean and its standard error; equal values have none, whatever rounding says."""
    v = np.asarray(values, dtype=float)
    if len(v) < 2 or np.ptp(v) == 0:
        return float(v[0] if len(v) and np.ptp(v) == 0 else v.mean()), 0.0
    return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v)))


def _angle(value: float, limits: tuple[float, float]) -> float:
    """Return the angle whose squared sine is how far a value lies in its range."""
    if not limits[0] <= value <= limits[1]:
        raise ValueError(f"{value:g} is outside of {limits[0]:g} to {limits[1]:g}")
    return float(np.arcsin(np.sqrt((value - limits[0]) / (limits[1] - limits[0]))))


@cache
def _noncentrality(n: int) -> float:
    """Return how many standard errors a t test of n runs detects with 80% power."""
    edge = float(stats.t.isf((1 - LEVEL) / 2, n - 1))
    # The other tail is never reached with such power.
    return float(optimize.brentq(lambda d: stats.nct.sf(edge, n - 1, d) - POWER, 0.0, 3 * edge))
