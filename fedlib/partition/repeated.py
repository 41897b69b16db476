"""The same examples dealt more than once, to clients that will see them differently."""

from __future__ import annotations

from fedlib.partition.base import Request
from fedlib.partition.chance import generator_of
from fedlib.partition.checks import Ints, Pool
from fedlib.partition.table import Partition
from fedlib.values import value


@value
class Repeated(Request):
    """`of` is asked `times` times for the whole pool, and its clients stand one after another.

    Rows are disjoint within each deal, whose clients are consecutive, but not between deals. So
    Rotated(Repeated(IID(100, 500)), (0, 180), None) has 100 clients with CIFAR-10 and another
    100 with its rotated copy. Source: IFCA (Ghosh et al. 2020), sec. 6; 003, Rotated CIFAR-10.
    """

    of: Request
    times: int = 2

    def deal(self, pool: Pool, seed: int) -> Partition:
        """The deals one after another; the first is the one that `of` makes by itself."""
        rows: list[Ints] = []
        for deal in range(self.times):
            own = int(generator_of(seed, "repeated", deal).integers(2**32)) if deal else seed
            part = self.of.deal(pool, own)
            rows += [part.client(i) for i in range(part.clients)]
        return Partition.from_lists(rows)

    def side(self, partition: Partition, part: str, seed: int, classes: int) -> Partition:
        """The partition with the side information of `of`; see `Request`."""
        return self.of.side(partition, part, seed, classes)

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """ValueError: what one client holds back, another might train on."""
        raise ValueError(
            "Repeated deals an example to several clients, so that one would train on what "
            "another holds out; use Mirrored with it, not Own"
        )
