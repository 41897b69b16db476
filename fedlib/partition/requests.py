"""The simple requests for a partition, as values: label skew, none, and quantity skew."""

from __future__ import annotations

import numpy as np

from fedlib.partition.base import Request
from fedlib.partition.chance import apportion, concentration_of, draw_shares, generator_of, redraw
from fedlib.partition.checks import Pool, require
from fedlib.partition.draws import dirichlet, iid
from fedlib.partition.table import Partition
from fedlib.values import one_of, value


@value
class Dirichlet(Request):
    """A `dirichlet` partition: label shares drawn per client.

    prior: "symmetric" is concentration alpha for every class; "proportional" is alpha times the
    class shares of the pool, which sum to one (Hsu et al. 2019). size_alpha: None for clients of
    equal size, else the concentration that their sizes are drawn with.
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
        """See `dirichlet`."""
        prior = None
        if self.prior == "proportional":
            counts = np.bincount(pool.labels[pool.positions], minlength=pool.classes)
            prior = counts / len(pool.positions)
        return dirichlet(
            pool.labels, clients=self.clients, alpha=self.alpha, size=self.size, seed=seed,
            pool=pool.positions, classes=pool.classes, prior=prior, size_alpha=self.size_alpha,
        )  # fmt: skip


@value
class IID(Request):
    """An `iid` partition."""

    clients: int = 100
    size: int | None = None

    def deal(self, pool: Pool, seed: int) -> Partition:
        """See `iid`."""
        return iid(
            pool.labels, clients=self.clients, size=self.size, seed=seed, pool=pool.positions
        )


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
        concentration = concentration_of(self.alpha, None, self.clients)
        generator = generator_of(seed, "quantity sizes")
        sizes, _ = redraw(
            lambda: apportion(draw_shares(generator, concentration), total),
            lambda drawn: int(drawn.min()),
            self.least,
            f"share {total:,} examples among {self.clients:,} clients with alpha {self.alpha:g}",
        )
        dealt = generator_of(seed, "quantity examples").permutation(pool.positions)
        return Partition.from_owners(dealt, np.repeat(np.arange(self.clients), sizes), self.clients)
