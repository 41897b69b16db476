"""Samplers: labels in, a partition out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.chance import (
    apportion,
    concentration_of,
    deal,
    draw_labels,
    draw_shares,
    generator_of,
    stacks_of,
)
from fedlib.partition.checks import Ints, enough, equal_size, examples, require, whole
from fedlib.partition.table import Partition


def holdout(labels: ArrayLike, size: int, seed: int) -> tuple[Ints, Ints]:
    """Set `size` examples aside, class by class in proportion: (kept, held), both sorted.

    labels: [N]; the results are positions in 0..N-1 that together are all of them. Class counts
    of `held` are the exact proportions rounded by largest remainder. ValueError unless
    0 <= size < N.
    """
    pool = examples(labels, None, None)
    total = len(pool.labels)
    if whole("size", size, 0) >= total:
        raise ValueError(f"size must be below the {total:,} examples there are, not {size:,}")
    counts = apportion(np.bincount(pool.labels), size)
    stacks = stacks_of(pool, seed, "holdout")
    held = np.sort(np.concatenate([stack[:n] for stack, n in zip(stacks, counts, strict=True)]))
    return np.setdiff1d(pool.positions, held, assume_unique=True), held


def balanced(labels: ArrayLike, size: int, seed: int) -> Ints:
    """Draw a test set with as many examples of each class: positions, sorted.

    labels: [N]. Of C classes each gives floor(size / C). ValueError if one has too few.
    """
    pool = examples(labels, None, None)
    each = whole("size", size, 1) // pool.classes
    stacks = stacks_of(pool, seed, "balanced")
    fewest = min(len(stack) for stack in stacks)
    if not 1 <= each <= fewest:
        raise ValueError(
            f"{size:,} balanced examples need {each:,} of each of {pool.classes} classes; "
            f"the smallest class has {fewest:,}"
        )
    return np.sort(np.concatenate([stack[:each] for stack in stacks]))


def iid(
    labels: ArrayLike, *, clients: int, size: int | None = None, seed: int,
    pool: ArrayLike | None = None,
) -> Partition:  # fmt: skip
    """Deal shuffled examples to clients, `size` each (all of them, evenly, when None)."""
    positions = examples(labels, pool, None).positions
    size = equal_size(clients, size, len(positions))
    dealt = generator_of(seed, "iid").permutation(positions)[: clients * size]
    return equal_rows(dealt.reshape(clients, size))


def dirichlet(
    labels: ArrayLike, *, clients: int, alpha: float, size: int | None = None, seed: int,
    pool: ArrayLike | None = None, classes: int | None = None, prior: ArrayLike | None = None,
    size_alpha: float | None = None,
) -> Partition:  # fmt: skip
    """Give each client a label distribution p_s ~ Dir(alpha * prior), and examples drawn from it.

    labels: [N]; pool: the positions that may be dealt (all when None); classes: C (highest label
    + 1 when None); prior: [C] non-negative, 1 for every class when None. Hsu et al. write
    alpha * prior with a prior that sums to one; FedMix's Dir(1.0) is read as 1 per class.
    Client after client draws `size` labels (floor(len(pool) / clients) when None) and takes
    unused examples of them; a class that has run out is removed and p_s renormalised. Rows are
    disjoint, sorted and exactly `size` long. With size_alpha, as many examples in all are shared
    out unequally: sizes in proportion to one draw of Dir(size_alpha) over the clients, at least 1
    each. ValueError for impossible requests.

    Source: Hsu, Qi and Brown (2019), arXiv:1909.06335, section 3; unequal sizes: 001's code.
    """
    given = examples(labels, pool, classes)
    each = equal_size(clients, size, len(given.positions))
    concentration = concentration_of(alpha, prior, given.classes)
    stacks = stacks_of(given, seed, "dirichlet examples")
    left = np.array([len(stack) for stack in stacks], np.int64) * (concentration > 0)
    require(clients, each, int(left.sum()), "examples of classes with a positive prior")
    sizes = np.full(clients, each)
    if size_alpha is not None:
        total = int(left.sum()) if size is None else clients * each
        generator = generator_of(seed, "dirichlet sizes")
        spread = draw_shares(generator, concentration_of(size_alpha, None, clients))
        sizes = 1 + apportion(spread, total - clients)
    counts = np.zeros((clients, given.classes), np.int64)
    for client in range(clients):
        generator = generator_of(seed, "dirichlet shares", client)
        counts[client] = draw_labels(generator, concentration, left, int(sizes[client]))
        left = left - counts[client]
    return deal(stacks, counts)


def mirrored(
    labels: ArrayLike, shares: ArrayLike, *, size: int, seed: int,
    pool: ArrayLike | None = None, clients: Sequence[int] | None = None,
) -> Partition:  # fmt: skip
    """Give each client `size` examples of another split, in the label shares it trains on.

    labels: [N] of the other split; shares: [clients, C], label shares or counts (rows are
    normalised); pool: positions that may be used. Class counts are the shares times `size`
    rounded by largest remainder. Without replacement within a client; different clients may hold
    the same example. A client's draw depends on (seed, its name) only: `clients` names the rows,
    0..clients-1 when None, so a subset keeps its draws under its old names. ValueError when a
    class has fewer examples than a client needs.
    """
    wanted = np.asarray(shares, np.float64)
    if wanted.ndim != 2 or not np.all(np.isfinite(wanted)) or np.any(wanted < 0):
        raise ValueError("shares must be [clients, classes] of finite numbers >= 0")
    if np.any(wanted.sum(1) <= 0):
        raise ValueError(f"client {np.argmin(wanted.sum(1))} has no label shares to mirror")
    names = range(len(wanted)) if clients is None else clients
    if len(names) != len(wanted):
        raise ValueError(f"{len(names)} client names for {len(wanted)} rows of shares")
    whole("size", size, 1)
    stacks = examples(labels, pool, wanted.shape[1]).stacks()
    counts = np.array([apportion(row, size) for row in wanted]).reshape(wanted.shape)
    enough(counts, stacks, size, names)
    index = np.empty((len(wanted), size), np.int64)
    for row, name in enumerate(names):
        generator = generator_of(seed, "mirrored", name)
        drawn = [
            generator.choice(stack, n, replace=False, shuffle=False)
            for stack, n in zip(stacks, counts[row], strict=True)
            if n
        ]
        index[row] = np.concatenate(drawn)
    return equal_rows(index)


def equal_rows(index: Ints) -> Partition:
    """A partition of equal sizes; rows are sorted, which is kind to memory-mapped features."""
    return Partition(np.sort(index, 1), np.full(len(index), index.shape[1], np.int64))
