"""What may be dealt, and the index table: who holds which example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.values import one_of

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
        one_of("column", name, self.columns)
        return np.asarray(self.columns[name])[self.positions]


def examples(
    labels: ArrayLike, pool: ArrayLike | None = None, classes: int | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> Pool:  # fmt: skip
    """The pool of examples that these describe, checked; ValueError names what does not fit."""
    values = _numbers("labels", labels, classes)
    positions = np.arange(len(values)) if pool is None else _numbers("pool", pool, len(values))
    if len(np.unique(positions)) != len(positions):
        raise ValueError("pool names some example more than once")
    return Pool(values, positions, classes or int(values.max()) + 1, columns or {})


def _numbers(what: str, given: ArrayLike, limit: int | None) -> Ints:
    values = np.asarray(given)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise ValueError(
            f"{what} must be a list of whole numbers, one at least, not {values.dtype} of shape "
            f"{values.shape}"
        )
    low, high = int(values.min()), int(values.max())
    if low < 0 or (limit is not None and high >= limit):
        most = high if limit is None else limit - 1
        raise ValueError(f"{what} must lie in 0..{most}, but lie in {low}..{high}")
    return values.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Partition:
    """Which examples each client holds, as one table with a row per client.

    index: int64 [clients, width], positions in the split, each row padded at its end with -1.
    sizes: int64 [clients], how many entries of each row count.
    side: arrays [clients, width] of per-example information (a rotation angle, ...), by name.
    Raises ValueError where the three do not fit together. The arrays become read-only.
    """

    index: Ints
    sizes: Ints
    side: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index, sizes = np.asarray(self.index, np.int64), np.asarray(self.sizes, np.int64)
        shapes = [np.shape(values) for values in self.side.values()]
        if index.ndim != 2 or sizes.shape != index.shape[:1] or set(shapes) - {index.shape}:
            raise ValueError(
                f"index must be [clients, width], sizes [clients] and side information as index, "
                f"not {index.shape}, {sizes.shape} and {shapes}"
            )
        held = np.arange(index.shape[1]) < sizes[:, None]
        if np.any(held.sum(1) != sizes) or np.any((index >= 0) != held) or np.any(index < -1):
            raise ValueError("each row of index must hold its size of positions, then only -1")
        side = {name: _frozen(values) for name, values in self.side.items()}
        for name, values in (("index", _frozen(index)), ("sizes", _frozen(sizes)), ("side", side)):
            object.__setattr__(self, name, values)

    @classmethod
    def from_lists(cls, lists: Iterable[ArrayLike]) -> Partition:
        """A partition from one list of positions per client, their order kept."""
        rows = [np.asarray(row, np.int64).reshape(-1) for row in lists]
        sizes = np.array([len(row) for row in rows], np.int64)
        index = np.full((len(rows), int(sizes.max(initial=0))), -1, np.int64)
        for client, row in enumerate(rows):
            index[client, : len(row)] = row
        return cls(index, sizes)

    @classmethod
    def from_owners(cls, positions: ArrayLike, owners: ArrayLike, clients: int) -> Partition:
        """A partition from who owns each position, int [n] both; rows come out sorted.

        So they are kind to memory-mapped features.
        """
        held, who = np.asarray(positions, np.int64), np.asarray(owners, np.int64)
        order = np.lexsort((held, who))
        ends = np.cumsum(np.bincount(who, minlength=clients))[:-1]
        return cls.from_lists(np.split(held[order], ends))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    def client(self, i: int) -> Ints:
        """The positions that client i holds, int64 [sizes[i]]."""
        return self.index[i, : self.sizes[i]]

    def rows(self) -> list[Ints]:
        """The positions of all clients, one array each."""
        return [self.client(i) for i in range(self.clients)]

    def counts(self, labels: ArrayLike, classes: int) -> Ints:
        """How many examples of each class each client holds, int64 [clients, classes]."""
        values = examples(labels, None, classes).labels[self.index[self.index >= 0]]
        cell = np.repeat(np.arange(self.clients), self.sizes) * classes + values
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def shares(self, labels: ArrayLike, classes: int) -> Floats:
        """Label shares of each client, float64 [clients, classes]; zeros for an empty client."""
        return self.counts(labels, classes) / np.maximum(self.sizes, 1)[:, None]

    def __repr__(self) -> str:
        side = f", with {', '.join(sorted(self.side))}" if self.side else ""
        return f"Partition({self.clients:,} clients, {int(self.sizes.sum()):,} examples{side})"


def _frozen(array: ArrayLike) -> NDArray[Any]:
    """A read-only view, so that the caller's own array stays writable."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
