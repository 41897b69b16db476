"""What partitions accept: every refusal names the value and what is allowed."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.values import suggest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def examples(
    labels: ArrayLike, pool: ArrayLike | None, classes: int | None
) -> tuple[Ints, Ints, int]:
    """Labels, pool and number of classes, checked; ValueError names what does not fit."""
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
    return values.astype(np.int64), positions.astype(np.int64), classes


def equal_size(clients: int, size: int | None, available: int) -> int:
    """The size of each client, or ValueError with the numbers when there are too few examples."""
    whole("clients", clients, 1)
    if size is None:
        if clients > available:
            raise ValueError(f"clients must be at most the {available:,} examples, not {clients:,}")
        return available // clients
    whole("size", size, 1)
    if clients * size > available:
        raise ValueError(
            f"{clients:,} clients x {size:,} examples = {clients * size:,}, but only "
            f"{available:,} are available"
        )
    return int(size)


def enough(counts: Ints, stacks: list[Ints], size: int, names: Sequence[int]) -> None:
    """ValueError for the client whose need exceeds the examples of a class by most."""
    available = np.array([len(stack) for stack in stacks])
    lack = counts - available
    if lack.size and lack.max() > 0:
        row, label = np.unravel_index(np.argmax(lack), lack.shape)
        raise ValueError(
            f"client {names[int(row)]} needs {counts[row, label]:,} examples of class {label} to "
            f"mirror its shares with size {size:,}, but only {available[label]:,} are available; "
            "ask for a smaller size"
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


def check_counts(request: Any) -> None:
    """Check the fields `clients` and `size` of a request, those that it has and that are set."""
    for name in ("clients", "size"):
        if getattr(request, name, None) is not None:
            whole(name, getattr(request, name), 1)


def fraction(name: str, value: float, *, least: float = 0.0) -> float:
    """The value, or ValueError unless it lies in [least, 1)."""
    if not least <= value < 1:
        raise ValueError(f"{name} must be at least {least:g} and below 1, not {value!r}")
    return value


def column_of(columns: Mapping[str, ArrayLike] | None, name: str, length: int) -> NDArray[Any]:
    """The column of that name, [length]; ValueError names those that exist when it is missing."""
    if not columns or name not in columns:
        there = suggest(name, columns) if columns else "the data set has no other columns"
        raise ValueError(f"there is no column {name!r}; {there}")
    values = np.asarray(columns[name])
    if values.shape != (length,):
        raise ValueError(f"column {name!r} must be [{length:,}], one per label, not {values.shape}")
    return values
