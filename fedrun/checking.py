"""The mini-batches of an experiment, for checking an algorithm against a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import data_share
from fedlib.engine.batches import make_plan
from fedlib.engine.protocol import train_view
from fedlib.engine.rounds import select
from fedlib.values import check_type
from fedrun.experiment import Experiment, built


class MiniBatch(NamedTuple):
    """One mini-batch of one client, as the engine trains on it, before ``Task.augment``.

    Args:
        round: number of the round, from 1, as in ``RoundInfo``.
        client: index of the client.
        phase: index of the phase of local training.
        x: examples ``[B, ...]``, as a network receives them.
        y: labels ``[B]``.
        weight: the client's share p(s) of the cohort's training examples.
        side: side information ``[B]`` by name.
    """

    round: int
    client: int
    phase: int
    x: Tensor
    y: Tensor
    weight: float
    side: dict[str, Tensor]


def batches(experiment: Experiment, device: str = "cpu") -> Iterator[MiniBatch]:
    """Yield the mini-batches of all rounds: client after client, phase after phase, in their order.

    A plain loop over them computes what ``run`` and ``simulate`` do, so that it checks an algorithm
    of one's own; docs/ALGORITHMS.md has an example. Examples are not augmented.

    Args:
        experiment: the experiment; its earlier stages are not included.
        device: where the examples are. Default: "cpu".

    >>> first = next(batches(tiny))
    >>> first.round, first.phase, first.x.shape == (len(first.y), 1, 16, 16), 0 < first.weight < 1
    (1, 0, True, True)
    """
    check_type("experiment", experiment, Experiment)
    algorithm, seed = experiment.algorithm, experiment.seed
    fed = train_view(algorithm, built(experiment, device))
    for t in range(experiment.rounds):
        clients = select(fed, experiment.cohort, seed, t)
        ids, sizes = fed.ids[clients], fed.train.sizes[clients]
        shares = data_share(fed, torch.as_tensor(clients, device=fed.device)).tolist()
        plans = [
            make_plan(ids, sizes, p.batch_size, p.epochs, (seed, t, k), p.steps)
            for k, p in enumerate(algorithm.phases())
        ]
        for i, client in enumerate(clients.tolist()):
            start = int(fed.train.offsets[0][client])
            for k, plan in enumerate(plans):
                for step in range(plan.ends[i]):
                    held = start + torch.as_tensor(plan.positions[i, step, : plan.counts[i, step]])
                    side = {n: column[held] for n, column in fed.train.side.items()}
                    some = fed.train.indices[held]
                    x, y = fed.train.inputs(some), fed.train.y[some]
                    yield MiniBatch(t + 1, client, k, x, y, shares[i], side)
