"""Chance: generators keyed by what they are for, and the draws that several schemes share.

Every generator is keyed by (seed, purpose, class or client), so that no draw depends on what else
was drawn, and nothing touches NumPy's global generator.
"""

import math
import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.checks import Floats, Ints, Pool, whole
from fedlib.partition.table import Partition

TRIES = 1000
Drawn = TypeVar("Drawn")


def generator_of(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of its own for each seed, purpose and class or client."""
    whole("seed", seed, 0)
    spawn_key = (zlib.crc32(purpose.encode()), *(int(k) for k in key))
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=spawn_key))


def stacks_of(pool: Pool, seed: int, purpose: str) -> list[Ints]:
    """The pool's positions class by class, each class shuffled by its own generator."""
    return [
        generator_of(seed, purpose, label).permutation(stack)
        for label, stack in enumerate(pool.stacks())
    ]


def concentration_of(alpha: float, weights: Floats) -> Floats:
    """alpha * weights, [classes] or [clients]."""
    # Beyond 1e12 the shares equal their mean to six digits, and gamma draws would overflow.
    return min(alpha, 1e12) * weights


def draw_labels(
    generator: np.random.Generator, concentration: Floats, left: Ints, size: int
) -> Ints:
    """Class counts of `size` draws from p ~ Dir(concentration) where class c has left[c] examples.

    Drawing in bulk, clipping at what is left and drawing the rest from the renormalised p has
    the distribution of drawing one example at a time.
    """
    counts = np.zeros_like(left)
    shares = draw_shares(generator, concentration)
    while missing := size - int(counts.sum()):
        free = np.flatnonzero(left > counts)
        if not shares[free].sum() > 0:
            # All mass was on classes that ran out. A renormalised part of a Dirichlet vector is
            # itself Dirichlet, so what underflowed can be drawn afresh.
            shares[free] = draw_shares(generator, concentration[free])
        counts[free] += generator.multinomial(missing, shares[free] / shares[free].sum())
        counts = np.minimum(counts, left)
    return counts


def draw_shares(generator: np.random.Generator, concentration: Floats) -> Floats:
    """One draw of Dir(concentration), zero where the concentration is zero."""
    shares = np.zeros_like(concentration)
    possible = np.flatnonzero(concentration)
    shares[possible] = generator.dirichlet(concentration[possible])
    if not shares.sum() > 0.5:  # the limit of a vanishing concentration is a single class
        weight = concentration[possible] / concentration.max()
        shares[:] = 0
        shares[generator.choice(possible, p=weight / weight.sum())] = 1
    return shares


def apportion(weights: ArrayLike, total: int) -> Ints:
    """Whole numbers that sum to `total`, in proportion to weights, by largest remainder."""
    quota = np.asarray(weights, np.float64)
    quota = quota / quota.sum() * total
    counts = np.floor(quota).astype(np.int64)
    largest = np.argsort(counts - quota, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return counts


def whole_part(number: float) -> int:
    """The floor of a share of a count: 29 of 0.58 * 100 / 2, which rounding leaves just short."""
    return math.floor(number + 1e-9)


def redraw(
    draw: Callable[[], Drawn], smallest: Callable[[Drawn], int], least: int, what: str
) -> tuple[Drawn, int]:
    """The first draw whose smallest client has `least` examples, and the number of tries.

    what: what is tried, for the ValueError after 1,000 tries.
    """
    nearest = 0
    for tries in range(1, TRIES + 1):
        drawn = draw()
        if smallest(drawn) >= least:
            return drawn, tries
        nearest = max(nearest, smallest(drawn))
    raise ValueError(
        f"in {TRIES:,} tries to {what}, the smallest client had {nearest:,} at most, but should "
        f"have {least:,}; ask for fewer clients, a smaller least or a larger alpha"
    )


def deal(stacks: list[Ints], counts: Ints) -> Partition:
    """The partition that gives client i counts[i, c] examples of class c, from its stack's top.

    stacks: one array of positions per class; counts: [clients, classes].
    """
    taken = [stack[:n] for stack, n in zip(stacks, counts.sum(0), strict=True)]
    owners = [np.repeat(np.arange(len(counts)), column) for column in counts.T]
    return Partition.from_owners(np.concatenate(taken), np.concatenate(owners), len(counts))
