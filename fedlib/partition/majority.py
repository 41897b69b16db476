"""Partitions by hand-made label mixtures: majority pairs, and shards of sorted examples."""

from __future__ import annotations

import numpy as np

from fedlib.partition.base import Request
from fedlib.partition.chance import deal, generator_of, stacks_of, whole_part
from fedlib.partition.checks import Ints, Pool, require
from fedlib.partition.table import Partition
from fedlib.values import one_of, value


@value
class Majority(Request):
    """Two classes make up the fraction p of every client, the other classes the rest.

    A client with the pair (a, b) holds floor(p size / 2) examples of a, as many of b, and draws
    the rest uniformly from what the majorities of all clients left of the other classes. Rows
    are disjoint and exactly `size` long. p = 2 / C is close to i.i.d.

    pairs: "distinct" is two different classes drawn for each client; "disjoint" also uses no
    class for two clients; "cartesian" is the pair (i div C mod C, i mod C) of client i, which
    includes a class paired with itself. Source: 001, 002 and 003, whose released code is
    "cartesian", or "disjoint" without its overlap.
    """

    clients: int = 100
    size: int = 100
    p: float = 0.8
    pairs: str = "distinct"

    def check(self) -> None:
        super().check()
        if not 0 <= self.p <= 1:
            raise ValueError(f"p must be a fraction in [0, 1], not {self.p!r}")
        one_of("pairs", self.pairs, ("distinct", "cartesian", "disjoint"))

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError names the class that runs out."""
        pairs = self._pairs(seed, pool.classes)
        half = whole_part(self.p * self.size / 2)
        counts = np.zeros((self.clients, pool.classes), np.int64)
        np.add.at(counts, (np.arange(self.clients)[:, None], pairs), half)
        stacks = stacks_of(pool, seed, "majority examples")
        left = np.array([len(stack) for stack in stacks]) - counts.sum(0)
        if left.min() < 0:
            worst = int(np.argmin(left))
            times = int(np.sum(pairs == worst))
            raise ValueError(
                f"class {worst} is a majority {times:,} times x {half:,} examples = "
                f"{times * half:,}, but only {len(stacks[worst]):,} are available; ask for fewer "
                "clients, a smaller size or a smaller p"
            )
        rest = self.size - 2 * half
        for client in range(self.clients if rest else 0):
            others = left.copy()
            others[pairs[client]] = 0
            if rest > others.sum():
                a, b = pairs[client]
                raise ValueError(
                    f"client {client} needs {rest:,} examples of classes other than {a} and {b}, "
                    f"but only {others.sum():,} are left after {client:,} clients; ask for fewer "
                    "clients or a smaller size"
                )
            generator = generator_of(seed, "majority rest", client)
            drawn = generator.multivariate_hypergeometric(others, rest, method="marginals")
            counts[client] += drawn
            left -= drawn
        return deal(stacks, counts)

    def _pairs(self, seed: int, classes: int) -> Ints:
        """Each client's two majority classes, [clients, 2]."""
        if self.pairs == "cartesian":
            client = np.arange(self.clients)
            return np.column_stack([client // classes % classes, client % classes])
        if classes < 2:
            raise ValueError(f"a pair of different classes needs 2 classes, not {classes}")
        if self.pairs == "distinct":
            generators = (generator_of(seed, "majority pair", i) for i in range(self.clients))
            return np.array([g.choice(classes, 2, replace=False) for g in generators])
        if 2 * self.clients > classes:
            raise ValueError(
                f"{self.clients:,} clients with disjoint pairs need {2 * self.clients:,} classes, "
                f"but there are only {classes:,}"
            )
        order = generator_of(seed, "majority pairs").permutation(classes)
        return order[: 2 * self.clients].reshape(self.clients, 2)


@value
class Shards(Request):
    """Examples sorted by label, cut into clients x shards equal pieces; each client gets `shards`.

    Which examples of a class lie in which shard is random, as are the few that are left out
    where the pool does not divide. Rows are disjoint and equally long.
    Source: McMahan et al. (2017), arXiv:1602.05629, section 3.
    """

    clients: int = 100
    shards: int = 2

    def deal(self, pool: Pool, seed: int) -> Partition:
        """ValueError with fewer examples than shards."""
        total, shards = len(pool.positions), self.clients * self.shards
        require(self.clients, self.shards, total, "shards of an example")
        dealt = generator_of(seed, "shards examples").permutation(pool.positions)
        dealt = dealt[: total // shards * shards]
        dealt = dealt[np.argsort(pool.labels[dealt], kind="stable")].reshape(shards, -1)
        order = generator_of(seed, "shards").permutation(shards)
        return Partition.of_equal(dealt[order].reshape(self.clients, -1))
