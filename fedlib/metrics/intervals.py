"""Student's confidence interval of a mean over runs, by angles for bounded quantities."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LEVEL = 0.95
# With two runs, Student's interval has 13 standard errors on each side and excludes nothing.
LEAST_SEEDS = 3
Numbers = Sequence[float] | Any  # or an array, or a column of a frame
Limits = tuple[float, float] | None


def interval(values: Numbers, limits: Limits = None, looks: int = 1) -> tuple[float, float, float]:
    """Return the mean and its 95% confidence interval over runs.

    For a bounded quantity with mean u and standard error e on the unit interval, the interval is
    computed for the angle asin(sqrt(u)) -+ t e / (2 sqrt(u (1 - u))), and limited to the range. In
    the middle of the range it equals Student's interval.

    Args:
        values: one number per run.
        limits: lower and upper limit of the quantity. Default: None, for an unbounded one.
        looks: the number of interim analyses, this one included, while the number of runs grew. The
            5% are divided among them (Bonferroni). Default: 1.

    Returns:
        mean, low, high; low and high are nan for one or two runs, and all three if a value is nan.
        For equal values both are the mean, although another run may well give another value:
        ``fedrun.compare`` has nan there.

    Raises:
        ValueError: if the mean is outside of the limits, or the limits are not a valid range.

    >>> mean, low, high = interval([0.90, 0.92, 0.94], (0, 1))
    >>> f"{mean:.2f} ({low:.2f} to {high:.2f})"
    '0.92 (0.86 to 0.96)'
    """
    from scipy import stats  # slow to import

    if limits is not None:
        _check(limits)
    mean, error = moments(values)
    at = None if limits is None or np.isnan(mean) else angle(mean, limits)
    if len(values) < LEAST_SEEDS:
        return mean, float("nan"), float("nan")
    half = float(stats.t.isf((1 - LEVEL) / (2 * looks), len(values) - 1)) * error
    if limits is None or at is None or half == 0:
        return mean, mean - half, mean + half
    least, most = limits
    turn = half / (most - least) / np.sin(2 * at)
    ends = np.clip([at - turn, at + turn], 0, np.pi / 2)
    low, high = least + (most - least) * np.sin(ends) ** 2
    return mean, float(low), float(high)


def _check(limits: Any) -> None:
    """Raise ValueError unless the limits are two finite numbers in increasing order."""
    try:
        least, most = map(float, limits)
    except (TypeError, ValueError):
        least = most = float("nan")
    if not -float("inf") < least < most < float("inf"):
        why = "two finite numbers, the smaller one first, or None"
        raise ValueError(f"limits must be {why}, got {limits!r}")


def moments(values: Numbers) -> tuple[float, float]:
    """Return the mean and its standard error, which is exactly 0 for equal values."""
    v = np.asarray(values, dtype=float)
    if len(v) < 2 or np.ptp(v) == 0:
        return float(v[0] if len(v) and np.ptp(v) == 0 else v.mean()), 0.0
    return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v)))


def angle(value: float, limits: tuple[float, float]) -> float:
    """Return asin(sqrt(u)), where u is the position of a value in its range; ValueError outside."""
    if not limits[0] <= value <= limits[1]:
        ends = f"{limits[0]:g} to {limits[1]:g}"
        raise ValueError(
            f"{value:g} is outside of the limits, {ends}; use limits=None for an unbounded quantity"
        )
    return float(np.arcsin(np.sqrt((value - limits[0]) / (limits[1] - limits[0]))))
