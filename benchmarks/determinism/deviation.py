"""The deviation of two results of the same experiment."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor


@dataclass(frozen=True)
class Deviation:
    """Whether two results have the same bits, and otherwise how far they are apart.

    Attributes:
        same: whether all bits of states and metrics are equal.
        largest: the largest difference of a number of the states.
        relative: the norm of all differences over that of the state, without integers and the
            server's memory.
        choices: the number of integers of the states that differ.
        accuracy: the difference of the mean test accuracies.
        client: the largest difference of a client's test accuracy.
    """

    same: bool
    largest: float = 0.0
    relative: float = 0.0
    choices: int = 0
    accuracy: float = 0.0
    client: float = 0.0


Result = tuple[Mapping[str, Tensor], pd.DataFrame]


def compare(one: Result, other: Result) -> Deviation:
    """Return the deviation of ``other`` from ``one``: flat states and metrics."""
    mine, theirs = one[1], other[1]
    same = bits(one[0]) == bits(other[0]) and mine.equals(theirs)
    largest, relative, choices = distance(one[0], other[0])
    apart = np.abs(_accuracies(mine) - _accuracies(theirs))
    mean = abs(_accuracies(mine).mean() - _accuracies(theirs).mean())
    return Deviation(same, largest, relative, choices, float(mean), float(apart.max()))


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float, int]:
    """Return the largest difference, the relative one, and the number of different integers."""
    if one.keys() != other.keys():
        raise ValueError(f"states of other leaves: {sorted(one.keys() ^ other.keys())}")
    largest, squares, total, choices = 0.0, 0.0, 0.0, 0
    for name, mine in one.items():
        theirs = other[name].to(mine.device)
        if not mine.is_floating_point():
            choices += int((mine != theirs).sum())
        elif not name.startswith("server:"):
            gap = mine.double() - theirs.double()
            largest = max(largest, float(gap.abs().max()) if gap.numel() else 0.0)
            squares += float((gap**2).sum())
            total += float((mine.double() ** 2).sum())
    return largest, (squares / total) ** 0.5 if total else 0.0, choices


def bits(state: Mapping[str, Tensor]) -> dict[str, tuple[str, bytes]]:
    """Return every tensor of a state as its bytes."""
    return {n: (str(t.dtype), t.cpu().numpy().tobytes()) for n, t in state.items()}


def _accuracies(metrics: pd.DataFrame) -> np.ndarray:
    """Return every client's last test accuracy."""
    rows = metrics[metrics["metric"] == "test_accuracy"]
    last = rows[rows["round"] == rows["round"].max()]
    return last.sort_values("client")["value"].to_numpy()
