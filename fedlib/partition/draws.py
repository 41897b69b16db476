"""What may be dealt, the table of who holds it, and the draws that several schemes share.

Every generator is keyed by (seed, purpose, class or client), so that no draw depends on what else
was drawn, and nothing touches NumPy's global generator.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlib.values import check_choice

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
RandomState = np.random.RandomState
TRIES = 1000
Drawn = TypeVar("Drawn")


class LabelledExamples(NamedTuple):
    """What may be dealt: labels [N], positions among them [n], C, and other columns [N] by name."""

    labels: Ints
    positions: Ints
    classes: int
    columns: Mapping[str, ArrayLike]

    def indices_by_class(self) -> list[Ints]:
        """The positions that may be dealt, class by class, in their order."""
        held = self.labels[self.positions]
        return [self.positions[held == label] for label in range(self.classes)]

    def column(self, name: str, asked: str = "") -> NDArray[Any]:
        """A column of the examples that may be dealt, [n]; ValueError names those that exist.

        asked: what cannot be told of an example without a value, which is a ValueError then.
        """
        check_choice("column", name, self.columns)
        values = np.asarray(self.columns[name])[self.positions]
        for row in self.positions[_lacking(values)] if asked else ():
            raise ValueError(f"row {row:,} of {name!r} holds no value: {asked}?")
        return values

    def times(self, name: str) -> Ints:
        """The rank of each example's time, [n], of a column of numbers, or of dates as text."""
        values = self.column(name, "when is it from")
        if values.dtype.kind == "U":  # as texts 10 would come before 9
            try:
                values = values.astype(float)
            except ValueError:
                rows = zip(self.positions.tolist(), values.tolist(), strict=True)
                values = np.array([_instant(name, row, text) for row, text in rows])
        return np.unique(values, return_inverse=True)[1]


def _lacking(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are none: NaN, or empty; no other kind of column has such."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.char.strip(values) == "" if values.dtype.kind == "U" else np.zeros(len(values), bool)


def _instant(name: str, row: int, text: str) -> float:
    """The seconds since 1970 of a date, of UTC where it says nothing else."""
    for day in (text.strip(), f"{text.strip()}-01"):  # of a month its first
        with suppress(ValueError):
            when = datetime.fromisoformat(day)
            return when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    need = "times must be numbers, or dates as 2021-04, 2021-04-03 or 2021-04-03 09:30"
    raise ValueError(f"row {row:,} of {name!r} is {text!r}: {need}")


def examples(
    labels: ArrayLike, pool: ArrayLike | None = None, classes: int | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> LabelledExamples:  # fmt: skip
    """The pool of examples that these describe; see ``Partitioner.split``."""
    values = np.asarray(labels, np.int64)
    positions = np.arange(len(values)) if pool is None else np.asarray(pool, np.int64)
    return LabelledExamples(values, positions, classes or int(values.max()) + 1, columns or {})


@dataclass(frozen=True, eq=False)
class Partition:
    """Which examples each client holds: one array of positions, client after client.

    flat: int64 [examples], positions in the split. sizes: int64 [clients], how many of them are
    each client's. side: arrays [examples] of per-example information (a rotation angle, ...), by
    name. names: what the clients are called, all differently; () where they have numbers only. So a
    table is as large as what clients hold, however unequal they are.
    """

    flat: Ints
    sizes: Ints
    side: dict[str, Ints] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.names and not len({*self.names}) == len(self.names) == len(self.sizes):
            told = f"{len({*self.names}):,} different names for {len(self.sizes):,} clients"
            raise ValueError(f"every client must have a name of its own, or none has: {told}")

    @classmethod
    def from_lists(cls, lists: Iterable[ArrayLike]) -> Partition:
        """A partition from one list of positions per client, their order kept."""
        rows = [whole_numbers("positions", row).reshape(-1) for row in lists]
        sizes = np.array([len(row) for row in rows], np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *rows]), sizes)

    @classmethod
    def from_owners(
        cls, positions: ArrayLike, owners: ArrayLike, clients: int, names: tuple[str, ...] = ()
    ) -> Partition:
        """A partition from who owns each position, int [n] both; rows come out sorted.

        So they are kind to memory-mapped features. ValueError for an owner that there is not.
        """
        held, who = whole_numbers("positions", positions), whole_numbers("owners", owners)
        if held.shape != who.shape:
            raise ValueError(f"there are {held.size:,} positions, and owners of {who.size:,}")
        for place in np.flatnonzero((who < 0) | (who >= clients)):
            wrong = f"position {held[place]:,} is owned by client {who[place]}: clients are 0 to"
            raise ValueError(f"{wrong} {clients - 1}; leave out what is nobody's")
        sizes = np.bincount(who, minlength=clients)
        return cls(held[np.lexsort((held, who))], sizes, names=names)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @cached_property
    def starts(self) -> Ints:
        """Where each client's examples begin in `flat`, and the end, int64 [clients + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def owners(self) -> Ints:
        """Whose each example is, int64 [examples]."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def client(self, i: int) -> Ints:
        """The positions that client i holds, int64 [sizes[i]]."""
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def only(self, chosen: NDArray[np.bool_]) -> Partition:
        """The partition with the chosen examples only, bool [examples]; rows come out sorted."""
        return self.from_owners(self.flat[chosen], self.owners[chosen], self.clients, self.names)

    def counts(self, labels: ArrayLike, classes: int) -> Ints:
        """How many examples of each class each client holds, int64 [clients, classes]."""
        cell = self.owners * classes + np.asarray(labels)[self.flat]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def shares(self, labels: ArrayLike, classes: int) -> Floats:
        """Label shares of each client, float64 [clients, classes]; zeros for an empty client."""
        return self.counts(labels, classes) / np.maximum(self.sizes, 1)[:, None]


