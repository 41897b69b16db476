"""Some of the clients of another request."""

from __future__ import annotations

import numpy as np

from fedlib.partition.base import Request
from fedlib.partition.checks import Pool, whole
from fedlib.partition.sides import Rotated
from fedlib.partition.table import Partition
from fedlib.values import value


@value
class Clients(Request):
    """The clients ``first`` to ``last`` - 1 of those that `of` deals to, with what they hold there.

    Two of them that share no client share no training example: the first federates, the second
    is made of newcomers. Which of its own examples a client holds out (``Own``) is drawn by its
    number among these.
    """

    of: Request
    first: int = 0
    last: int = 100

    def check(self) -> None:
        super().check()
        whole("first", self.first, 0)
        if self.last <= self.first:
            raise ValueError(f"last must be above first ({self.first}), got {self.last}")
        if isinstance(self.of, Rotated) and self.of.alpha is None:
            raise ValueError("angles by blocks of clients go around Clients, not inside")

    def among(self) -> tuple[int, int]:
        """The first, and how many the other request has; ValueError where that depends on data."""
        count = getattr(self.of, "clients", None)
        if not count:
            raise ValueError(f"{self.of} does not say how many clients it has")
        return self.first, count

    def deal(self, pool: Pool, seed: int) -> Partition:
        """Their rows; ValueError if `of` deals to fewer clients."""
        return self._chosen(self.of.deal(pool, seed))

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """Their side information, which `of` draws by a client's number among all."""
        everyone = Partition(self._among(partition.index, -1), self._among(partition.sizes, 0))
        return self._chosen(self.of.side(everyone, part, seed, classes))

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """Their rows, divided as `of` divides them."""
        kept, held = self.of.cut(pool, seed, share)
        return self._chosen(kept), self._chosen(held)

    def _chosen(self, partition: Partition) -> Partition:
        if self.last > partition.clients:
            raise ValueError(f"last is {self.last}, but there are {partition.clients} clients")
        rows = slice(self.first, self.last)
        side = {name: values[rows] for name, values in partition.side.items()}
        return Partition(partition.index[rows], partition.sizes[rows], side)

    def _among(self, rows: np.ndarray, empty: int) -> np.ndarray:
        out = np.full((self.last, *rows.shape[1:]), empty, dtype=rows.dtype)
        out[self.first :] = rows
        return out
