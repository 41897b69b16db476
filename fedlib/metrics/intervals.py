"""Student's interval of a mean over runs, of its angle where the quantity is bounded."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LEVEL = 0.95
# Student's interval of two runs is 13 standard errors wide to each side: it would hold anything.
LEAST_SEEDS = 3
Numbers = Sequence[float] | Any  # or an array, or a column of a frame
Limits = tuple[float, float] | None


def interval(values: Numbers, limits: Limits = None, looks: int = 1) -> tuple[float, float, float]:
    """Return mean, lower and upper end of the 95% interval over runs.

    With mean u and standard error e on the unit interval it is asin(sqrt(u)) -+ t e / (2 sqrt(u (1
    - u))), ending where the range does, and Student's own in the middle of the range.

    Args:
        values: one number for each run.
        limits: the ends of the quantity's range, None if it has none, or one only.
        looks: how often runs were looked at, as they became more: each look has its part of the 5%.

    Returns:
        mean, low, high; NaN ends for one or two runs.

    Raises:
        ValueError: for a mean outside of the limits, and for limits that are no range.

    >>> mean, low, high = interval([0.90, 0.92, 0.94], (0, 1))
    >>> f"{mean:.2f} ({low:.2f} to {high:.2f})"
    '0.92 (0.86 to 0.96)'
    """
    from scipy import stats  # slow to import

    if limits is not None:
        _check(limits)
    mean, error = moments(values)
    if len(values) < LEAST_SEEDS:
        return mean, float("nan"), float("nan")
    half = float(stats.t.isf((1 - LEVEL) / (2 * looks), len(values) - 1)) * error
    if limits is None or half == 0:
        return mean, mean - half, mean + half
    (least, most), at = limits, angle(mean, limits)
    turn = half / (most - least) / np.sin(2 * at)
    ends = np.clip([at - turn, at + turn], 0, np.pi / 2)
    low, high = least + (most - least) * np.sin(ends) ** 2
    return mean, float(low), float(high)


def _check(limits: Any) -> None:
    """Refuse what is no range: one end alone has no angle."""
    try:
        least, most = map(float, limits)
    except (TypeError, ValueError):
        least = most = float("nan")
    if not -float("inf") < least < most < float("inf"):
        why = "two finite numbers, the smaller one first, or None"
        raise ValueError(f"limits are {why}, got {limits!r}")


def moments(values: Numbers) -> tuple[float, float]:
    """Return the mean and its standard error; equal values have none, whatever rounding says."""
    v = np.asarray(values, dtype=float)
    if len(v) < 2 or np.ptp(v) == 0:
        return float(v[0] if len(v) and np.ptp(v) == 0 else v.mean()), 0.0
    return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v)))


def angle(value: float, limits: tuple[float, float]) -> float:
    """Return the angle whose squared sine is how far a value lies in its range."""
    if not limits[0] <= value <= limits[1]:
        ends = f"{limits[0]:g} to {limits[1]:g}"
        raise ValueError(
            f"{value:g} is outside of the limits, {ends}; give limits=None if it has none"
        )
    return float(np.arcsin(np.sqrt((value - limits[0]) / (limits[1] - limits[0]))))
