"""Requests around another: what its clients see differently, some of them, all more than once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlib.partition.base import PARTS, Around, Request
from fedlib.partition.chance import concentration_of, draw_shares, generator_of
from fedlib.partition.checks import Ints, Pool, whole
from fedlib.partition.table import Partition
from fedlib.values import one_of, value


@dataclass(frozen=True)
class Seen(Around):
    """Attaches side information called `name` on top of that of `of`."""

    name: ClassVar[str]

    @property
    def count(self) -> int:
        """How many values the side information can take."""
        raise NotImplementedError

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The side information, int64 [clients, width]; anything in the padding."""
        raise NotImplementedError

    def kinds(self) -> dict[str, int]:
        """The counts of `of` and of this request; see `Request`."""
        return {**super().kinds(), self.name: self.count}

    def check(self) -> None:
        super().check()
        inner: Request | None = self.of
        while inner is not None:
            if isinstance(inner, Seen) and inner.name == self.name:
                raise ValueError(f"{type(self).__name__} is already around {inner.of!r}")
            inner = getattr(inner, "of", None)

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """The partition with the side information of `of` and of this request; see `Request`."""
        one_of("part", part, PARTS)
        values = self.attach(partition, part, seed, classes)
        return super().side(partition, part, seed, classes).with_side(self.name, values)


@value
class Rotated(Seen):
    """Every example is turned by an angle: side information "angle", an index into `angles`.

    angles: degrees. alpha: each client has a distribution over the angles, drawn from Dir(alpha),
    and every example an angle drawn from it; None for one angle per client, in equal consecutive
    blocks of clients (two angles: the first half and the second half).
    Source: 000, Rotated MNIST (alpha 1); IFCA and 003, Rotated CIFAR-10 (None).
    """

    name = "angle"
    angles: tuple[float, ...] = (0.0, 45.0, 90.0, 135.0, 180.0, 225.0, 270.0, 315.0)
    alpha: float | None = 1.0

    def check(self) -> None:
        super().check()
        if not self.angles or len({angle % 360 for angle in self.angles}) < len(self.angles):
            raise ValueError(f"angles must be different ones, at least one, not {self.angles}")

    @property
    def count(self) -> int:
        """How many angles there are."""
        return len(self.angles)

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The index of each example's angle, int64 [clients, width]; 0 in the padding."""
        count, shape = len(self.angles), partition.index.shape
        if self.alpha is None:
            block = np.arange(shape[0]) * count // max(shape[0], 1)
            return np.where(partition.index >= 0, block[:, None], 0)
        concentration = concentration_of(self.alpha, np.ones(count))
        drawn = np.zeros(shape, np.int64)
        for client, size in enumerate(partition.sizes):
            shares = draw_shares(generator_of(seed, "angle shares", client), concentration)
            generator = generator_of(seed, f"angles {part}", client)
            drawn[client, :size] = generator.choice(count, int(size), p=shares / shares.sum())
        return drawn


@value
class LabelPermuted(Seen):
    """Every client calls the classes by other labels: side information "permutation".

    Each client is given one of `permutations` tables at random, one for all of its examples;
    `tables` says what they are. Source: 000, label permutations; IFCA.
    """

    name = "permutation"
    permutations: int = 4

    @property
    def count(self) -> int:
        """How many permutations there are."""
        return self.permutations

    def tables(self, seed: int, classes: int) -> Ints:
        """Where the labels go, int64 [permutations, classes]: label c becomes tables[k, c].

        The first is the identity and all are different. ValueError when the classes have fewer
        permutations than that.
        """
        whole("classes", classes, 1)
        if classes < 20 and self.permutations > math.factorial(classes):
            raise ValueError(
                f"{self.permutations:,} different permutations are asked for, but {classes} "
                f"classes have only {math.factorial(classes):,}"
            )
        generator = generator_of(seed, "label tables", classes)
        tables = dict.fromkeys([tuple(range(classes))])
        while len(tables) < self.permutations:
            tables.setdefault(tuple(generator.permutation(classes).tolist()))
        return np.array(list(tables), np.int64)

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The number of each client's table, int64 [clients, width]; 0 in the padding."""
        self.tables(seed, classes)  # refuses what cannot be
        given = self.given(partition.clients, seed)
        return np.where(partition.index >= 0, given[:, None], 0)

    def given(self, clients: int, seed: int) -> Ints:
        """The number of each client's table, int64 [clients], which no example decides."""
        drawn = [
            generator_of(seed, "label permutation", client).integers(self.permutations)
            for client in range(clients)
        ]
        return np.array(drawn, np.int64)


@value
class Repeated(Around):
    """`of` is asked `times` times for the whole pool, and its clients stand one after another.

    Rows are disjoint within each deal, whose clients are consecutive, but not between deals. So
    Rotated(Repeated(IID(100, 500)), (0, 180), None) has 100 clients with CIFAR-10 and another
    100 with its rotated copy. Source: IFCA (Ghosh et al. 2020), sec. 6; 003, Rotated CIFAR-10.
    """

    times: int = 2

    def deal(self, pool: Pool, seed: int) -> Partition:
        """The deals one after another; the first is the one that `of` makes by itself."""
        rows: list[Ints] = []
        for deal in range(self.times):
            own = int(generator_of(seed, "repeated", deal).integers(2**32)) if deal else seed
            part = self.of.deal(pool, own)
            rows += [part.client(i) for i in range(part.clients)]
        return Partition.from_lists(rows)

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """ValueError: what one client holds back, another might train on."""
        raise ValueError(
            "Repeated deals an example to several clients, so that one would train on what "
            "another holds out; use Mirrored with it, not Own"
        )


@value
class Clients(Around):
    """The clients ``first`` to ``last`` - 1 of those that `of` deals to, with what they hold there.

    Two of them that share no client share no training example: the first federates, the second
    is made of newcomers. Which of its own examples a client holds out (``Own``) is drawn by its
    number among these.
    """

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
