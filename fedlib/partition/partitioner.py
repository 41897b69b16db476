"""What every request is asked, and the requests around another.

Those are: what its clients see differently, some of them, all more than once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition import draws
from fedlib.partition.draws import Ints, LabelledExamples, Partition, examples
from fedlib.values import PositiveFloat, PositiveInt, short_repr, value, wrapped

EIGHTHS = tuple(45.0 * turn for turn in range(8))  # degrees


@dataclass(frozen=True)
class Partitioner:
    """How examples are dealt to clients, as a value that prints as code; the base of them all.

    A scheme of one's own is a subclass made a value with ``@value`` that has a `partition`, and a
    `num_clients` if it knows that beforehand otherwise than by a field ``num_clients``.

    >>> from fedlib.partition import Partition, Partitioner
    >>> @value
    ... class OddEven(Partitioner):
    ...     def partition(self, pool, seed):
    ...         labels = pool.labels[pool.positions]
    ...         return Partition.from_owners(pool.positions, labels % 2, 2, names=("even", "odd"))
    >>> task = Task("digits", OddEven(), MLP((8,)), LocalHoldout())
    >>> (task.counts(seed=0)["train"] > 0).sum(1).tolist()
    [5, 5]
    """

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Partition:  # fmt: skip
        """Deal the positions in `pool` (all when None) to clients, with side information.

        labels: [N]; classes: C (highest label + 1 when None); columns: whatever else is known
        per example, [N] each, by name. ValueError, with the numbers, for the impossible.
        """
        given = examples(labels, pool, classes, columns)
        return self.side(self.checked(given, seed), "train", seed, given.classes)

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Who gets what of a pool; ValueError, with the numbers, for the impossible."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to deal")

    def num_clients(self) -> int:
        """How many clients it deals to; 0 where the data decide, as who wrote what."""
        return vars(self).get("clients") or 0

    def choose_clients(self) -> tuple[int, int]:
        """The number of its first client and of all clients, where it is some of another's.

        (0, 0) for all of them.
        """
        return 0, 0

    def kinds(self) -> dict[str, int]:
        """How many values each side information can take, by name, whatever anyone holds."""
        return {}

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """The partition with this request's per-example side information attached.

        part: "train", "validation" or "test". What a client is like depends on (seed, client)
        only, what an example gets on (seed, part, client). A plain request attaches nothing.
        """
        return partition

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        """The rows of `partition`, each divided at random: (kept, held), `share` of them held."""
        return draws.halves(self.dealt_once(pool, seed), share, seed, "own test")

    def dealt_once(self, pool: LabelledExamples, seed: int) -> Partition:
        """What `partition` gives, of which clients may hold some out: nothing is dealt twice."""
        whole = self.checked(pool, seed)
        for twice in np.flatnonzero(np.bincount(whole.flat) > 1):
            what = f"{self} deals position {twice:,} more than once, so that who trains on it"
            raise ValueError(f"{what} might hold it out, too; use MatchedHoldout")
        return whole

    def checked(self, pool: LabelledExamples, seed: int) -> Partition:
        """What `partition` gives; an error unless that is a partition of positions of the pool."""
        made = self.partition(pool, seed)
        if not isinstance(made, Partition):
            need = "must return a Partition, as Partition.from_lists(lists)"
            raise TypeError(f"{type(self).__name__}.partition {need}, got {short_repr(made)}")
        for stray in made.flat[~np.isin(made.flat, pool.positions)]:
            what = f"{self} deals position {stray:,}, which is none of pool.positions"
            raise ValueError(f"{what}: others may be set aside for validation or tests")
        return made


@dataclass(frozen=True)
class PartitionerWrapper(Partitioner):
    """Deals as the request `of` does, in everything that it does not do otherwise itself."""

    of: Partitioner


for hook in ("kinds", "num_clients", "partition", "side", "split_off"):
    setattr(PartitionerWrapper, hook, wrapped(hook))


@dataclass(frozen=True)
class SideInformation(PartitionerWrapper):
    """Attaches side information of its own on top of that of `of`."""

    @property
    def feature(self) -> tuple[str, int]:
        """What the side information is called, and how many values it can take."""
        raise NotImplementedError

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The side information, int64 [examples]."""
        raise NotImplementedError

    def kinds(self) -> dict[str, int]:
        return {**super().kinds(), self.feature[0]: self.feature[1]}

    def check(self) -> None:
        if self.feature[0] in self.of.kinds():
            raise ValueError(f"{type(self).__name__} is already around {self.of!r}")

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        values = self.attach(partition, part, seed, classes)
        inner = super().side(partition, part, seed, classes)
        return replace(inner, side={**inner.side, self.feature[0]: values})


