"""Mini-batches of each client, drawn per (seed, round, client), and precomputed quantities.

Quantities of examples that depend only on parameters which a phase does not train are computed once
per client and phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import width
from fedlib.engine.program import vmap_clients
from fedlib.federation import ClientData, Federation, Precomputed
from fedlib.models import Batch, Params
from fedlib.parallel import map_chunks
from fedlib.randomness import generator


@dataclass(frozen=True, eq=False)
class Plan:
    """The mini-batches of some clients over a phase.

    Args:
        positions: positions among a client's examples, int64 ``[clients, steps, B]``.
        counts: how many of the B examples are real, int64 ``[clients, steps]``; 0 after the
            client's last step.
        per_epoch: steps per epoch, int64 ``[clients]``.
        ends: number of steps of each client, int64 ``[clients]``.
        ids: ids of the clients, int64 ``[clients]``.
        where: seed, round and phase, on which all draws depend.
    """

    positions: np.ndarray
    counts: np.ndarray
    per_epoch: np.ndarray
    ends: np.ndarray
    ids: np.ndarray
    where: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The largest number of steps of a client."""
        return int(self.ends.max(initial=0))

    def rows(self, which: np.ndarray | slice) -> Plan:
        """Return the plan of some of the clients."""
        steps = int(self.ends[which].max(initial=0))
        positions, counts = self.positions[which, :steps], self.counts[which, :steps]
        per_epoch, ends, ids = (a[which] for a in (self.per_epoch, self.ends, self.ids))
        return Plan(positions, counts, per_epoch, ends, ids, self.where)

    def noise(self, numbers: int) -> Iterator[np.ndarray]:
        """Yield each step's random numbers, uniform in [0, 1), float32 ``[clients, B, numbers]``.

        A client's numbers depend on the seed, round, phase and its id only, not on the other
        clients.
        """
        draw = [generator(self.where[0], "noise", *self.where[1:], int(i)) for i in self.ids]
        shape = self.positions.shape[2], numbers
        for _ in range(self.steps):
            yield np.stack([g.random(shape, dtype=np.float32) for g in draw])


def make_plan(
    ids: np.ndarray,
    sizes: np.ndarray,
    batch_size: int | None,
    epochs: int,
    where: tuple[int, ...],
    steps: int | None = None,
) -> Plan:
    """Draw shuffled passes over each client's examples, divided into mini-batches.

    The last mini-batch of an epoch may be smaller. The draw of a client depends on ``where`` and
    its id only.

    Args:
        ids: ids of the clients, int64 ``[clients]``.
        sizes: their numbers of examples, int64 ``[clients]``.
        batch_size: examples per mini-batch, None for the full batch.
        epochs: passes over the examples.
        where: seed, round and phase.
        steps: the number of mini-batches of every client with examples, in place of ``epochs``.
            Default: None.
    """
    batch = batch_size or int(sizes.max(initial=1))
    per_epoch = np.ceil(sizes / batch).astype(np.int64)
    ends = per_epoch * epochs if steps is None else np.where(per_epoch, steps, 0)
    positions = np.zeros((len(ids), int(ends.max(initial=0)), batch), dtype=np.int64)
    counts = np.zeros(positions.shape[:2], dtype=np.int64)
    for i, (client, size) in enumerate(zip(ids.tolist(), sizes.tolist(), strict=True)):
        rng, once = generator(where[0], "batches", *where[1:], client), int(per_epoch[i])
        for start in range(0, int(ends[i]), max(once, 1)):
            stop = min(start + once, int(ends[i]))
            seen = rng.permutation(size)[: batch * (stop - start)]
            positions[i, start:stop].reshape(-1)[: len(seen)] = seen
            counts[i, start:stop] = np.minimum(size - batch * np.arange(stop - start), batch)
    return Plan(positions, counts, per_epoch, ends, np.asarray(ids), where)


def precompute(
    fed: Federation,
    table: ClientData,
    method: Callable[[Params, Params, Batch], Precomputed],
    clients: Tensor,
    frozen: Params,
    context: Params,
) -> Precomputed:
    """Compute quantities of every example of some clients once.

    Args:
        fed: the federation.
        table: the examples.
        method: a function of one client ``(frozen, context, batch)``.
        clients: indices of the clients, int64 ``[clients]``.
        frozen: parameters that the phase does not train, ``[clients, ...]``.
        context: constants that differ between clients, ``[clients, ...]``.

    Returns:
        Columns ``[clients, examples, ...]``, zero in the padding. They are empty if examples are
        augmented, because these differ from step to step.
    """
    sizes, columns = table.sizes[clients.cpu().numpy()], Precomputed({}, {})
    size = width.TOGETHER if fed.net.batchable(fed.device) else 1

    @torch.no_grad()
    def ask(some: slice, batches: Iterator[Batch]) -> list[Precomputed]:
        own, ctx = ({n: t[some] for n, t in part.items()} for part in (frozen, context))
        one = vmap_clients(method, len(clients[some]))
        return [one(own, ctx, batch) for batch in batches]

    def ask_part(some: slice) -> list[Precomputed]:
        return ask(some, table.blocks(clients[some], width.AT_ONCE))

    once = np.ones((1, 1), dtype=np.int64)
    example = table.batches(clients[:1], 0 * once[None], once, once[0])
    if fed.train.augment is not None or not any(ask(slice(1), example)[0]):
        return columns
    parts = [slice(start, start + size) for start in range(0, len(clients), size)]
    for i, blocks in map_chunks(ask_part, parts, "precompute"):
        for at, block in enumerate(blocks):
            for column, found in zip(columns, block, strict=True):
                for name, t in found.items():
                    if name not in column:
                        column[name] = t.new_zeros(len(clients), int(sizes.max()), *t.shape[2:])
                    start = at * width.AT_ONCE
                    column[name][parts[i], start : start + t.shape[1]] = t
    return columns
