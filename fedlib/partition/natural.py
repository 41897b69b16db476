"""Partitions that follow something known of the data: a hierarchy of classes, or a writer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedlib.partition.base import Request
from fedlib.partition.chance import (
    concentration_of,
    deal,
    draw_labels,
    generator_of,
    stacks_of,
)
from fedlib.partition.checks import Ints, Pool, require
from fedlib.partition.table import Partition
from fedlib.values import value


@value
class Pachinko(Request):
    """Pachinko allocation: each client draws coarse labels, and of each of them fine labels.

    A client has theta ~ Dir(root_alpha) over the coarse labels and, for each of them, theta_c ~
    Dir(leaf_alpha) over its fine labels. It draws `size` times a coarse label, a fine label of
    it, and an unused example of that. A fine label that has run out is removed and theta_c
    renormalised; a coarse label without fine labels likewise. Rows are disjoint and exactly
    `size` long. coarse: the column with the coarse labels.

    Source: Reddi et al. (2021), arXiv:2003.00295, app. F; 000's CIFAR-100.
    """

    clients: int = 500
    size: int = 100
    root_alpha: float = 0.1
    leaf_alpha: float = 10.0
    coarse: str = "coarse_label"

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError also without the coarse labels, or when a class has two of them."""
        require(self.clients, self.size, len(pool.positions))
        coarse = pool.column(self.coarse)
        families = _families(pool.labels[pool.positions], coarse, self.coarse)
        root = concentration_of(self.root_alpha, np.ones(len(families)))
        leaves = [concentration_of(self.leaf_alpha, np.ones(len(family))) for family in families]
        stacks = stacks_of(pool, seed, "pachinko examples")
        left = np.array([len(stack) for stack in stacks])
        counts = np.zeros((self.clients, pool.classes), np.int64)
        for client in range(self.clients):
            generator = generator_of(seed, "pachinko shares", client)
            # What is left of a coarse label bounds its draws, what is left of a fine label its
            # share of them: which is what removing exhausted labels one by one amounts to.
            room = np.array([left[family].sum() for family in families])
            for c, n in enumerate(draw_labels(generator, root, room, self.size)):
                if n:
                    family = families[c]
                    counts[client, family] = draw_labels(generator, leaves[c], left[family], int(n))
            left = left - counts[client]
        return deal(stacks, counts)


def _families(fine: Ints, coarse: np.ndarray, name: str) -> list[Ints]:
    """The fine labels of each coarse label, in order; ValueError when a fine label has two."""
    above, family = np.unique(coarse, return_inverse=True)
    pairs = np.unique(np.column_stack([fine, family]), axis=0)
    for (label, one), (other, two) in pairwise(pairs):
        if label == other:
            raise ValueError(
                f"class {label} has more than one value in column {name!r}, {above[one]} and "
                f"{above[two]}; its coarse label must be one"
            )
    return [pairs[pairs[:, 1] == c, 0] for c in range(len(above))]


@value
class ByColumn(Request):
    """The natural partition: one client for each distinct value of a column, such as its writer.

    Clients are in the order of their values and hold all of their examples. Values with fewer
    than `least` examples are left out; `clients`, when given, is how many of the others take
    part, drawn at random by the seed of the run.
    """

    column: str = "writer_id"
    clients: int | None = None
    least: int = 1

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError with too few clients."""
        given = pool.column(self.column)
        distinct, who, sizes = np.unique(given, return_inverse=True, return_counts=True)
        chosen = np.flatnonzero(sizes >= self.least)
        wanted = 1 if self.clients is None else self.clients
        if wanted > len(chosen):
            raise ValueError(
                f"{wanted:,} clients are asked for, but of the {len(distinct):,} values of "
                f"{self.column!r} only {len(chosen):,} have {self.least:,} examples or more"
            )
        if self.clients is not None:
            generator = generator_of(seed, "by column")
            chosen = np.sort(generator.choice(chosen, self.clients, replace=False))
        row = np.full(len(distinct), -1)
        row[chosen] = np.arange(len(chosen))
        owner = row[who]
        return Partition.from_owners(pool.positions[owner >= 0], owner[owner >= 0], len(chosen))
