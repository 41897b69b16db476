"""What is measured: one round of each case, played in three ways on the same random images.

``engine``  fedlib's ``play_round``, with its defaults
``plain``   the loop of ``benchmarks.plain``, as it is usually written
``floor``   forward, backward and step on ready batches of the same shapes, and nothing else: no
            drawing, copying, sending or averaging; images in the layout that is fastest here
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import plain
from fedlib.algorithms import FedAvg, FedMix
from fedlib.engine import play_round
from fedlib.federation import Federation, Table
from fedlib.models import MLP, LeNet, Net
from fedlib.optim import adam

WAYS = ("floor", "engine", "plain")
Round = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A cohort and an algorithm; ``title`` says it in words."""

    title: str
    algorithm: FedAvg | FedMix
    model: LeNet | MLP
    shape: tuple[int, int, int]
    clients: int = 100
    size: int = 450
    cohort: int = 10
    classes: int = 10
    seed: int = field(default=0, repr=False)

    def way(self, name: str, fed: Federation) -> Round:
        """Return the function that plays a round in one of ``WAYS``."""
        return {"floor": _floor, "engine": _engine, "plain": _plain}[name](self, fed)


CASES = {
    "A": Case(
        "FedAvg, LeNet 6/16 on 3x32x32, 100 clients x 450, 10 per round, batch 64, SGD",
        FedAvg(),
        LeNet(),
        (32, 32, 3),
    ),
    "D": Case(
        "FedMix, K = 4, on A",
        FedMix(experts=4, server=adam(1e-3)),
        LeNet(),
        (32, 32, 3),
    ),
    "F": Case(
        "FedAvg, MLP 784-200-200-10, 100 clients x 100, 20 per round, batch 10, SGD",
        FedAvg(batch_size=10),
        MLP(),
        (28, 28, 1),
        size=100,
        cohort=20,
    ),
}


def federation(case: Case) -> Federation:
    """Return clients of equal size with random images and labels."""
    rng = np.random.default_rng(case.seed)
    total = case.clients * case.size
    x = torch.tensor(rng.integers(0, 256, (total, *case.shape), dtype=np.uint8))
    y = torch.tensor(rng.integers(case.classes, size=total))
    look = torch.full((case.shape[-1],), 1 / 128), torch.full((case.shape[-1],), -1.0)
    index = torch.arange(total).view(case.clients, case.size)
    train = Table(x, y, index, np.full(case.clients, case.size), *look)
    few = Table(x, y, index[:, :1], np.ones(case.clients, dtype=np.int64), *look)
    net = Net(case.model, case.shape, case.classes)
    return Federation(
        net, case.classes, torch.device("cpu"), train, few, few, np.arange(case.clients)
    )


def _engine(case: Case, fed: Federation) -> Round:
    state, played = case.algorithm.init(fed, case.seed), 0

    def play() -> None:
        nonlocal state, played
        state, _ = play_round(
            case.algorithm, fed, state, round=played, seed=case.seed, cohort=case.cohort
        )
        played += 1

    return play


def _plain(case: Case, fed: Federation) -> Round:
    clients = plain.clients_of(fed, case.algorithm.batch_size or case.size)
    rng = np.random.default_rng(case.seed)
    lr = case.algorithm.client.lr
    if isinstance(case.algorithm, FedMix):
        mixture = plain.Mixture(_experts(case, fed))
        plain.add_gates(clients, mixture)
        server = torch.optim.Adam(mixture.parameters(), lr=case.algorithm.server.lr)
        prior = plain.label_shares(clients)

        def play() -> None:
            plain.fedmix_round(mixture, server, plain.draw(clients, case.cohort, rng), lr, prior)
    else:
        model = fed.net._make(case.seed)

        def play() -> None:
            plain.fedavg_round(model, plain.draw(clients, case.cohort, rng), lr)

    return play


def _floor(case: Case, fed: Federation) -> Round:
    batches = _ready_batches(case, fed)
    if isinstance(case.algorithm, FedMix):
        mixture = plain.Mixture(_experts(case, fed))
        gate = mixture.new_gate()
        p_y = torch.full((case.classes,), 1 / case.classes)
        model: nn.Module = nn.ModuleList([mixture, gate])

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return mixture.loss(gate, x, y, p_y)
    else:
        model = fed.net._make(case.seed)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(model(x), y)

    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=case.algorithm.client.lr)

    def play() -> None:
        for _ in range(case.cohort):
            for x, y in batches:
                optimizer.zero_grad()
                loss(x, y).backward()
                optimizer.step()

    return play


def _ready_batches(case: Case, fed: Federation) -> list[tuple[Tensor, Tensor]]:
    batch = case.algorithm.batch_size or case.size
    rows = fed.train.index[0].split(batch)
    assert len(rows) == math.ceil(case.size / batch)
    like = {"memory_format": torch.channels_last}
    return [(fed.train.pixels(r).contiguous(**like), fed.train.y[r]) for r in rows]


def _experts(case: Case, fed: Federation) -> list[nn.Module]:
    assert isinstance(case.algorithm, FedMix)
    return [fed.net._make(case.seed + k) for k in range(case.algorithm.experts)]
