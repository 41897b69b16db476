"""The simple requests for a partition, as values: label skew, none, and quantity skew."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.base import Columns, Request
from fedlib.partition.chance import apportion, concentration_of, draw_shares, generator_of
from fedlib.partition.checks import check_counts, examples, positive, whole
from fedlib.partition.draws import dirichlet, iid
from fedlib.partition.table import Partition
from fedlib.values import one_of, value

TRIES = 1000


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
        check_counts(self)
        # 1 and 1.0 ask for the same partition and should print and hash alike.
        object.__setattr__(self, "alpha", positive("alpha", self.alpha))
        one_of("prior", self.prior, ("symmetric", "proportional"))
        if self.size_alpha is not None:
            positive("size_alpha", self.size_alpha)

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None,
        columns: Columns = None,
    ) -> Partition:  # fmt: skip
        """The partition of the positions in `pool`; see `dirichlet`."""
        prior = None
        if self.prior == "proportional":
            values, positions, classes = examples(labels, pool, classes)
            prior = np.bincount(values[positions], minlength=classes) / len(positions)
        return dirichlet(
            labels, clients=self.clients, alpha=self.alpha, size=self.size, seed=seed,
            pool=pool, classes=classes, prior=prior, size_alpha=self.size_alpha,
        )  # fmt: skip


@value
class IID(Request):
    """An `iid` partition."""

    clients: int = 100
    size: int | None = None

    def check(self) -> None:
        check_counts(self)

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None,
        columns: Columns = None,
    ) -> Partition:  # fmt: skip
        """The partition of the positions in `pool`; see `iid`."""
        examples(labels, pool, classes)
        return iid(labels, clients=self.clients, size=self.size, seed=seed, pool=pool)


@value
class QuantitySkew(Request):
    """The whole pool dealt i.i.d., in unequal amounts: client shares ~ Dir(alpha) over clients.

    The shares are redrawn until every client has at least `least` examples, 1,000 times at most.
    Rows are disjoint and together the pool. Source: Li et al. (2022), arXiv:2102.02079, sec. 4.
    """

    clients: int = 100
    alpha: float = 1.0
    least: int = 10

    def check(self) -> None:
        check_counts(self)
        positive("alpha", self.alpha)
        whole("least", self.least, 1)

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None,
        columns: Columns = None,
    ) -> Partition:  # fmt: skip
        """The partition of the positions in `pool`; ValueError when no draw is large enough."""
        _, positions, _ = examples(labels, pool, classes)
        total, needed = len(positions), self.clients * self.least
        if needed > total:
            raise ValueError(
                f"{self.clients:,} clients x at least {self.least:,} examples = {needed:,}, but "
                f"only {total:,} are available"
            )
        concentration = concentration_of(self.alpha, None, self.clients)
        generator = generator_of(seed, "quantity sizes")
        nearest = 0
        for _ in range(TRIES):
            sizes = apportion(draw_shares(generator, concentration), total)
            if sizes.min() >= self.least:
                break
            nearest = max(nearest, int(sizes.min()))
        else:
            raise ValueError(
                f"in {TRIES:,} tries to share {total:,} examples among {self.clients:,} clients "
                f"with alpha {self.alpha:g}, the smallest client had {nearest:,} at most, but "
                f"should have {self.least:,}; ask for fewer clients, a smaller least or a larger "
                "alpha"
            )
        dealt = generator_of(seed, "quantity examples").permutation(positions)
        return Partition.from_owners(dealt, np.repeat(np.arange(self.clients), sizes), self.clients)
