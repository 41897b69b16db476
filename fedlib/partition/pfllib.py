"""PFLlib's partition, draw for draw: every class is dealt by Dirichlet shares over the clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.partition.base import Request, cut_rows
from fedlib.partition.chance import concentration_of, redraw
from fedlib.partition.checks import Floats, Ints, Pool, fraction, require, whole
from fedlib.partition.table import Partition
from fedlib.values import value


class Dealt(NamedTuple):
    """What `ClassDirichlet` did: rows in the order dealt, tries, and where the stream stands."""

    rows: list[Ints]
    tries: int
    state: np.random.RandomState


def _one_try(
    stacks: list[Ints], concentration: Floats, shared: float, state: np.random.RandomState
) -> list[Ints]:
    clients = len(concentration)
    fair = sum(len(stack) for stack in stacks) / clients
    held = np.zeros(clients, np.int64)
    pieces: list[list[Ints]] = [[] for _ in range(clients)]
    for stack in stacks:
        stack = stack.copy()
        state.shuffle(stack)
        common = int(shared * len(stack))
        each = common // clients * np.arange(1, clients)
        dealt = [np.split(stack[:common], each)]
        held += [len(piece) for piece in dealt[0]]
        shares = _shares(state, concentration, held < fair)
        rest = stack[common:]
        dealt.append(np.split(rest, (np.cumsum(shares) * len(rest)).astype(int)[:-1]))
        held += [len(piece) for piece in dealt[1]]
        for client in range(clients):
            pieces[client] += [part[client] for part in dealt]
    return [np.concatenate(row) for row in pieces]


def _shares(
    state: np.random.RandomState, concentration: Floats, hungry: NDArray[np.bool_]
) -> Floats:
    """Dirichlet shares over the clients, renormalised to those who may still get something."""
    shares = state.dirichlet(concentration) * hungry
    if shares.sum() > 0:
        return shares / shares.sum()
    # All mass on the sated, or none after an underflow: the limit of a vanishing alpha is that
    # one client gets the class. With nobody hungry the class is empty, and it does not matter.
    shares = np.zeros(len(hungry))
    shares[state.choice(np.flatnonzero(hungry)) if hungry.any() else 0] = 1
    return shares


@value
class ClassDirichlet(Request):
    """Class after class is dealt in proportion to a draw of Dir(alpha) over the clients.

    Per class: its examples are shuffled; the first int(shared * n) go to all clients alike,
    floor(n / clients) each and what remains to the last; the others are cut at the floor of n times
    the cumulated shares, where a client that already holds an N-th / clients part of everything
    gets none. The whole is repeated on the same stream, RandomState(seed), until every client has
    `least` examples: min(40, N / clients / 2) when None, the number that a test share of 0.25 asks
    for. seed: of the partition, 1 in PFLlib, whatever the seed of the run; None for that.

    Source: 004, sec. 5.1 (shared = 0.2 is its S = 20); PFLlib, where "dir" is shared = 0.
    """

    clients: int = 20
    alpha: float = 0.1
    shared: float = 0.0
    least: int | None = None
    seed: int | None = 1

    def check(self) -> None:
        super().check()
        fraction("shared", self.shared)
        if self.seed is not None:
            whole("seed", self.seed, 0)

    def dealt(self, pool: Pool, seed: int) -> Dealt:
        """Rows in the order dealt, the number of tries, and the stream.

        ValueError for the impossible, and after 1,000 tries.
        """
        seed, clients = seed if self.seed is None else self.seed, self.clients
        total = len(pool.positions)
        fair = max(1, int(min(40, total / clients / 2)))
        least = fair if self.least is None else self.least
        require(clients, least, total, "examples at least")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must lie in 0..{2**32 - 1}, as RandomState asks, not {seed}")
        # The old generator, because the published partitions were drawn with it.
        state = np.random.RandomState(seed)
        stacks = pool._replace(positions=np.sort(pool.positions)).stacks()
        concentration = concentration_of(self.alpha, np.ones(clients))
        rows, tries = redraw(
            lambda: _one_try(stacks, concentration, self.shared, state),
            lambda rows: min(len(row) for row in rows),
            least,
            f"deal {total:,} examples of {pool.classes:,} classes to {clients:,} clients with "
            f"alpha {self.alpha:g}",
        )
        return Dealt(rows, tries, state)

    def deal(self, pool: Pool, seed: int) -> Partition:
        """The rows, sorted; see `dealt`."""
        return Partition.from_lists(np.sort(row) for row in self.dealt(pool, seed).rows)

    def cut(self, pool: Pool, seed: int, share: float) -> tuple[Partition, Partition]:
        """Train and test rows as PFLlib's: train_test_split of each client, on the same stream."""
        dealt = self.dealt(pool, seed)
        return cut_rows(dealt.rows, share, lambda client, n: dealt.state.permutation(n))
