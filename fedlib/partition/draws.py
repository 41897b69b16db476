"""Labelled examples, partitions of them, and the draws that several partitioners share.

Every generator is keyed by (seed, purpose, class or client). No draw depends on what else was
drawn, and NumPy's global generator is not used.
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
    """The examples that may be assigned to clients.

    Args:
        labels: labels of the whole split, int64 ``[N]``.
        positions: positions in it of the n examples that may be assigned, int64 ``[n]``.
        classes: the number of classes.
        columns: other columns of the split, ``[N]`` by name.
    """

    labels: Ints
    positions: Ints
    classes: int
    columns: Mapping[str, ArrayLike]

    def indices_by_class(self) -> list[Ints]:
        """Return the positions of each class, in their order."""
        held = self.labels[self.positions]
        return [self.positions[held == label] for label in range(self.classes)]

    def column(self, name: str, asked: str = "") -> NDArray[Any]:
        """Return a column of the examples that may be assigned, ``[n]``.

        Args:
            name: the name of the column.
            asked: a question that the error message for a missing value contains, such as "whose
                is it". If given, missing values are an error.

        Raises:
            ValueError: if there is no such column, or a value is missing.
        """
        check_choice("column", name, self.columns)
        values = np.asarray(self.columns[name])[self.positions]
        for row in self.positions[_lacking(values)] if asked else ():
            raise ValueError(f"row {row:,} of {name!r} holds no value: {asked}?")
        return values

    def times(self, name: str) -> Ints:
        """Return the rank of each example's time, int64 ``[n]``.

        Args:
            name: a column of numbers, or of dates as text in ISO format.

        Raises:
            ValueError: if there is no such column, or a value is missing or no time.
        """
        values = self.column(name, "when is it from")
        if values.dtype.kind == "U":  # as text, 10 would sort before 9
            try:
                values = values.astype(float)
            except ValueError:
                rows = zip(self.positions.tolist(), values.tolist(), strict=True)
                values = np.array([_instant(name, row, text) for row, text in rows])
        return np.unique(values, return_inverse=True)[1]


def _lacking(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are missing: NaN, or blank text."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.char.strip(values) == "" if values.dtype.kind == "U" else np.zeros(len(values), bool)


def _instant(name: str, row: int, text: str) -> float:
    """Return the seconds since 1970 of a date, in UTC unless it has a time zone."""
    for day in (text.strip(), f"{text.strip()}-01"):  # a month stands for its first day
        with suppress(ValueError):
            when = datetime.fromisoformat(day)
            return when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    need = "times must be numbers, or dates as 2021-04, 2021-04-03 or 2021-04-03 09:30"
    raise ValueError(f"row {row:,} of {name!r} is {text!r}: {need}")


def examples(
    labels: ArrayLike, pool: ArrayLike | None = None, classes: int | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
) -> LabelledExamples:  # fmt: skip
    """Return the examples that these arguments describe; see ``Partitioner.split``."""
    values = np.asarray(labels, np.int64)
    positions = np.arange(len(values)) if pool is None else np.asarray(pool, np.int64)
    return LabelledExamples(values, positions, classes or int(values.max()) + 1, columns or {})


@dataclass(frozen=True, eq=False)
class Partition:
    """Which examples each client holds.

    Args:
        flat: positions in the split, client after client, int64 ``[examples]``.
        sizes: number of examples of each client, int64 ``[clients]``.
        side: side information of each example, such as a rotation angle, ``[examples]`` by name.
        names: distinct names of the clients, or () if they only have numbers.

    Raises:
        ValueError: if names are missing or repeated.
    """

    flat: Ints
    sizes: Ints
    side: dict[str, Ints] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.names and not len({*self.names}) == len(self.names) == len(self.sizes):
            told = f"{len({*self.names}):,} different names for {len(self.sizes):,} clients"
            raise ValueError(f"clients must all have different names, or none: got {told}")

    @classmethod
    def from_lists(cls, lists: Iterable[ArrayLike]) -> Partition:
        """Return a partition from one list of positions per client, in the order given.

        Args:
            lists: positions of each client, int64.
        """
        rows = [whole_numbers("positions", row).reshape(-1) for row in lists]
        sizes = np.array([len(row) for row in rows], np.int64)
        return cls(np.concatenate([np.zeros(0, np.int64), *rows]), sizes)

    @classmethod
    def from_owners(
        cls, positions: ArrayLike, owners: ArrayLike, clients: int, names: tuple[str, ...] = ()
    ) -> Partition:
        """Return a partition from the owner of each position. Each client's positions are sorted.

        Sorted positions make access to memory-mapped features faster.

        Args:
            positions: positions in the split, int64 ``[n]``.
            owners: the client of each of them, int64 ``[n]``.
            clients: the number of clients.
            names: the names of the clients. Default: none.

        Raises:
            ValueError: for an owner outside of 0 to ``clients`` - 1.
        """
        held, who = whole_numbers("positions", positions), whole_numbers("owners", owners)
        if held.shape != who.shape:
            raise ValueError(f"there are {held.size:,} positions, but {who.size:,} owners")
        for place in np.flatnonzero((who < 0) | (who >= clients)):
            wrong = f"position {held[place]:,} is owned by client {who[place]}: clients are 0 to"
            raise ValueError(f"{wrong} {clients - 1}; leave out examples without an owner")
        sizes = np.bincount(who, minlength=clients)
        return cls(held[np.lexsort((held, who))], sizes, names=names)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    @cached_property
    def starts(self) -> Ints:
        """The start of each client's examples in ``flat``, and the end, int64 ``[clients + 1]``."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def owners(self) -> Ints:
        """The client of each example, int64 ``[examples]``."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def client(self, i: int) -> Ints:
        """Return the positions that client i holds, int64 ``[sizes[i]]``."""
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def only(self, chosen: NDArray[np.bool_]) -> Partition:
        """Return the partition with some of its examples; positions are sorted.

        Side information is dropped.

        Args:
            chosen: which examples to keep, bool ``[examples]``.
        """
        return self.from_owners(self.flat[chosen], self.owners[chosen], self.clients, self.names)

    def counts(self, labels: ArrayLike, classes: int) -> Ints:
        """Return each client's number of examples per class, int64 ``[clients, classes]``."""
        cell = self.owners * classes + np.asarray(labels)[self.flat]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)

    def shares(self, labels: ArrayLike, classes: int) -> Floats:
        """Return each client's label shares, float64 ``[clients, classes]``; 0 without examples."""
        return self.counts(labels, classes) / np.maximum(self.sizes, 1)[:, None]


