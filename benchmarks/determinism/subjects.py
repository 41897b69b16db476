"""The trained subjects: every exported algorithm on a small dense net, and some on other nets.

All are trained on scikit-learn's digits with clients of unequal size, so that shared programs are
padded.
"""

from dataclasses import dataclass, replace

import torch

from benchmarks import algorithms
from fedlib.algorithms import DBE, IFCA, SCAFFOLD, FedAvg, FedCP, FedMix, Local, Mixture
from fedlib.algorithms.ifca import EpsilonGreedy
from fedlib.algorithms.private import WeightedSums
from fedlib.data import Fitted
from fedlib.engine import EarlyStop
from fedlib.federation import ClientData, Federation
from fedlib.models import MLP, Architecture, BiLSTM, FunctionalModel, LeNet
from fedlib.optim import adam, sgd
from fedlib.partition import ClassDirichlet, MatchedHoldout
from fedlib.tasks import Task
from fedlib.values import value
from fedrun import Experiment

ROUNDS, COHORT, SEED = 3, 4, 0
FAST = {"batch_size": 8}
TEXT = BiLSTM(vocabulary=17, embedding=8, hidden=8)
NETS: dict[str, Architecture] = {
    "dense": MLP((16,)),
    "wide dense": MLP((200, 200)),
    "convolutional": LeNet(channels=(4, 6), hidden=(16,), kernel=3),
    "dropout": LeNet(channels=(4, 6), hidden=(16,), kernel=3, dropout=0.2),
    "text": TEXT,
}


@value
class PixelTexts(Task):
    """Digits as texts: two rows of pixels, with a token for each of the 17 shades of grey."""

    def build(
        self, seed: int, device: str | torch.device = "cpu", fitted: Fitted | None = None
    ) -> Federation:
        """Return the federation of a seed, with texts."""
        fed = Task.build(replace(self, model=MLP((1,))), seed, device, fitted)
        texts = {name: _read(getattr(fed, name)) for name in ("train", "validation", "test")}
        net = FunctionalModel(self.model, tuple(texts["train"].x.shape[1:]), fed.classes)
        return replace(fed, net=net, **texts)


@dataclass(frozen=True)
class Subject:
    """An experiment with the names of its algorithm and its kind of net."""

    net: str
    name: str
    experiment: Experiment

    @property
    def title(self) -> str:
        """Both names."""
        return f"{self.name}, {self.net}"


def subjects() -> list[Subject]:
    """Return all subjects; a new algorithm is included once it is exported."""
    dense = algorithms.every(client=_STEP, **FAST) | _OPTIONS
    return [
        Subject(net, name, _experiment(_task(net), algorithm))
        for net, every in {"dense": dense, **_ELSEWHERE}.items()
        for name, algorithm in every.items()
    ]


def _task(net: str) -> Task:
    kind = PixelTexts if net == "text" else Task
    deal = ClassDirichlet(clients=6, alpha=1.0, least=8)
    return kind(
        "digits", deal, NETS[net], MatchedHoldout(pool=300, validation=10, test=10), portion=0.4
    )


def _experiment(task: Task, algorithm: FedAvg) -> Experiment:
    """Return an algorithm's experiment, after its first stage if it needs one."""
    first = FedAvg(**FAST) if isinstance(algorithm, Mixture) else None
    of = None if isinstance(algorithm, WeightedSums) else getattr(algorithm, "of", first)
    after = of and Experiment(task, of, 2, cohort=COHORT, seed=SEED, evaluate_every=0)
    how = {"cohort": COHORT, "seed": SEED, "evaluate_every": ROUNDS}
    return Experiment(task, algorithm, ROUNDS, first_stage=after, **how)


def _read(table: ClientData) -> ClientData:
    """Return a table of digits as texts: only 17 of 256 shades occur."""
    tokens = (table.x[:, 2:7:3].flatten(1).to(torch.int32) + 8) // 16
    none = table.scale[:0]
    return replace(table, x=tokens, scale=none, shift=none)


_STEP = sgd(0.1)
_OPTIONS: dict[str, FedAvg] = {
    "FedAvg, Adam at both ends": FedAvg(server=adam(0.01), client=adam(0.01), **FAST),
    "FedMix, personal bias, Adam": FedMix(experts=2, personal_bias=True, server=adam(0.01), **FAST),
    "IFCA, exploring": IFCA(clusters=3, explore=EpsilonGreedy(0.5), client=_STEP, **FAST),
    "Local, early stop": Local(
        stop=EarlyStop(every=1, patience=2), epochs=6, client=sgd(0.5), **FAST
    ),
}
_ELSEWHERE: dict[str, dict[str, FedAvg]] = {
    "wide dense": {
        "FedAvg": FedAvg(batch_size=64, epochs=2, client=_STEP),
        "FedMix": FedMix(batch_size=64, epochs=2, experts=2, client=_STEP),
    },
    "convolutional": {
        "FedAvg": FedAvg(client=_STEP, **FAST),
        "FedMix": FedMix(experts=2, client=_STEP, **FAST),
        "SCAFFOLD": SCAFFOLD(client=_STEP, **FAST),
        "IFCA": IFCA(client=_STEP, **FAST),
        "FedCP": FedCP(client=_STEP, **FAST),
        "DBE": DBE(client=_STEP, **FAST),
    },
    "dropout": {
        "FedAvg": FedAvg(client=_STEP, **FAST),
        "IFCA": IFCA(client=_STEP, **FAST),
        "Local": Local(client=_STEP, **FAST),
    },
    "text": {
        "FedAvg": FedAvg(client=adam(0.01), **FAST),
        "FedMix": FedMix(experts=2, client=_STEP, **FAST),
        "Local": Local(client=adam(0.01), **FAST),
    },
}
