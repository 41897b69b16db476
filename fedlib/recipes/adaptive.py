"""Adaptive expert models: clusters found with exploration, and a mixture over all of them (003)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.ifca import Explore
from fedlib.engine import EarlyStop
from fedlib.experiment import Experiment
from fedlib.models import MLP, Family, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import Majority
from fedlib.recipes.section import Section, Setting, at
from fedlib.recipes.specialists import LOCAL, TUNED
from fedlib.tasks import Task, named
from fedlib.values import value

BEST, MOE, ALL_EQUAL = "IFCA", "MoE", "Ensemble"
EAGER = "MoE, eager gate"


@value
class Adaptive(Setting):
    """The clusters, how they are explored, and what clients train for themselves.

    ``js`` are the numbers of clusters and ``eps`` the rates of exploration that are compared at
    each majority fraction of ``ps``. ``cluster``, ``local`` and ``gate`` are the optimisers of 003,
    Table 1, ``own`` and ``chooser`` the networks of the local expert and the gate (None: the
    task's). At home clients train for at most ``most`` epochs, until ``stop``. ``eager`` is how
    many times larger the rate of a gate is that does leave its initial weights (D11).
    """

    js: tuple[int, ...] = (1, 2, 3, 6, 9)
    eps: tuple[float, ...] = (0.0, 0.1, 0.33)
    ps: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    cluster: Optimizer = Optimizer("sgd", lr=5.86e-3, weight_decay=1.10e-3)
    local: Optimizer = Optimizer("adamw", lr=2.69e-4, weight_decay=9.89e-3)
    gate: Optimizer = Optimizer("adamw", lr=3e-6, weight_decay=6.88e-4)
    own: Family | None = None
    chooser: Family | None = None
    most: int = 200
    stop: EarlyStop = EarlyStop()
    eager: float = 300.0

    def at(self, p: float) -> Adaptive:
        """Return the setting at a majority fraction."""
        partition = self.task.partition
        assert isinstance(partition, Majority)
        return replace(self, task=replace(self.task, partition=replace(partition, p=p)))

    def home(self, client: Optimizer, **more: Any) -> dict[str, Any]:
        """Return the fields of an algorithm that trains at home, with ``more``."""
        fields = {"epochs": self.most, "batch_size": self.batch_size, "client": client}
        return {**fields, "stop": self.stop, **more}


def clustered(setting: Adaptive, clusters: int, eps: float) -> Experiment:
    """Return the federation of J clusters, explored with the probability eps."""
    algorithm = IFCA(
        epochs=setting.local_epochs,
        batch_size=setting.batch_size,
        client=setting.cluster,
        clusters=clusters,
        explore=Explore(eps),
    )
    return Experiment(
        setting.task,
        algorithm,
        setting.rounds,
        cohort=setting.cohort,
        evaluate_every=setting.evaluate_every,
    )


def alone(setting: Adaptive) -> Experiment:
    """Return the local experts, which know of no federation."""
    algorithm = Local(**setting.home(setting.local), model=setting.own)
    return Experiment(setting.task, algorithm, 1, cohort=1.0, evaluate_every=1)


def ways(setting: Adaptive, clusters: int, eps: float) -> dict[str, Experiment]:
    """Return the ways to use clusters: the best one, all of them, or one to start from."""
    first, local = clustered(setting, clusters, eps), alone(setting)

    def both(**options: Any) -> Experiment:
        mixture = Mixture(expert=setting.own, gate=setting.chooser, frozen=True, **options)
        stage = Experiment(setting.task, mixture, 1, cohort=1.0, evaluate_every=1)
        return replace(stage, after=first, beside=local)

    gate = setting.gate
    tuned = Local(**setting.home(replace(setting.local, weight_decay=0.0)))
    return {
        BEST: first,
        MOE: both(**setting.home(gate)),
        EAGER: both(**setting.home(replace(gate, lr=setting.eager * gate.lr))),
        ALL_EQUAL: both(**setting.home(gate), pool="mean"),
        TUNED: replace(local, algorithm=tuned, after=first),
    }


def _by_fraction(setting: Adaptive, dataset: str) -> dict[str, Experiment]:
    """Return every way at every fraction p, number of clusters and rate of exploration."""
    runs: dict[str, Experiment] = {}
    for p in setting.ps:
        here = setting.at(p)
        runs[at(LOCAL, p=p)] = alone(here)
        for clusters in setting.js:
            # One cluster leaves nothing to explore.
            for eps in setting.eps if clusters > 1 else (0.0,):
                made = ways(here, clusters, eps)
                runs |= {at(m, p=p, J=clusters, eps=eps): e for m, e in made.items()}
    return runs


def _setting(scale: str, task: Task, **more: Any) -> Adaptive:
    """Return a setting of 003.

    The gate's rate of the paper moves a weight by at most about 0.03 in its 200 epochs of 50 steps;
    those of the smaller scales by about half as much in theirs.
    """
    fields: dict[str, Any] = {"batch_size": 10, "local_epochs": 3}
    if scale == "quick":
        fields |= {"cluster": Optimizer("sgd", lr=0.1), "most": 40}
        fields |= {"local": Optimizer("adamw", lr=3e-3), "gate": Optimizer("adamw", lr=1e-4)}
        fields |= {"stop": EarlyStop(patience=2), "js": (1, 3), "eps": (0.0, 0.33), "eager": 100.0}
        fields |= {"ps": (0.2, 0.6, 1.0), "cohort": 5, "evaluate_every": 5, "rounds": 30}
        return Adaptive(replace(task, model=MLP((32,))), seeds=3, **{**fields, **more})
    if scale == "standard":
        fields |= {"batch_size": 50, "cluster": Optimizer("sgd", lr=0.05, weight_decay=1.1e-3)}
        fields |= {"local": Optimizer("adamw", lr=1e-3, weight_decay=9.89e-3), "most": 40}
        fields |= {"gate": Optimizer("adamw", lr=3e-5, weight_decay=6.88e-4), "eager": 30.0}
        fields |= {"stop": EarlyStop(patience=3), "js": (1, 2, 3, 6), "ps": (0.2, 0.6, 1.0)}
        fields |= {"chooser": LeNet(channels=(6, 6), hidden=(8,)), "cohort": 5}
        return Adaptive(task, rounds=60, seeds=3, evaluate_every=20, **{**fields, **more})
    fields |= {"own": LeNet(channels=(32, 256), hidden=(256,)), "cohort": 0.1}
    fields |= {"chooser": LeNet(channels=(12, 12), hidden=(8,)), "evaluate_every": 10}
    return Adaptive(task, rounds=500, seeds=6, **{**fields, **more})


def _settings(scale: str) -> dict[str, Setting]:
    name = "digits" if scale == "quick" else "cifar10"
    return {name: _setting(scale, named("003/cifar10", scale))}


SETTINGS = {scale: _settings(scale) for scale in ("quick", "standard", "paper")}
ADAPTIVE = Section("adaptive", SETTINGS, _by_fraction)