def whole_numbers(what: str, given: ArrayLike) -> Ints:
    """Return numbers as int64.

    Raises:
        TypeError: if they are no integers. A boolean mask would otherwise become positions 0 and 1.
    """
    numbers = np.asarray(given)
    if numbers.size and numbers.dtype.kind in "bfc":
        hint = ", of a mask np.flatnonzero" if numbers.dtype.kind == "b" else ""
        raise TypeError(f"{what} must be whole numbers{hint}, got {numbers.dtype}")
    return numbers.astype(np.int64)


def require_at_least(what: str, needed: int, available: int, advice: str = "") -> None:
    """Raise ValueError, with the numbers, if fewer are available than needed."""
    if needed > available:
        raise ValueError(f"{what}: {needed:,} needed, but only {available:,} are available{advice}")


def per_client(clients: int, size: int | None, available: int, what: str = "examples") -> int:
    """Return the number of examples per client.

    Args:
        clients: the number of clients.
        size: the number of examples per client, None for an even share of those available.
        available: the number of examples available.
        what: what is counted, for the error message.

    Raises:
        ValueError: if too few are available.
    """
    each = max(1, available // clients) if size is None else size
    require_at_least(f"{clients:,} clients x {each:,} {what}", clients * each, available)
    return each


def generator_of(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a generator keyed by seed, purpose and class or client."""
    spawn_key = (zlib.crc32(purpose.encode()), *(int(k) for k in key))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def generators_of(seed: int, purpose: str, keys: Ints) -> Iterator[np.random.Generator]:
    """Yield ``generator_of`` for each of many keys, int64 ``[n]``."""
    return (generator_of(seed, purpose, key) for key in keys.tolist())


def stacks_of(pool: LabelledExamples, seed: int, purpose: str) -> list[Ints]:
    """Return the positions of each class, shuffled by a generator of the class."""
    stacks = enumerate(pool.indices_by_class())
    return [generator_of(seed, purpose, label).permutation(stack) for label, stack in stacks]


def draw_labels(generator: np.random.Generator, alpha: float, left: Ints, size: int) -> Ints:
    """Return class counts of ``size`` draws from p ~ Dir(alpha), without replacement.

    Drawing in bulk, clipping at the examples left and drawing the rest from the renormalised p has
    the same distribution as drawing one example at a time.

    Args:
        generator: the generator.
        alpha: the concentration of the Dirichlet distribution.
        left: number of examples left of each class, int64 ``[classes]``.
        size: the number of draws.
    """
    counts = np.zeros_like(left)
    shares = draw_shares(generator, alpha, len(left))
    while missing := size - int(counts.sum()):
        free = np.flatnonzero(left > counts)
        if not shares[free].sum() > 0:
            # All mass was on exhausted classes. A renormalised part of a Dirichlet vector is
            # itself Dirichlet, so that shares which underflowed can be drawn again.
            shares[free] = draw_shares(generator, alpha, len(free))
        counts[free] += generator.multinomial(missing, shares[free] / shares[free].sum())
        counts = np.minimum(counts, left)
    return counts


def draw_shares(generator: np.random.Generator, alpha: float, kinds: int) -> Floats:
    """Draw once from a symmetric Dirichlet distribution, ``[kinds]``."""
    return generator.dirichlet(np.full(kinds, alpha))


def apportion(weights: ArrayLike, total: int) -> Ints:
    """Return integers that sum to ``total``, proportional to weights by largest remainders."""
    quota = np.asarray(weights, np.float64)
    quota = quota / (quota.sum() or 1.0) * total
    counts = np.floor(quota).astype(np.int64)
    largest = np.argsort(counts - quota, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return counts


def whole_part(number: float) -> int:
    """Return the floor of a number up to rounding errors: 29 for 0.58 * 100 / 2."""
    return math.floor(number + 1e-9)


def redraw(draw: Callable[[], tuple[int, Drawn]], least: int, what: str) -> Drawn:
    """Draw until the smallest client is large enough, at most 1,000 times.

    Args:
        draw: returns the size of the smallest client, and the draw.
        least: the required size.
        what: a description of the draw for the error message.

    Raises:
        ValueError: if no draw succeeds.
    """
    for _ in range(TRIES):
        smallest, drawn = draw()
        if smallest >= least:
            return drawn
    wrong = f"in {TRIES:,} tries to {what}, a client had fewer than {least:,}"
    raise ValueError(f"{wrong}; ask for fewer clients, a smaller least or a larger alpha")


def take_first(stacks: list[Ints], counts: Ints, why: str = "") -> list[Ints]:
    """Return the first ``counts[c]`` examples of each class c.

    Raises:
        ValueError: if a class has fewer.
    """
    for label, (stack, n) in enumerate(zip(stacks, counts, strict=True)):
        require_at_least(f"examples of class {label} {why}", int(n), len(stack))
    return [stack[:n] for stack, n in zip(stacks, counts, strict=True)]


def assign_in_turn(
    pool: LabelledExamples, seed: int, names: tuple[str, str], counts: Ints,
    draw: Callable[[int, np.random.Generator, Ints], Ints],
) -> Partition:  # fmt: skip
    """Assign examples to one client after another.

    Args:
        pool: the examples.
        seed: the seed.
        names: purposes of the generators that shuffle each class, and of those of the clients.
        counts: numbers of examples that clients have in any case, int64 ``[clients, classes]``;
            they are reserved first.
        draw: a function (client, its generator, left) that returns additional counts ``[classes]``,
            where ``left`` ``[classes]`` are the examples not assigned yet.
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
    """Return how many of n examples are held out; max(1, floor((1 - share) n)) are kept."""
    return n - min(max(1, whole_part((1 - share) * n)), n)


def cut_rows(
    whole: Partition, share: float, generators: Iterable[np.random.Generator | RandomState]
) -> tuple[Partition, Partition]:
    """Split each client's examples at random into (kept, held out).

    Args:
        whole: the partition.
        share: the fraction to hold out; see ``held_of``.
        generators: one generator per client.
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
    """Split each client's examples into (kept, held out), without dividing a group.

    The number held out is as near to ``held_of`` as whole groups allow. A client with two or more
    groups has at least one on each side. A group that several clients have is on the same side for
    all of them, chosen by the first.

    Args:
        whole: the partition.
        share: the fraction to hold out.
        groups: the group of each example of the split, int64 ``[N]``.
        times: the time of each example, int64 ``[N]``. Groups that begin last are held out, and
            groups that begin at the same time stay together. None to draw groups at random.
        generators: one generator per client.
    """
    held = np.full(groups.max(initial=-1) + 1, -1)  # 1 held out, 0 kept, -1 not decided yet
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
    """Split each client's examples at random, by a generator per client; see ``cut_rows``."""
    return cut_rows(whole, share, generators_of(seed, purpose, np.arange(whole.clients)))


def ranks(
    whole: Partition, labels: Ints, generators: Iterable[np.random.Generator]
) -> tuple[Ints, Ints]:
    """Return each example's rank in its client and class, and the number of examples there.

    Args:
        whole: the partition.
        labels: labels of the split, int64 ``[N]``.
        generators: one generator per client, which draws the order. Ranks start at 0.

    Returns:
        int64 ``[examples]`` both.
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
    """Split positions 0 to N - 1 into (kept, held out), both sorted, with equal class proportions.

    Args:
        labels: int64 ``[N]``.
        size: the number held out. Class counts are rounded by largest remainders.
        seed: the seed.

    Raises:
        ValueError: if ``size`` is not below N.
    """
    pool = examples(labels)
    require_at_least(f"examples to set {size:,} aside and keep one", size + 1, len(pool.labels))
    counts = apportion(np.bincount(pool.labels), size)
    stacks = stacks_of(pool, seed, "holdout")
    held = np.sort(np.concatenate(take_first(stacks, counts)))
    return np.setdiff1d(pool.positions, held, assume_unique=True), held


def balanced(labels: ArrayLike, size: int, seed: int) -> Ints:
    """Return sorted positions of a class-balanced random subset.

    Args:
        labels: int64 ``[N]``.
        size: the size of the subset; each of C classes has floor(size / C) examples.
        seed: the seed.

    Raises:
        ValueError: if a class has too few examples.
    """
    pool = examples(labels)
    require_at_least("examples for one of each class", pool.classes, size)
    counts = np.full(pool.classes, size // pool.classes)
    stacks = stacks_of(pool, seed, "balanced")
    return np.sort(np.concatenate(take_first(stacks, counts, f"for {size:,} balanced ones")))


def matched(
    labels: ArrayLike, shares: Floats, *, size: int, seed: int, pool: ArrayLike | None = None
) -> Partition:
    """Return a partition of another split in which each client has given label shares.

    Clients draw without replacement, but different clients may hold the same example. The draw of a
    client depends on the seed and its number only.

    Args:
        labels: labels of the other split, int64 ``[N]``.
        shares: label shares or counts of each client, ``[clients, classes]``. A client with only
            zeros gets no examples.
        size: examples per client. Class counts are rounded by largest remainders.
        seed: the seed.
        pool: positions that may be used. Default: all.

    Raises:
        ValueError: if a class has fewer examples than a client needs.
    """
    stacks = examples(labels, pool, shares.shape[1]).indices_by_class()
    rows, generators = [], generators_of(seed, "mirrored", np.arange(len(shares)))
    for client, (weights, generator) in enumerate(zip(shares, generators, strict=True)):
        counts, row = apportion(weights, size if weights.any() else 0), [stacks[0][:0]]
        for label in np.flatnonzero(counts).tolist():
            stack, n = stacks[label], int(counts[label])
            what = f"examples of class {label} to match client {client} with {size:,} examples"
            advice = "; use smaller validation= and test=, or LocalHoldout()"
            require_at_least(what, n, len(stack), advice)
            row.append(generator.choice(stack, n, replace=False, shuffle=False))
        rows.append(np.sort(np.concatenate(row)))
    return Partition.from_lists(rows)
