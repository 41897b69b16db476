"""The index table: who holds which example."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.partition.checks import Floats, Ints, examples


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
        if index.ndim != 2 or sizes.shape != index.shape[:1]:
            raise ValueError(
                f"index must be [clients, width] and sizes [clients], not {index.shape} "
                f"and {sizes.shape}"
            )
        held = np.arange(index.shape[1]) < sizes[:, None]
        if sizes.size and (sizes.min() < 0 or sizes.max() > index.shape[1]):
            raise ValueError(f"sizes must lie in 0..{index.shape[1]}, the width of index")
        if np.any((index >= 0) != held) or np.any(index[~held] != -1):
            raise ValueError("each row of index must hold its size of positions, then only -1")
        side = {name: np.asarray(values) for name, values in self.side.items()}
        for name, values in side.items():
            if values.shape != index.shape:
                raise ValueError(f"side[{name!r}] must be {index.shape}, not {values.shape}")
        object.__setattr__(self, "index", _frozen(index))
        object.__setattr__(self, "sizes", _frozen(sizes))
        object.__setattr__(self, "side", {name: _frozen(side[name]) for name in side})

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
        """A partition from who owns each position, int [n] both; rows come out sorted."""
        held, who = np.asarray(positions, np.int64), np.asarray(owners, np.int64)
        sizes = np.bincount(who, minlength=clients)
        index = np.full((clients, int(sizes.max(initial=0))), -1, np.int64)
        index[np.arange(index.shape[1]) < sizes[:, None]] = held[np.lexsort((held, who))]
        return cls(index, sizes)

    @classmethod
    def of_equal(cls, index: Ints) -> Partition:
        """A partition of equal sizes; rows are sorted, which is kind to memory-mapped features."""
        return cls(np.sort(index, 1), np.full(len(index), index.shape[1], np.int64))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    def client(self, i: int) -> Ints:
        """The positions that client i holds, int64 [sizes[i]]; IndexError outside 0..clients-1."""
        if not 0 <= i < self.clients:
            raise IndexError(f"client {i} does not exist; clients are 0..{self.clients - 1}")
        return self.index[i, : self.sizes[i]]

    def counts(self, labels: ArrayLike, classes: int) -> Ints:
        """How many examples of each class each client holds, int64 [clients, classes]."""
        values = examples(labels, None, classes).labels
        held = self.index >= 0
        if held.any() and self.index.max() >= len(values):
            raise ValueError(
                f"the partition points at example {self.index.max():,}, but there are only "
                f"{len(values):,} labels"
            )
        cell = np.repeat(np.arange(self.clients), self.sizes) * classes + values[self.index[held]]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def shares(self, labels: ArrayLike, classes: int) -> Floats:
        """Label shares of each client, float64 [clients, classes]; zeros for an empty client."""
        return self.counts(labels, classes) / np.maximum(self.sizes, 1)[:, None]

    def with_side(self, name: str, values: NDArray[Any]) -> Partition:
        """The same rows with one more column of per-example information, [clients, width]."""
        return Partition(self.index, self.sizes, {**self.side, name: values})

    def fingerprint(self) -> str:
        """SHA-256, in hex, of who holds what in which order; the padding does not enter."""
        held = self.index >= 0
        digest = hashlib.sha256(self.sizes.astype("<i8").tobytes())
        digest.update(self.index[held].astype("<i8").tobytes())
        for name in sorted(self.side):
            values = self.side[name][held]
            digest.update(f"{name}:{values.dtype.str}".encode() + values.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        if not self.clients:
            return "Partition(0 clients)"
        low, mean, high = self.sizes.min(), self.sizes.mean(), self.sizes.max()
        sizes = f"{low:,} each"
        if low < high:
            sizes = f"{low:,}..{high:,} each, {mean:,.1f} on average"
        side = f", with {', '.join(sorted(self.side))}" if self.side else ""
        return f"Partition({self.clients:,} clients, {sizes}{side})"


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view, so that the caller's own array stays writable."""
    view = array.view()
    view.flags.writeable = False
    return view
