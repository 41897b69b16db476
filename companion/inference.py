"""What a handful of seeds can say: intervals, tests, and how many seeds would say more.

Tests use the scale of ``fedlib.metrics.interval``, so that p < 0.05 exactly where the 95% interval
leaves the bound out.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

from fedlib.metrics.intervals import LEAST_SEEDS, LEVEL, Limits, Numbers, angle, moments

POWER = 0.80
DISCOVERY = 0.02
"""The largest p of a verdict. It controls false discoveries at 5% (Benjamini and Hochberg, 1995)
among all claims that notebooks have tested on real data; a test holds it against them."""
Z = float(stats.norm.ppf((1 + LEVEL) / 2))  # standard errors that hold 95% of a normal
MOST_SEEDS = 1000
"""How many seeds are asked about; what needs more is told as one more than these."""

# Verdicts on a claim, which `companion.claims` explains.
HOLDS, CONTRADICTED, EQUAL = "holds", "contradicted", "no difference of a point"
OPEN, TRAINING, UNTESTED = "undecided", "still training", "not tested"


def p_value(values: Numbers, bound: float, limits: Limits) -> float:
    """Return the two-sided p of the mean being ``bound``; NaN for fewer than three runs.

    Runs that are all the same leave no doubt: 1 at the bound and 0 elsewhere.
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


def binomial(values: Numbers, share: float, looks: int = 1) -> tuple[float, float, float]:
    """Return the exact 95% interval of how often runs are so, and the two-sided p of ``share``.

    Each of the ``values`` is 1 or 0. Clopper and Pearson's (1934): runs that are all the same leave
    a doubt here, as few of them come so by chance, and p < 0.05 where the interval leaves the share
    out. Each of several ``looks`` has its part of the 5%.
    """
    count, n = round(sum(values)), len(values)
    interval = stats.binomtest(count, n).proportion_ci(1 - (1 - LEVEL) / looks, "exact")
    tails = stats.binom.cdf(count, n, share), stats.binom.sf(count - 1, n, share)
    return float(interval.low), float(interval.high), min(2 * looks * float(min(tails)), 1.0)


def detectable(values: Numbers) -> float:
    """Return the smallest difference from a bound that so many runs detect with 80% power.

    That of a t test at the level of a verdict, ``DISCOVERY``, with the spread that the runs have;
    paired where they are differences.
    """
    _, error = moments(values)
    return float("nan") if len(values) < LEAST_SEEDS else _noncentrality(len(values)) * error


def needed(values: Numbers, bound: float) -> int:
    """Return how many runs would detect the difference from ``bound`` that is seen, with 80% power.

    At the level of a verdict, ``DISCOVERY``; ``MOST_SEEDS`` + 1 if so many are not enough.
    """
    mean, error = moments(values)
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


@cache
def _noncentrality(n: int) -> float:
    """Return how many standard errors a t test of n runs detects with 80% power."""
    edge = float(stats.t.isf(DISCOVERY / 2, n - 1))
    # The other tail is never reached with such power.
    return float(optimize.brentq(lambda d: stats.nct.sf(edge, n - 1, d) - POWER, 0.0, 3 * edge))
