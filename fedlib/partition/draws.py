"""Draws that no request makes: what is set aside, a set of every class alike, mirrored twins."""

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.chance import apportion, generator_of, stacks_of
from fedlib.partition.checks import Ints, examples, whole
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


def mirrored(
    labels: ArrayLike, shares: ArrayLike, *, size: int, seed: int, pool: ArrayLike | None = None
) -> Partition:
    """Give each client `size` examples of another split, in the label shares it trains on.

    labels: [N] of the other split; shares: [clients, C], label shares or counts (rows are
    normalised); pool: positions that may be used. Class counts are the shares times `size`
    rounded by largest remainder. Without replacement within a client; different clients may hold
    the same example. A client's draw depends on (seed, its number) only. ValueError when a class
    has fewer examples than a client needs.
    """
    wanted = np.asarray(shares, np.float64)
    if wanted.ndim != 2 or not np.all(np.isfinite(wanted)) or np.any(wanted < 0):
        raise ValueError("shares must be [clients, classes] of finite numbers >= 0")
    if np.any(wanted.sum(1) <= 0):
        raise ValueError(f"client {np.argmin(wanted.sum(1))} has no label shares to mirror")
    whole("size", size, 1)
    stacks = examples(labels, pool, wanted.shape[1]).stacks()
    counts = np.array([apportion(row, size) for row in wanted]).reshape(wanted.shape)
    _enough(counts, stacks, size)
    index = np.empty((len(wanted), size), np.int64)
    for client, row in enumerate(counts):
        generator = generator_of(seed, "mirrored", client)
        drawn = [
            generator.choice(stack, n, replace=False, shuffle=False)
            for stack, n in zip(stacks, row, strict=True)
            if n
        ]
        index[client] = np.concatenate(drawn)
    return Partition.of_equal(index)


def _enough(counts: Ints, stacks: list[Ints], size: int) -> None:
    """ValueError for the client whose need exceeds the examples of a class by most."""
    available = np.array([len(stack) for stack in stacks])
    lack = counts - available
    if lack.size and lack.max() > 0:
        client, label = np.unravel_index(np.argmax(lack), lack.shape)
        raise ValueError(
            f"client {client} needs {counts[client, label]:,} examples of class {label} to "
            f"mirror its shares with size {size:,}, but only {available[label]:,} are available; "
            "ask for a smaller size"
        )
