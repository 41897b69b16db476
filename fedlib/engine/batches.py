"""Which examples each client sees at each step, drawn per (seed, round, client)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedlib.randomness import generator


@dataclass(frozen=True, eq=False)
class Plan:
    """The mini-batches of some clients over a phase.

    ``positions`` int64 ``[clients, steps, B]`` are places in a client's own row of the table,
    ``counts`` int64 ``[clients, steps]`` how many of the B are real (0 once a client has run out),
    ``per_epoch`` int64 ``[clients]`` steps that make an epoch, and ``ends`` int64 ``[clients]`` the
    number of steps of each client. ``ids`` names the clients and ``where`` the seed and the place
    that their draws depend on.
    """

    positions: np.ndarray
    counts: np.ndarray
    per_epoch: np.ndarray
    ends: np.ndarray
    ids: np.ndarray
    where: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Steps of the client that has the most."""
        return int(self.ends.max(initial=0))

    def rows(self, which: np.ndarray) -> Plan:
        """Return the plan of some of the clients."""
        steps = int(self.ends[which].max(initial=0))
        return replace(
            self,
            positions=self.positions[which, :steps],
            counts=self.counts[which, :steps],
            per_epoch=self.per_epoch[which],
            ends=self.ends[which],
            ids=self.ids[which],
        )

    def noise(self, numbers: int) -> Iterator[np.ndarray]:
        """Yield each step's noise: uniform in [0, 1), float32 ``[clients, B, numbers]``.

        A client's noise depends on seed, place and id, not on who shares its program.
        """
        draw = [generator(self.where[0], "noise", *self.where[1:], int(i)) for i in self.ids]
        shape = self.positions.shape[2], numbers
        for _ in range(self.steps):
            yield np.stack([g.random(shape, dtype=np.float32) for g in draw])


def make_plan(
    ids: np.ndarray,
    sizes: np.ndarray,
    *,
    batch_size: int | None,
    epochs: int,
    seed: int,
    where: tuple[int, ...],
) -> Plan:
    """Draw ``epochs`` shuffled passes over each client's examples, cut into mini-batches.

    ``ids`` and ``sizes`` are ``[clients]``; ``batch_size=None`` is the full batch. ``where``
    (round, phase) and the client's id are all that a draw depends on. The last batch of an epoch
    may be small.
    """
    batch = batch_size or int(sizes.max(initial=1))
    per_epoch = np.ceil(sizes / batch).astype(np.int64)
    ends = per_epoch * epochs
    positions = np.zeros((len(ids), int(ends.max(initial=0)), batch), dtype=np.int64)
    counts = np.zeros(positions.shape[:2], dtype=np.int64)
    for i, (client, size) in enumerate(zip(ids.tolist(), sizes.tolist(), strict=True)):
        rng = generator(seed, "batches", *where, client)
        for epoch in range(epochs):
            _fill(positions[i], counts[i], epoch * int(per_epoch[i]), rng.permutation(size))
    return Plan(positions, counts, per_epoch, ends, np.asarray(ids), (seed, *where))


def _fill(positions: np.ndarray, counts: np.ndarray, start: int, order: np.ndarray) -> None:
    batch = positions.shape[1]
    for k in range(-(-len(order) // batch)):
        cut = order[k * batch : (k + 1) * batch]
        positions[start + k, : len(cut)] = cut
        counts[start + k] = len(cut)
