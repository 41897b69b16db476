"""The simple requests for a partition, as values: label skew, none, and quantity skew."""

from __future__ import annotations

import numpy as np

from fedlib.partition.base import Request
from fedlib.partition.chance import (
    apportion,
    concentration_of,
    deal,
    draw_labels,
    draw_shares,
    generator_of,
    redraw,
    stacks_of,
)
from fedlib.partition.checks import Ints, Pool, equal_size, require
from fedlib.partition.table import Partition
from fedlib.values import one_of, value


@value
class Dirichlet(Request):
    """Each client has a label distribution p_s ~ Dir(alpha * prior), and examples drawn from it.

    prior: "symmetric" is 1 for every class, as FedMix's Dir(1.0) is read; "proportional" the class
    shares of the pool, which sum to one (Hsu et al. 2019). Rows are disjoint, sorted and exactly
    `size` long (all of the pool, evenly, when None). With size_alpha, as many examples in all are
    shared out unequally: sizes in proportion to one draw of Dir(size_alpha) over the clients, at
    least 1 each.

    Source: Hsu, Qi and Brown (2019), arXiv:1909.06335, section 3; unequal sizes: 001's code.
    """

    clients: int = 100
    alpha: float = 1.0
    size: int | None = None
    prior: str = "symmetric"
    size_alpha: float | None = None

    def check(self) -> None:
        super().check()
        one_of("prior", self.prior, ("symmetric", "proportional"))

    def deal(self, pool: Pool, seed: int) -> Partition:
        """Client after client draws its labels from p_s, and takes unused examples of them.

        A class that has run out is removed and p_s renormalised.
        """
        total = len(pool.positions)
        each = equal_size(self.clients, self.size, total)
        stacks = stacks_of(pool, seed, "dirichlet examples")
        left = np.array([len(stack) for stack in stacks], np.int64)
        prior = np.ones(pool.classes) if self.prior == "symmetric" else left / total
        concentration = concentration_of(self.alpha, prior)
        counts = np.zeros((self.clients, pool.classes), np.int64)
        for client, size in enumerate(self._sizes(each, total, seed)):
            generator = generator_of(seed, "dirichlet shares", client)
            counts[client] = draw_labels(generator, concentration, left, int(size))
            left = left - counts[client]
        return deal(stacks, counts)

    def _sizes(self, each: int, total: int, seed: int) -> Ints:
        """How many examples each client gets, [clients]."""
        if self.size_alpha is None:
            return np.full(self.clients, each)
        shared = (total if self.size is None else self.clients * each) - self.clients
        spread = concentration_of(self.size_alpha, np.ones(self.clients))
        generator = generator_of(seed, "dirichlet sizes")
        return 1 + apportion(draw_shares(generator, spread), shared)


@value
class IID(Request):
    """Shuffled examples, `size` for each client (all of them, evenly, when None)."""

    clients: int = 100
    size: int | None = None

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError with too few examples."""
        size = equal_size(self.clients, self.size, len(pool.positions))
        dealt = generator_of(seed, "iid").permutation(pool.positions)[: self.clients * size]
        return Partition.of_equal(dealt.reshape(self.clients, size))


@value
class QuantitySkew(Request):
    """The whole pool dealt i.i.d., in unequal amounts: client shares ~ Dir(alpha) over clients.

    The shares are redrawn until every client has at least `least` examples, 1,000 times at most.
    Rows are disjoint and together the pool. Source: Li et al. (2022), arXiv:2102.02079, sec. 4.
    """

    clients: int = 100
    alpha: float = 1.0
    least: int = 10

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError when no draw is large enough."""
        total = len(pool.positions)
        require(self.clients, self.least, total, "examples at least")
        concentration = concentration_of(self.alpha, np.ones(self.clients))
        generator = generator_of(seed, "quantity sizes")
        sizes, _ = redraw(
            lambda: apportion(draw_shares(generator, concentration), total),
            lambda drawn: int(drawn.min()),
            self.least,
            f"share {total:,} examples among {self.clients:,} clients with alpha {self.alpha:g}",
        )
        dealt = generator_of(seed, "quantity examples").permutation(pool.positions)
        return Partition.from_owners(dealt, np.repeat(np.arange(self.clients), sizes), self.clients)
