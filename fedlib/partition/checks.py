"""What partitions accept: every refusal names the value and what is allowed."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.values import suggest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Pool(NamedTuple):
    """What may be dealt: labels [N], positions among them [n], C, and other columns [N] by name."""

    labels: Ints
    positions: Ints
    classes: int
    columns: Mapping[str, ArrayLike]

    def stacks(self) -> list[Ints]:
        """The positions that may be dealt, class by class, in their order."""
        held = self.labels[self.positions]
        return [self.positions[held == label] for label in range(self.classes)]

    def column(self, name: str) -> NDArray[Any]:
        """A column of the examples that may be dealt, [n]; ValueError names those that exist."""
        if name not in self.columns:
            there = "the data set has no other columns"
            if self.columns:
                there = suggest(name, self.columns)
            raise ValueError(f"there is no column {name!r}; {there}")
        values, wanted = np.asarray(self.columns[name]), self.labels.shape
        if values.shape != wanted:
            raise ValueError(
                f"column {name!r} must be [{wanted[0]:,}], one per label, not {values.shape}"
            )
        return values[self.positions]


def examples(
    labels: ArrayLike, pool: ArrayLike | None, classes: int | None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> Pool:  # fmt: skip
    """The pool of examples that these describe, checked; ValueError names what does not fit."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be a non-empty list of integers, not {values.dtype} of shape "
            f"{values.shape}"
        )
    classes = int(values.max()) + 1 if classes is None else whole("classes", classes, 1)
    if values.min() < 0 or values.max() >= classes:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"labels must lie in 0..{classes - 1}, but one is {wrong}")
    positions = np.arange(len(values)) if pool is None else np.asarray(pool)
    if positions.ndim != 1 or not len(positions):
        raise ValueError("the pool is empty: there are no examples to deal")
    if positions.dtype.kind not in "iu":
        raise ValueError(f"pool must hold integer positions, not {positions.dtype}")
    if positions.min() < 0 or positions.max() >= len(values):
        raise ValueError(
            f"pool must lie in 0..{len(values) - 1}, but holds {positions.min()}..{positions.max()}"
        )
    if len(np.unique(positions)) != len(positions):
        raise ValueError("pool names some example more than once")
    return Pool(values.astype(np.int64), positions.astype(np.int64), classes, columns or {})


def equal_size(clients: int, size: int | None, available: int) -> int:
    """The size of each client, or ValueError with the numbers when there are too few examples."""
    whole("clients", clients, 1)
    if size is None:
        if clients > available:
            raise ValueError(f"clients must be at most the {available:,} examples, not {clients:,}")
        return available // clients
    require(clients, whole("size", size, 1), available)
    return int(size)


def require(clients: int, each: int, available: int, what: str = "examples") -> None:
    """ValueError, with the numbers, unless there are `each` for every client."""
    if clients * each > available:
        raise ValueError(
            f"{clients:,} clients x {each:,} {what} = {clients * each:,}, but only "
            f"{available:,} are available"
        )


def positive(name: str, value: float) -> float:
    """The value as a float, or ValueError unless it is a finite number above zero."""
    number = float(value) if isinstance(value, int | float | np.number) else np.nan
    if isinstance(value, bool) or not (np.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
    return number


def whole(name: str, value: int, least: int) -> int:
    """The value as an int, or ValueError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def fraction(name: str, value: float) -> float:
    """The value, or ValueError unless it lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, not {value!r}")
    return value
