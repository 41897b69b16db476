"""The base class of partitioners, and partitioners that wrap another one.

Wrappers add side information, select some of the clients, or repeat the partition.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition import draws
from fedlib.partition.draws import Ints, LabelledExamples, Partition, examples
from fedlib.values import PositiveFloat, PositiveInt, refuse_old_hooks, short_repr, value, wrapped

# Methods of 0.2, by what to override instead.
METHODS = {
    "deal": "partition", "population": "num_clients", "among": "choose_clients",
    "cut": "split_off", "told": "feature",
}  # fmt: skip
EIGHTHS = tuple(45.0 * turn for turn in range(8))  # degrees


@dataclass(frozen=True)
class Partitioner:
    """Base class of partitioners: values that assign examples to clients.

    To write another one, inherit from this class, decorate with ``@value`` and override
    ``partition``; and ``num_clients``, if the number of clients is known in advance but is not a
    field ``clients``.

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

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_old_hooks(cls, METHODS)

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Partition:  # fmt: skip
        """Assign examples to clients, with side information.

        Args:
            labels: labels of the split, int64 ``[N]``.
            pool: positions that may be assigned, None for all.
            seed: the seed.
            classes: the number of classes. Default: the highest label + 1.
            columns: other columns of the split, ``[N]`` by name. Default: none.

        Raises:
            ValueError: with the numbers, if the partition is impossible.
        """
        given = examples(labels, pool, classes, columns)
        return self.side(self.checked(given, seed), "train", seed, given.classes)

    def partition(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return which examples of ``pool`` each client holds.

        Called by ``split``, and by the classes for held-out examples.

        Args:
            pool: the examples that may be assigned.
            seed: the seed.

        Raises:
            ValueError: with the numbers, if the partition is impossible.
        """
        raise NotImplementedError(f"{type(self).__name__} must override `partition`")

    def num_clients(self) -> int:
        """Return the number of clients; 0 if it depends on the data."""
        return vars(self).get("clients") or 0

    def choose_clients(self) -> tuple[int, int]:
        """Return which clients of another partitioner these are, if this one selects some.

        Returns:
            the number of the first selected client, and the number of all clients of the other
            partitioner. Default: (0, 0), for all clients.
        """
        return 0, 0

    def kinds(self) -> dict[str, int]:
        """Return the number of values of each side information, by name."""
        return {}

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """Return the partition with this partitioner's side information.

        Random properties of a client depend on (seed, client) only, those of an example on (seed,
        part, client).

        Args:
            partition: the partition.
            part: "train", "validation" or "test".
            seed: the seed.
            classes: the number of classes.

        Default: no side information.
        """
        return partition

    def split_off(
        self, pool: LabelledExamples, seed: int, share: float
    ) -> tuple[Partition, Partition]:
        """Return the partition split at random into (kept, held out).

        Args:
            pool: the examples that may be assigned.
            seed: the seed.
            share: the fraction of each client's examples to hold out.
        """
        return draws.halves(self.dealt_once(pool, seed), share, seed, "own test")

    def dealt_once(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the result of ``partition`` if no example is assigned twice; ValueError otherwise.

        Otherwise one client might train on an example that another one holds out.
        """
        whole = self.checked(pool, seed)
        for twice in np.flatnonzero(np.bincount(whole.flat) > 1):
            what = f"{self} assigns position {twice:,} more than once: a client that trains on it"
            raise ValueError(f"{what} might also hold it out; use MatchedHoldout")
        return whole

    def checked(self, pool: LabelledExamples, seed: int) -> Partition:
        """Return the result of ``partition`` if it is valid; raise an error otherwise.

        Raises:
            TypeError: if it is not a ``Partition``.
            ValueError: if it has positions outside of the pool.
        """
        made = self.partition(pool, seed)
        if not isinstance(made, Partition):
            need = "must return a Partition, as Partition.from_lists(lists)"
            raise TypeError(f"{type(self).__name__}.partition {need}, got {short_repr(made)}")
        for stray in made.flat[~np.isin(made.flat, pool.positions)]:
            what = f"{self} assigns position {stray:,}, which is not in pool.positions"
            raise ValueError(f"{what}: others may be held out for validation or tests")
        return made


@dataclass(frozen=True)
class PartitionerWrapper(Partitioner):
    """Base class of partitioners that wrap another one and delegate to it.

    Args:
        of: the wrapped partitioner.
    """

    of: Partitioner


for hook in ("kinds", "num_clients", "partition", "side", "split_off"):
    setattr(PartitionerWrapper, hook, wrapped(hook))


@dataclass(frozen=True)
class SideInformation(PartitionerWrapper):
    """Base class of wrappers that add side information to the wrapped partitioner."""

    @property
    def feature(self) -> tuple[str, int]:
        """The name of the side information, and the number of its values."""
        raise NotImplementedError

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """Return each example's side information, int64 ``[examples]``; see ``side``."""
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
    """Rotate every example. The side information "angle" is the index of its angle.

    Args:
        of: the partitioner that assigns the examples.
        angles: angles in degrees. Default: the eight multiples of 45.
        alpha: each client has a distribution over angles drawn from Dir(alpha), and each of its
            examples an angle drawn from that. None for one angle per client, in equal blocks of
            consecutive clients. Default: 1.

    Reference: Reisser et al., Federated mixture of experts, 2021, Rotated MNIST (alpha 1); Ghosh et
    al. (IFCA), 2020, and Isaksson et al., 2022, Rotated CIFAR-10 (None).

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
        """Return the index of each example's angle."""
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
    """Permute the labels of every client.

    The side information "permutation" is the number of its permutation.

    Args:
        of: the partitioner that assigns the examples.
        permutations: the number of different permutations, the identity among them; each client
            draws one of them. Default: 4.

    Reference: Reisser et al., Federated mixture of experts, 2021, label permutations.

    >>> LabelPermuted(IID(clients=6, size=20), permutations=2).kinds()
    {'permutation': 2}
    """

    permutations: PositiveInt = 4

    @property
    def feature(self) -> tuple[str, int]:
        return "permutation", self.permutations

    def tables(self, seed: int, classes: int) -> Ints:
        """Return the permutations, in which label c becomes ``tables[k, c]``.

        Args:
            seed: the seed.
            classes: the number of classes.

        Returns:
            int64 ``[permutations, classes]``, all different; the first one is the identity.

        Raises:
            ValueError: if there are not that many permutations of the classes.
        """
        available = math.factorial(min(classes, 20))
        what = f"different permutations of {classes} classes"
        draws.require_at_least(what, self.permutations, available)
        generator = draws.generator_of(seed, "label tables", classes)
        tables = dict.fromkeys([tuple(range(classes))])
        while len(tables) < self.permutations:
            tables.setdefault(tuple(generator.permutation(classes).tolist()))
        return np.array(list(tables), np.int64)

    def attach(self, partition: Partition, part: str, seed: int, classes: int) -> Ints:
        """Return the number of each example's table."""
        self.tables(seed, classes)  # raises an error if it is impossible
        return self.given(partition.clients, seed)[partition.owners]

    def given(self, clients: int, seed: int) -> Ints:
        """Return the number of each client's table, int64 ``[clients]``."""
        generators = draws.generators_of(seed, "label permutation", np.arange(clients))
        return np.array([g.integers(self.permutations) for g in generators], np.int64)


@value(kind="Repeated")
class RepeatedPartition(PartitionerWrapper):
    """Partition the same examples several times; each repetition has its own clients.

    Examples are disjoint within each repetition, whose clients are consecutive, but not between
    them. The first repetition equals the partition by ``of``. For instance
    Rotated(RepeatedPartition(IID(100, 500)), (0, 180), None) has 100 clients with CIFAR-10 and
    another 100 with its rotated copy.

    Args:
        of: the repeated partitioner.
        times: the number of repetitions. Default: 2.

    Reference: IFCA (Ghosh et al., 2020), sec. 6; Isaksson et al., 2022, Rotated CIFAR-10.
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

    split_off = Partitioner.split_off  # which refuses examples that several clients hold


@value(kind="Clients")
class ClientSubset(PartitionerWrapper):
    """Some consecutive clients of another partitioner, with the examples that they have there.

    Subsets without common clients have no common training examples, so that one can be a federation
    and the other its new clients. Examples that a client itself holds out (``LocalHoldout``) are
    drawn by its number in the subset, side information by its number among all clients.

    Args:
        of: the partitioner of all clients.
        first: the first client. Default: 0.
        last: one past the last client. Default: 100.

    Raises:
        ValueError: if ``of`` has fewer clients.
    """

    first: int = 0
    last: int = 100

    def check(self) -> None:
        if not 0 <= self.first < self.last:
            raise ValueError(f"first must be at least 0 and below last, got {self}")
        if isinstance(self.of, Rotated) and self.of.alpha is None:
            raise ValueError("Rotated with alpha=None must wrap ClientSubset, not be in it")

    def num_clients(self) -> int:
        return self.last - self.first

    def choose_clients(self) -> tuple[int, int]:
        """Return the number of the first client among all, and how many clients there are in all.

        Raises:
            ValueError: if that number depends on the data.
        """
        first, every = self.of.choose_clients()
        if not (count := every or self.of.num_clients()):
            raise ValueError(f"{self.of} has no fixed number of clients")
        return first + self.first, count

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
