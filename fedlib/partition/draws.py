"""Samplers: labels in, a partition out.

Every draw comes from a generator keyed by (seed, purpose, class or client), so that no draw
depends on what else was drawn, and nothing touches NumPy's global generator.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.checks import Floats, Ints, enough, equal_size, examples, positive, whole
from fedlib.partition.table import Partition


def holdout(labels: ArrayLike, size: int, seed: int) -> tuple[Ints, Ints]:
    """Set `size` examples aside, class by class in proportion: (kept, held), both sorted.

    labels: [N]; the results are positions in 0..N-1 that together are all of them. Class counts
    of `held` are the exact proportions rounded by largest remainder. ValueError unless
    0 <= size < N.
    """
    values, pool, classes = examples(labels, None, None)
    whole("size", size, 0)
    if size >= len(values):
        raise ValueError(f"size must be below the {len(values):,} examples there are, not {size:,}")
    counts = _apportion(np.bincount(values, minlength=classes), size)
    stacks = _stacks(values, pool, classes, seed, "holdout")
    held = np.sort(np.concatenate([stack[:n] for stack, n in zip(stacks, counts, strict=True)]))
    return np.setdiff1d(pool, held, assume_unique=True), held


def iid(
    labels: ArrayLike, *, clients: int, size: int | None = None, seed: int,
    pool: ArrayLike | None = None,
) -> Partition:  # fmt: skip
    """Deal shuffled examples to clients, `size` each (all of them, evenly, when None)."""
    _, positions, _ = examples(labels, pool, None)
    size = equal_size(clients, size, len(positions))
    dealt = _generator(seed, "iid").permutation(positions)[: clients * size]
    return _equal_rows(dealt.reshape(clients, size))


def dirichlet(
    labels: ArrayLike, *, clients: int, alpha: float, size: int | None = None, seed: int,
    pool: ArrayLike | None = None, classes: int | None = None, prior: ArrayLike | None = None,
) -> Partition:  # fmt: skip
    """Give each client a label distribution p_s ~ Dir(alpha * prior), and examples drawn from it.

    labels: [N]; pool: the positions that may be dealt (all when None); classes: C (highest label
    + 1 when None); prior: [C] non-negative, 1 for every class when None. Hsu et al. write
    alpha * prior with a prior that sums to one; FedMix's Dir(1.0) is read as 1 per class.
    Client after client draws `size` labels (floor(len(pool) / clients) when None) and takes
    unused examples of them; a class that has run out is removed and p_s renormalised. Rows are
    disjoint, sorted and exactly `size` long. ValueError for impossible requests.

    Source: Hsu, Qi and Brown (2019), arXiv:1909.06335, section 3.
    """
    values, positions, classes = examples(labels, pool, classes)
    size = equal_size(clients, size, len(positions))
    concentration = _concentration(alpha, prior, classes)
    stacks = _stacks(values, positions, classes, seed, "dirichlet examples")
    left = np.array([len(stack) for stack in stacks], np.int64) * (concentration > 0)
    if clients * size > left.sum():
        raise ValueError(
            f"{clients:,} clients x {size:,} examples = {clients * size:,}, but the classes with a "
            f"positive prior have only {left.sum():,}"
        )
    counts = np.zeros((clients, classes), np.int64)
    for client in range(clients):
        generator = _generator(seed, "dirichlet shares", client)
        counts[client] = _draw_labels(generator, concentration, left, size)
        left = left - counts[client]
    used = counts.sum(0)
    dealt = np.concatenate([stack[:n] for stack, n in zip(stacks, used, strict=True)])
    owner = np.concatenate([np.repeat(np.arange(clients), column) for column in counts.T])
    return _equal_rows(dealt[np.argsort(owner, kind="stable")].reshape(clients, size))


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
    values, positions, classes = examples(labels, pool, wanted.shape[1])
    stacks = [positions[values[positions] == label] for label in range(classes)]
    counts = np.array([_apportion(row, size) for row in wanted]).reshape(-1, classes)
    enough(counts, stacks, size, names)
    index = np.empty((len(wanted), size), np.int64)
    for row, name in enumerate(names):
        generator = _generator(seed, "mirrored", name)
        drawn = [
            generator.choice(stack, n, replace=False, shuffle=False)
            for stack, n in zip(stacks, counts[row], strict=True)
            if n
        ]
        index[row] = np.concatenate(drawn)
    return _equal_rows(index)


def _concentration(alpha: float, prior: ArrayLike | None, classes: int) -> Floats:
    """alpha * prior, [classes]."""
    weights = np.ones(classes) if prior is None else np.asarray(prior, np.float64)
    if weights.shape != (classes,) or not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError(f"prior must be {classes} finite numbers >= 0, one per class")
    if not weights.sum() > 0:
        raise ValueError("prior must be positive for at least one class")
    # Beyond 1e12 the shares equal their mean to six digits, and gamma draws would overflow.
    return min(positive("alpha", alpha), 1e12) * weights


def _stacks(values: Ints, pool: Ints, classes: int, seed: int, purpose: str) -> list[Ints]:
    """The pool's positions class by class, each class shuffled by its own generator."""
    return [
        _generator(seed, purpose, label).permutation(pool[values[pool] == label])
        for label in range(classes)
    ]


def _draw_labels(
    generator: np.random.Generator, concentration: Floats, left: Ints, size: int
) -> Ints:
    """Class counts of `size` draws from p ~ Dir(concentration) where class c has left[c] examples.

    Drawing in bulk, clipping at what is left and drawing the rest from the renormalised p has
    the distribution of drawing one example at a time.
    """
    counts = np.zeros_like(left)
    shares = _draw_shares(generator, concentration)
    while missing := size - int(counts.sum()):
        free = np.flatnonzero(left > counts)
        if not shares[free].sum() > 0:
            # All mass was on classes that ran out. A renormalised part of a Dirichlet vector is
            # itself Dirichlet, so what underflowed can be drawn afresh.
            shares[free] = _draw_shares(generator, concentration[free])
        counts[free] += generator.multinomial(missing, shares[free] / shares[free].sum())
        counts = np.minimum(counts, left)
    return counts


def _draw_shares(generator: np.random.Generator, concentration: Floats) -> Floats:
    """One draw of Dir(concentration), zero where the concentration is zero."""
    shares = np.zeros_like(concentration)
    possible = np.flatnonzero(concentration)
    shares[possible] = generator.dirichlet(concentration[possible])
    if not shares.sum() > 0.5:  # the limit of a vanishing concentration is a single class
        weight = concentration[possible] / concentration.max()
        shares[:] = 0
        shares[generator.choice(possible, p=weight / weight.sum())] = 1
    return shares


def _apportion(weights: ArrayLike, total: int) -> Ints:
    """Whole numbers that sum to `total`, in proportion to weights, by largest remainder."""
    quota = np.asarray(weights, np.float64)
    quota = quota / quota.sum() * total
    counts = np.floor(quota).astype(np.int64)
    largest = np.argsort(counts - quota, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return counts


def _equal_rows(index: Ints) -> Partition:
    """A partition of equal sizes; rows are sorted, which is kind to memory-mapped features."""
    return Partition(np.sort(index, 1), np.full(len(index), index.shape[1], np.int64))


def _generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of its own for each seed, purpose and class or client."""
    whole("seed", seed, 0)
    spawn_key = (zlib.crc32(purpose.encode()), *(int(k) for k in key))
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=spawn_key))
