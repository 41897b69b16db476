"""Opting out: which training examples their owners keep out of the federation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedlib.partition.chance import generator_of, whole_part
from fedlib.partition.checks import Ints
from fedlib.partition.table import Partition
from fedlib.values import value


@value
class OptOut:
    """The fraction ``clients`` of the clients keeps the fraction ``share`` of each class at home.

    ``share`` 1 is a client that stays out of the federation altogether (001's q is ``clients``). Of
    M clients round(clients M) opt out, with floor(share n) of their n examples of a class. Who and
    what is drawn so that those who opt out at one fraction also do at every larger one.
    """

    clients: float = 0.9
    share: float = 1.0

    def check(self) -> None:
        for name in ("clients", "share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"OptOut.{name} must lie in [0, 1], got {getattr(self, name)}")

    def stays_in(
        self, train: Partition, labels: Ints, seed: int, first: int = 0, population: int = 0
    ) -> NDArray[np.bool_]:
        """Return which entries of the training rows take part, ``[clients, width]``.

        Padding does not. The rows are those of the clients from ``first`` on, of a ``population``
        (0: of the rows). ValueError if of all of these nobody has an example that does.
        """
        inside, population = train.index >= 0, population or train.clients
        out = round(self.clients * population)
        away = generator_of(seed, "opt out").permutation(population)[:out]
        for client in away[(away >= first) & (away < first + train.clients)].tolist():
            inside[client - first] &= ~self._kept_home(
                train.index[client - first], labels, seed, client
            )
        if population == train.clients and inside.size and not inside.any():
            raise ValueError(f"{self} leaves no example to the federation of {population:,}")
        return inside

    def _kept_home(self, row: Ints, labels: Ints, seed: int, client: int) -> NDArray[np.bool_]:
        held = np.flatnonzero(row >= 0)
        order = generator_of(seed, "opt out examples", client).permutation(held)
        mine = labels[row[order]]
        kept = np.zeros(len(row), bool)
        for label in np.unique(mine):
            of_class = order[mine == label]
            kept[of_class[: whole_part(self.share * len(of_class))]] = True
        return kept
