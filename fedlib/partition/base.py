"""What every request is asked, and how rows are cut in two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlib.partition.chance import generator_of, whole_part
from fedlib.partition.checks import Ints, Pool, examples, positive, whole
from fedlib.partition.table import Partition

PARTS = ("train", "validation", "test")
COUNTS = ("clients", "size", "least", "shards", "times", "permutations")
CONCENTRATIONS = ("alpha", "size_alpha", "root_alpha", "leaf_alpha")


@dataclass(frozen=True)
class Request:
    """How examples are dealt to clients, as a value that prints as code; the base of them all.

    A scheme of one's own is a subclass made a value with ``@value`` that has a `deal`.
    """

    def check(self) -> None:
        """ValueError for fields out of range: these names mean the same in every scheme."""
        for name in COUNTS:
            if getattr(self, name, None) is not None:
                whole(name, getattr(self, name), 1)
        for name in CONCENTRATIONS:
            if getattr(self, name, None) is not None:
                positive(name, getattr(self, name))

    def split(
        self, labels: ArrayLike, pool: ArrayLike | None, seed: int, classes: int | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Partition:  # fmt: skip
        """Deal the positions in `pool` (all when None) to clients, with side information.

        labels: [N]; classes: C (highest label + 1 when None); columns: whatever else is known
        per example, [N] each, by name. ValueError, with the numbers, for the impossible.
        """
        given = examples(labels, pool, classes, columns)
        return self.side(self.deal(given, seed), "train", seed, given.classes)

    def deal(self, pool: Pool, seed: int) -> Partition:
        """Who gets what of a pool; ValueError, with the numbers, for the impossible."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to deal")

    def among(self) -> tuple[int, int]:
        """The number of its first client and of all clients, where it is some of another's.

        (0, 0) for all of them.
        """
        return 0, 0

    def kinds(self) -> dict[str, int]:
        """How many values each side information can take, by name, whatever anyone holds."""
        return {}

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """The partition with this request's per-example side information attached.

        part: "train", "validation" or "test". What a client is like depends on (seed, client)
        only, what an example gets on (seed, part, client). A plain request attaches nothing.
        """
        return partition

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """The rows of `deal`, each divided at random: (kept, held), `share` of them held.

        Of n examples max(1, floor((1 - share) n)) are kept.
        """
        return halves(self.deal(pool, seed), share, seed, "own test")


@dataclass(frozen=True)
class Around(Request):
    """Deals as the request `of` does, in everything that it does not do otherwise itself."""

    of: Request

    def kinds(self) -> dict[str, int]:
        """Those of `of`."""
        return self.of.kinds()

    def deal(self, pool: Pool, seed: int) -> Partition:
        """The rows that `of` deals."""
        return self.of.deal(pool, seed)

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """The partition with the side information of `of`; see `Request`."""
        return self.of.side(partition, part, seed, classes)

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """The rows of `of`, divided as `of` divides them."""
        return self.of.cut(pool, seed, share)


def halves(whole: Partition, share: float, seed: int, purpose: str) -> tuple[Partition, Partition]:
    """Each client's examples divided by a generator of its own; see `Request.cut`."""
    return cut_rows(
        (whole.client(i) for i in range(whole.clients)),
        share,
        lambda client, n: generator_of(seed, purpose, client).permutation(n),
    )


def cut_rows(
    rows: Iterable[Ints], share: float, shuffle: Callable[[int, int], Ints]
) -> tuple[Partition, Partition]:
    """(kept, held): of row i, the first entries in the order shuffle(i, n) are held."""
    kept, held = [], []
    for client, row in enumerate(rows):
        keep = min(max(1, whole_part((1 - share) * len(row))), len(row))
        order = shuffle(client, len(row))
        held.append(np.sort(row[order[: len(row) - keep]]))
        kept.append(np.sort(row[order[len(row) - keep :]]))
    return Partition.from_lists(kept), Partition.from_lists(held)