def whole_numbers(what: str, given: ArrayLike) -> Ints:
    """Numbers as int64; TypeError for others: a mask would become the positions 0 and 1."""
    numbers = np.asarray(given)
    if numbers.size and numbers.dtype.kind in "bfc":
        hint = ", of a mask np.flatnonzero" if numbers.dtype.kind == "b" else ""
        raise TypeError(f"{what} must be whole numbers{hint}, got {numbers.dtype}")
    return numbers.astype(np.int64)


def require_at_least(what: str, needed: int, available: int) -> None:
    """ValueError, with the numbers, unless as many are available as are needed."""
    if needed > available:
        raise ValueError(f"{what}: {needed:,} needed, but only {available:,} are available")


def per_client(clients: int, size: int | None, available: int, what: str = "examples") -> int:
    """The size of each client, an even share when None; ValueError if too few are available."""
    each = max(1, available // clients) if size is None else size
    require_at_least(f"{clients:,} clients x {each:,} {what}", clients * each, available)
    return each


def generator_of(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of its own for each seed, purpose and class or client."""
    spawn_key = (zlib.crc32(purpose.encode()), *(int(k) for k in key))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def generators_of(seed: int, purpose: str, keys: Ints) -> Iterator[np.random.Generator]:
    """`generator_of` of each of many keys, int64 [n]."""
    return (generator_of(seed, purpose, key) for key in keys.tolist())


def stacks_of(pool: LabelledExamples, seed: int, purpose: str) -> list[Ints]:
    """The pool's positions class by class, each class shuffled by its own generator."""
    stacks = enumerate(pool.indices_by_class())
    return [generator_of(seed, purpose, label).permutation(stack) for label, stack in stacks]


def draw_labels(generator: np.random.Generator, alpha: float, left: Ints, size: int) -> Ints:
    """Class counts of `size` draws from p ~ Dir(alpha) where class c has left[c] examples.

    Drawing in bulk, clipping at what is left and drawing the rest from the renormalised p has
    the distribution of drawing one example at a time.
    """
    counts = np.zeros_like(left)
    shares = draw_shares(generator, alpha, len(left))
    while missing := size - int(counts.sum()):
        free = np.flatnonzero(left > counts)
        if not shares[free].sum() > 0:
            # All mass was on classes that ran out. A renormalised part of a Dirichlet vector is
            # itself Dirichlet, so what underflowed can be drawn afresh.
            shares[free] = draw_shares(generator, alpha, len(free))
        counts[free] += generator.multinomial(missing, shares[free] / shares[free].sum())
        counts = np.minimum(counts, left)
    return counts


def draw_shares(generator: np.random.Generator, alpha: float, kinds: int) -> Floats:
    """One draw of Dir(alpha) over so many kinds, [kinds]."""
    return generator.dirichlet(np.full(kinds, alpha))


def apportion(weights: ArrayLike, total: int) -> Ints:
    """Whole numbers that sum to `total`, in proportion to weights, by largest remainder."""
    quota = np.asarray(weights, np.float64)
    quota = quota / (quota.sum() or 1.0) * total
    counts = np.floor(quota).astype(np.int64)
    largest = np.argsort(counts - quota, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return counts


def whole_part(number: float) -> int:
    """The floor of a share of a count: 29 of 0.58 * 100 / 2, which rounding leaves just short."""
    return math.floor(number + 1e-9)


def redraw(draw: Callable[[], tuple[int, Drawn]], least: int, what: str) -> Drawn:
    """The first draw whose smallest client, told before it, has `least` examples.

    what: what is tried, for the ValueError after 1,000 tries.
    """
    nearest = 0
    for _ in range(TRIES):
        smallest, drawn = draw()
        if smallest >= least:
            return drawn
        nearest = max(nearest, smallest)
    raise ValueError(
        f"in {TRIES:,} tries to {what}, the smallest client had {nearest:,} at most, but should "
        f"have {least:,}; ask for fewer clients, a smaller least or a larger alpha"
    )


def take_first(stacks: list[Ints], counts: Ints, why: str = "") -> list[Ints]:
    """So many of the first of each class's examples; ValueError where a class has fewer."""
    for label, (stack, n) in enumerate(zip(stacks, counts, strict=True)):
        require_at_least(f"examples of class {label} {why}", int(n), len(stack))
    return [stack[:n] for stack, n in zip(stacks, counts, strict=True)]


def assign_in_turn(
    pool: LabelledExamples, seed: int, names: tuple[str, str], counts: Ints,
    draw: Callable[[int, np.random.Generator, Ints], Ints],
) -> Partition:  # fmt: skip
    """Client after client gets draw(client, its generator, left) of each class.

    That is on top of its row of counts, [clients, classes]. left: [classes], how many examples
    nobody has yet. names: the purposes of a shuffle of every class, and of a client's generator.
    """
    stacks = stacks_of(pool, seed, names[0])
    take_first(stacks, counts.sum(0), "for all clients")
    left = np.array([len(stack) for stack in stacks], np.int64) - counts.sum(0)
    for client, generator in enumerate(generators_of(seed, names[1], np.arange(len(counts)))):
        drawn = draw(client, generator, left)
        counts[client] += drawn
        left = left - drawn
    taken = take_first(stacks, counts.sum(0))
    owners = [np.repeat(np.arange(len(counts)), column) for column in counts.T]
    return Partition.from_owners(np.concatenate(taken), np.concatenate(owners), len(counts))


def held_of(n: int, share: float) -> int:
    """How many of n examples are held out: max(1, floor((1 - share) n)) are kept."""
    return n - min(max(1, whole_part((1 - share) * n)), n)


def cut_rows(
    whole: Partition, share: float, generators: Iterable[np.random.Generator | RandomState]
) -> tuple[Partition, Partition]:
    """(kept, held): of each row, the first entries in an order that its generator draws are held.

    How many, `held_of` says.
    """
    held = np.zeros(len(whole.flat), bool)
    each = zip(whole.starts.tolist(), whole.sizes.tolist(), generators, strict=False)
    for start, n, generator in each:
        held[start + generator.permutation(n)[: held_of(n, share)]] = True
    return whole.only(~held), whole.only(held)


def cut_groups(
    whole: Partition,
    share: float,
    groups: Ints,
    times: Ints | None,
    generators: Iterable[np.random.Generator],
) -> tuple[Partition, Partition]:
    """(kept, held): of each row whole groups are held, as near to `held_of` examples as they come.

    groups: the number of each example's; times: when it is from, [N] both. The groups of a row come
    in the order that its generator draws, those larger than all that is to be held last; with times
    those that begin last come first, and those that begin together are one. Where a row has two
    groups, one at least is held and one kept. A group that several rows share is held in all of
    them or in none, as the first of them has it.
    """
    held = np.full(groups.max(initial=-1) + 1, -1)  # 1 held, 0 kept, -1 not known yet
    each = zip(whole.starts.tolist(), whole.sizes.tolist(), generators, strict=False)
    for start, n, generator in each:
        mine, wanted = whole.flat[start : start + n], held_of(n, share)
        those, which, sizes = np.unique(groups[mine], return_inverse=True, return_counts=True)
        if times is None:
            order = np.zeros_like(those)
            late = np.lexsort((generator.permutation(len(those)), sizes * (sizes > wanted)))
            order[late] = np.arange(len(those))
        else:
            begins = np.full(len(those), times.max(initial=0))
            np.minimum.at(begins, which, times[mine])
            order = -begins
        known = held[those]
        free, taken = known < 0, int(sizes[known > 0].sum())
        turns, turn = np.unique(order[free], return_inverse=True)
        sums = np.cumsum([taken, *np.bincount(turn, sizes[free], len(turns))])
        first, last = int(wanted > 0 and not taken), len(turns) - (not (known == 0).any())
        some = sums[first : last + 1]
        many = first + np.abs(some - wanted).argmin() if len(some) else 0
        held[those[free]] = turn < many
    out = held[groups[whole.flat]] > 0
    return whole.only(~out), whole.only(out)


def halves(whole: Partition, share: float, seed: int, purpose: str) -> tuple[Partition, Partition]:
    """Each client's examples divided by a generator of its own; see `cut_rows`."""
    return cut_rows(whole, share, generators_of(seed, purpose, np.arange(whole.clients)))


def ranks(
    whole: Partition, labels: Ints, generators: Iterable[np.random.Generator]
) -> tuple[Ints, Ints]:
    """Each example's rank among those of its client and class, and how many these are, [examples].

    A client's generator draws the order in which they are ranked, from 0. labels: [N].
    """
    turn = np.zeros_like(whole.flat)
    each = zip(whole.starts.tolist(), whole.sizes.tolist(), generators, strict=False)
    for start, n, generator in each:
        turn[start + generator.permutation(n)] = np.arange(n)
    of = whole.owners * (labels.max(initial=0) + 1) + labels[whole.flat]
    _, kind, counts = np.unique(of, return_inverse=True, return_counts=True)
    first, rank = np.repeat(np.cumsum(counts) - counts, counts), np.zeros_like(turn)
    rank[np.lexsort((turn, kind))] = np.arange(len(turn)) - first
    return rank, counts[kind]


def holdout(labels: ArrayLike, size: int, seed: int) -> tuple[Ints, Ints]:
    """Set `size` examples aside, class by class in proportion: (kept, held), both sorted.

    labels: [N]; the results are positions in 0..N-1 that together are all of them. Class counts
    of `held` are the exact proportions rounded by largest remainder. ValueError unless
    size < N.
    """
    pool = examples(labels)
    require_at_least(f"examples to set {size:,} aside and keep one", size + 1, len(pool.labels))
    counts = apportion(np.bincount(pool.labels), size)
    stacks = stacks_of(pool, seed, "holdout")
    held = np.sort(np.concatenate(take_first(stacks, counts)))
    return np.setdiff1d(pool.positions, held, assume_unique=True), held


def balanced(labels: ArrayLike, size: int, seed: int) -> Ints:
    """Draw a test set with as many examples of each class: positions, sorted.

    labels: [N]. Of C classes each gives floor(size / C). ValueError if one has too few.
    """
    pool = examples(labels)
    require_at_least("examples for one of each class", pool.classes, size)
    counts = np.full(pool.classes, size // pool.classes)
    stacks = stacks_of(pool, seed, "balanced")
    return np.sort(np.concatenate(take_first(stacks, counts, f"for {size:,} balanced ones")))


def matched(
    labels: ArrayLike, shares: Floats, *, size: int, seed: int, pool: ArrayLike | None = None
) -> Partition:
    """Give each client `size` examples of another split, in the label shares it trains on.

    labels: [N] of the other split; shares: [clients, C], label shares or counts (rows are
    normalised); pool: positions that may be used. Class counts are the shares times `size`
    rounded by largest remainder. Without replacement within a client; different clients may hold
    the same example. A client without examples has none to mirror. A client's draw depends on
    (seed, its number) only. ValueError when a class has fewer examples than a client needs.
    """
    stacks = examples(labels, pool, shares.shape[1]).indices_by_class()
    rows, generators = [], generators_of(seed, "mirrored", np.arange(len(shares)))
    for client, (weights, generator) in enumerate(zip(shares, generators, strict=True)):
        counts, row = apportion(weights, size if weights.any() else 0), [stacks[0][:0]]
        for label in np.flatnonzero(counts).tolist():
            stack, n = stacks[label], int(counts[label])
            what = f"examples of class {label} to mirror client {client} with size {size:,}"
            require_at_least(what, n, len(stack))
            row.append(generator.choice(stack, n, replace=False, shuffle=False))
        rows.append(np.sort(np.concatenate(row)))
    return Partition.from_lists(rows)