@value
class Rotated(SideInformation):
    """Every example is turned by an angle: side information "angle", an index into `angles`.

    angles: degrees. alpha: each client has a distribution over the angles, drawn from Dir(alpha),
    and every example an angle drawn from it; None for one angle per client, in equal consecutive
    blocks of clients (two angles: the first half and the second half).
    Source: 000, Rotated MNIST (alpha 1); IFCA and 003, Rotated CIFAR-10 (None).

    >>> halves = Rotated(Dirichlet(clients=6, alpha=1.0, size=20), angles=(0.0, 180.0), alpha=None)
    >>> held = MatchedHoldout(pool=200, validation=20, test=30)
    >>> task = Task("digits", halves, MLP((8,)), held)
    >>> task.build(seed=0).train.side["angle"][::20].tolist()  # of 20 examples each
    [0, 0, 0, 1, 1, 1]
    """

    angles: Annotated[tuple[float, ...], "(-inf, inf)"] = EIGHTHS
    alpha: PositiveFloat | None = 1.0

    @property
    def feature(self) -> tuple[str, int]:
        return "angle", len(self.angles)

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The index of each example's angle."""
        count, clients = len(self.angles), partition.clients
        if self.alpha is None:
            return (np.arange(clients) * count // max(clients, 1))[partition.owners]
        names, who = ("angle shares", f"angles {part}"), np.arange(clients)
        of = (draws.generators_of(seed, name, who) for name in names)
        drawn = [np.zeros(0, np.int64)]
        for size, client, example in zip(partition.sizes.tolist(), *of, strict=True):
            shares = draws.draw_shares(client, self.alpha, count)
            drawn.append(example.choice(count, size, p=shares / shares.sum()))
        return np.concatenate(drawn)


@value
class LabelPermuted(SideInformation):
    """Every client calls the classes by other labels: side information "permutation".

    Each client is given one of `permutations` tables at random, one for all of its examples;
    `tables` says what they are. Source: 000, label permutations.

    >>> LabelPermuted(IID(clients=6, size=20), permutations=2).kinds()
    {'permutation': 2}
    """

    permutations: PositiveInt = 4

    @property
    def feature(self) -> tuple[str, int]:
        return "permutation", self.permutations

    def tables(self, seed: int, classes: int) -> Ints:
        """Where the labels go, int64 [permutations, classes]: label c becomes tables[k, c].

        The first is the identity and all are different. ValueError when the classes have fewer
        permutations than that.
        """
        available = math.factorial(min(classes, 20))
        draws.require_at_least(
            f"different permutations of {classes} classes", self.permutations, available
        )
        generator = draws.generator_of(seed, "label tables", classes)
        tables = dict.fromkeys([tuple(range(classes))])
        while len(tables) < self.permutations:
            tables.setdefault(tuple(generator.permutation(classes).tolist()))
        return np.array(list(tables), np.int64)

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """The number of each client's table."""
        self.tables(seed, classes)  # refuses what cannot be
        return self.given(partition.clients, seed)[partition.owners]

    def given(self, clients: int, seed: int) -> Ints:
        """The number of each client's table, int64 [clients], which no example decides."""
        generators = draws.generators_of(seed, "label permutation", np.arange(clients))
        return np.array([g.integers(self.permutations) for g in generators], np.int64)


@value(kind="Repeated")
class RepeatedPartition(PartitionerWrapper):
    """`of` is asked `times` times for the whole pool, and its clients stand one after another.

    Rows are disjoint within each deal, whose clients are consecutive, but not between deals; the
    first is the one that `of` makes by itself. So Rotated(RepeatedPartition(IID(100, 500)), (0,
    180), None) has 100 clients with CIFAR-10 and another 100 with its rotated copy. Source: IFCA
    (Ghosh et al. 2020), sec. 6; 003, Rotated CIFAR-10.
    """

    times: PositiveInt = 2

    def num_clients(self) -> int:
        return self.times * self.of.num_clients()

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        deals = [self.of.partition(pool, seed)]
        for deal in range(1, self.times):
            own = int(draws.generator_of(seed, "repeated", deal).integers(2**32))
            deals.append(self.of.partition(pool, own))
        flat, sizes = ([getattr(deal, name) for deal in deals] for name in ("flat", "sizes"))
        first = deals[0].names
        others = (f"{name} ({deal})" for deal in range(2, self.times + 1) for name in first)
        return Partition(np.concatenate(flat), np.concatenate(sizes), names=(*first, *others))

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        """ValueError: what one client holds back, another might train on."""
        raise ValueError(
            "RepeatedPartition deals an example to several clients, so that one would train on "
            "what another holds out; use MatchedHoldout with it, not LocalHoldout"
        )


@value(kind="Clients")
class ClientSubset(PartitionerWrapper):
    """The clients ``first`` to ``last`` - 1 of those that `of` deals to, with what they hold there.

    Two of them that share no client share no training example: the first federates, the second
    is made of new clients. Which of its own examples a client holds out (``LocalHoldout``) is drawn
    by its number among these; side information by its number among all. ValueError if `of` deals
    to fewer.
    """

    first: int = 0
    last: int = 100

    def check(self) -> None:
        if not 0 <= self.first < self.last:
            raise ValueError(f"first must be at least 0, last above it; got {self}")
        if isinstance(self.of, Rotated) and self.of.alpha is None:
            raise ValueError("angles by blocks of clients go around ClientSubset, not inside")

    def num_clients(self) -> int:
        return self.last - self.first

    def choose_clients(self) -> tuple[int, int]:
        """The first, and how many the other request has; ValueError where that depends on data."""
        count = getattr(self.of, "clients", None)
        if not count:
            raise ValueError(f"{self.of} does not say how many clients it has")
        return self.first, count

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        return self._chosen(self.of.partition(pool, seed))

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        everyone = Partition(partition.flat, np.pad(partition.sizes, (self.first, 0)))
        seen = self._chosen(self.of.side(everyone, part, seed, classes))
        return replace(seen, names=partition.names)

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        kept, held = self.of.split_off(pool, seed, share)
        return self._chosen(kept), self._chosen(held)

    def _chosen(self, partition: Partition) -> Partition:
        draws.require_at_least(f"clients of {self.of}", self.last, partition.clients)
        held = slice(partition.starts[self.first], partition.starts[self.last])
        side = {name: values[held] for name, values in partition.side.items()}
        some = slice(self.first, self.last)
        return Partition(partition.flat[held], partition.sizes[some], side, partition.names[some])
