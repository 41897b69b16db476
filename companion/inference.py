"""Inference from a few seeds: intervals, tests, and the number of seeds that detects an effect.

Tests use the scale of ``fedlib.metrics.interval``, so that p < 0.05 exactly if the 95% interval
does not contain the bound.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

from fedlib.metrics.intervals import LEAST_SEEDS, LEVEL, Limits, Numbers, angle, moments

POWER = 0.80
DISCOVERY = 0.02
"""The largest p of a verdict. It controls false discoveries at 5% (Benjamini and Hochberg, 1995)
among all claims that notebooks have tested on real data; a test holds it against them."""
Z = float(stats.norm.ppf((1 + LEVEL) / 2))  # standard errors to each side of a 95% interval
MOST_SEEDS = 1000
"""The most seeds that `needed` considers; one more stands for all that is larger."""

# Verdicts on a claim, which `companion.claims` explains.
HOLDS, CONTRADICTED, EQUAL = "holds", "contradicted", "no difference of a point"
OPEN, TRAINING, UNTESTED = "undecided", "still training", "not tested"


def p_value(values: Numbers, bound: float, limits: Limits) -> float:
    """Return the two-sided p-value of the hypothesis that the mean is ``bound``.

    NaN for fewer than three runs. If all runs are equal, it is 1 at the bound and 0 elsewhere.
    """
    mean, error = moments(values)
    if len(values) < LEAST_SEEDS:
        return float("nan")
    if error == 0:
        return float(mean == bound)
    steps = (mean - bound) / error
    if limits is not None:
        at, there = angle(mean, limits), angle(bound, limits)
        steps = (at - there) * float(np.sin(2 * at)) * (limits[1] - limits[0]) / error
    return float(2 * stats.t.sf(abs(steps), len(values) - 1))


def looked(looks: Mapping[int, int], seeds: int) -> int:
    """Return how often the results of so many seeds were looked at.

    Args:
        looks: the number of looks by the least number of seeds for which it holds.
        seeds: the number of seeds.
    """
    return max([1, *(times for least, times in looks.items() if least <= seeds)])


def binomial(values: Numbers, share: float, looks: int = 1) -> tuple[float, float, float]:
    """Return the exact 95% interval of a share of runs, and the two-sided p-value of ``share``.

    The interval is that of Clopper and Pearson (1934). It stays wide if all of a few runs agree,
    and p < 0.05 if it does not contain the share.

    Args:
        values: 1 or 0 for each run.
        share: the share to test.
        looks: the number of looks at the results, among which the 5% are divided.
    """
    count, n = round(sum(values)), len(values)
    interval = stats.binomtest(count, n).proportion_ci(1 - (1 - LEVEL) / looks, "exact")
    tails = stats.binom.cdf(count, n, share), stats.binom.sf(count - 1, n, share)
    return float(interval.low), float(interval.high), min(2 * looks * float(min(tails)), 1.0)


def detectable(values: Numbers) -> float:
    """Return the smallest difference from a bound that so many runs detect with 80% power.

    It is that of a t test at the level of verdicts, ``DISCOVERY``, with the standard deviation of
    the runs; of a paired one if the values are differences.
    """
    _, error = moments(values)
    return float("nan") if len(values) < LEAST_SEEDS else _noncentrality(len(values)) * error


def needed(values: Numbers, bound: float) -> int:
    """Return how many runs would detect the observed difference from ``bound`` with 80% power.

    The level is that of verdicts, ``DISCOVERY``. The result is ``MOST_SEEDS`` + 1 if so many runs
    do not suffice.
    """
    mean, error = moments(values)
    if error == 0:
        return LEAST_SEEDS if mean != bound else MOST_SEEDS + 1
    effect = abs(mean - bound) / (error * np.sqrt(len(values)))
    counts = range(LEAST_SEEDS, MOST_SEEDS + 1)
    enough = bisect_left(counts, True, key=lambda n: _noncentrality(n) <= effect * n**0.5)
    return LEAST_SEEDS + enough


def discoveries(p_values: pd.Series) -> pd.Series:
    """Return which p-values survive the control of false discoveries.

    The method is that of Benjamini and Hochberg (1995). NaN is no test, and is left out.
    """
    tested = p_values.dropna()
    adjusted = stats.false_discovery_control(tested) if len(tested) else []
    return pd.Series(adjusted, tested.index, dtype=float).reindex(p_values.index).le(1 - LEVEL)


def concordance(
    ours: Numbers, theirs: Numbers, families: Sequence[object], draws: int = 9999
) -> tuple[float, float]:
    """Return the rank correlation of two lists within families, and its p-value under permutation.

    The correlation is Spearman's, of the ranks within each family. ``ours`` is permuted within
    families, because differences between families are no evidence. NaN, 1 if no family has two
    members.

    Args:
        ours: the measured numbers.
        theirs: the published numbers.
        families: the family of each number.
        draws: the number of random permutations.
    """
    groups = np.unique(np.asarray(families, dtype=str), return_inverse=True)[1]
    ranks = pd.DataFrame({"ours": [*ours], "theirs": [*theirs]}).groupby(groups).rank()
    one, two = (ranks - ranks.groupby(groups).transform("mean")).to_numpy().T
    scale = float(np.sqrt((one**2).sum() * (two**2).sum()))
    if scale == 0:
        return float("nan"), 1.0
    rng, seen = np.random.default_rng(0), float(one @ two)
    # Sorting by the family's number plus a random fraction permutes within families only.
    keys, shuffled = groups + rng.random((draws, len(one))), np.empty((draws, len(one)))
    shuffled[:, np.argsort(groups, kind="stable")] = one[np.argsort(keys, axis=1)]
    reached = int((shuffled @ two >= seen - 1e-9).sum())
    return seen / scale, (reached + 1) / (draws + 1)


@cache
def _noncentrality(n: int) -> float:
    """Return the effect that a t test of n runs detects with 80% power, in standard errors."""
    edge = float(stats.t.isf(DISCOVERY / 2, n - 1))
    # The other tail is negligible at such power.
    return float(optimize.brentq(lambda d: stats.nct.sf(edge, n - 1, d) - POWER, 0.0, 3 * edge))
