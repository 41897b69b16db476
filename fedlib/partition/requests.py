"""Requests for a partition, as values: a task holds them, and they print as code."""

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.checks import examples, positive, whole
from fedlib.partition.draws import dirichlet, iid
from fedlib.partition.table import Partition
from fedlib.values import one_of, value


@value
class Dirichlet:
    """A `dirichlet` partition.

    prior: "symmetric" is concentration alpha for every class; "proportional" is alpha times the
    class shares of the pool, which sum to one (Hsu et al. 2019).
    """

    clients: int = 100
    alpha: float = 1.0
    size: int | None = None
    prior: str = "symmetric"

    def check(self) -> None:
        _check_counts(self)
        # 1 and 1.0 ask for the same partition and should print and hash alike.
        object.__setattr__(self, "alpha", positive("alpha", self.alpha))
        one_of("prior", self.prior, ("symmetric", "proportional"))

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None
    ) -> Partition:
        """The partition of the positions in `pool`; see `dirichlet`."""
        prior = None
        if self.prior == "proportional":
            values, positions, classes = examples(labels, pool, classes)
            prior = np.bincount(values[positions], minlength=classes) / len(positions)
        return dirichlet(
            labels, clients=self.clients, alpha=self.alpha, size=self.size, seed=seed,
            pool=pool, classes=classes, prior=prior,
        )  # fmt: skip


@value
class IID:
    """An `iid` partition."""

    clients: int = 100
    size: int | None = None

    def check(self) -> None:
        _check_counts(self)

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None
    ) -> Partition:
        """The partition of the positions in `pool`; see `iid`."""
        examples(labels, pool, classes)
        return iid(labels, clients=self.clients, size=self.size, seed=seed, pool=pool)


def _check_counts(request: Dirichlet | IID) -> None:
    whole("clients", request.clients, 1)
    if request.size is not None:
        whole("size", request.size, 1)
