"""Adaptive expert models: clusters found with exploration, and a mixture over all of them (003)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, Setting, federated, placed
from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.cluster_early_stopping import ClusterStop
from fedlib.algorithms.ifca import Explore
from fedlib.engine import EarlyStop
from fedlib.models import MLP, Family, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import IID, Majority, Repeated, Rotated
from fedlib.runs import Experiment
from fedlib.tasks import Task, named
from fedlib.values import value
from papers.recipes.floor import MAJORITY, floor
from papers.recipes.label_skew import FEDAVG
from papers.recipes.specialists import LOCAL, TUNED

BEST, MOE, ALL_EQUAL = "IFCA", "MoE", "Ensemble"
EAGER = "MoE, eager gate"
# What each part of the released protocol changes (A29).
BY_TRAINING, PEEKING, BEST_PEEKING = "IFCA, by training loss", "MoE, peeking", "IFCA, peeking"
USED, ALL_RELEASED = "MoE, used clusters only", "MoE, as released"
# Other ways to find clusters.
FADING, SLOWLY = "IFCA, exploring as 1/t", "IFCA, exploring as 1/sqrt(t)"
REDRAWN, LAST_LAYER, STOPPED = "IFCA, redrawn", "IFCA, last layer", "IFCA, early stopping"


@value
class Adaptive(Setting):
    """The clusters, how they are explored, and what clients train for themselves.

    ``js`` are the numbers of clusters and ``eps`` the rates of exploration that are compared, at
    each majority fraction of ``ps`` or each number of ``orientations``; where ``whole`` names some
    of the ``ps``, at the others only the most clusters, explored most and not at all. ``cluster``,
    ``local`` and ``gate`` are the optimisers of 003, Table 1, ``tuned`` is that of fine-tuning as
    released, ``own`` and ``chooser`` are the networks of the local expert and the gate (None: the
    task's). At home clients train for at most ``most`` epochs, until ``stop``. ``eager`` is how
    many times larger the rate of a gate is that does leave its initial weights (D11). Other ways to
    find ``some`` clusters are compared at ``some_p``: initial models are redrawn until each suits
    ``least_share`` of the clients, ``converged`` clusters leave. For clusters of two and of four
    orientations IFCA's code has the ``least_shares``. At ``some_p`` also the ``cohorts``, numbers
    of clients in a round or fractions as ``cohort`` is, are compared at equal local work.
    """

    js: tuple[int, ...] = (1, 2, 3, 6, 9)
    eps: tuple[float, ...] = (0.0, 0.1, 0.33)
    ps: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    whole: tuple[float, ...] = ()
    orientations: tuple[int, ...] = (2, 4)
    cluster: Optimizer = Optimizer("sgd", lr=5.86e-3, weight_decay=1.10e-3)
    local: Optimizer = Optimizer("adamw", lr=2.69e-4, weight_decay=9.89e-3)
    gate: Optimizer = Optimizer("adamw", lr=3e-6, weight_decay=6.88e-4)
    tuned: Optimizer = Optimizer("adamw", lr=1e-4)
    own: Family | None = None
    chooser: Family | None = None
    most: int = 200
    stop: EarlyStop = EarlyStop()
    eager: float = 300.0
    released_ps: tuple[float, ...] = (0.6,)
    some: int = 3
    some_p: float = 0.6
    least_share: float = 0.1
    least_shares: tuple[float, ...] = (0.35, 0.1)
    converged: ClusterStop = ClusterStop()
    cohorts: tuple[int | float, ...] = (0.1, 0.2, 0.5)

    def at(self, p: float) -> Adaptive:
        """Return the setting at a majority fraction."""
        partition = self.task.partition
        assert isinstance(partition, Majority)
        return replace(self, task=replace(self.task, partition=replace(partition, p=p)))

    def turned(self, count: int) -> Adaptive:
        """Return the setting with as many clients and examples in ``count`` orientations.

        Clusters are one, or as many as there are orientations.
        """
        turned = self.task.partition
        assert isinstance(turned, Rotated) and isinstance(turned.of, Repeated)
        each = turned.of.of
        assert isinstance(each, IID)
        each = replace(each, clients=each.clients * turned.of.times // count)
        angles = tuple(360.0 / count * i for i in range(count))
        partition = replace(turned, of=Repeated(each, count), angles=angles)
        return replace(self, task=replace(self.task, partition=partition), js=(1, count))

    def home(self, client: Optimizer, **more: Any) -> dict[str, Any]:
        """Return the fields of an algorithm that trains at home, with ``more``."""
        fields = {"epochs": self.most, "batch_size": self.batch_size, "client": client}
        return {**fields, "stop": self.stop, **more}


def clustered(setting: Adaptive, clusters: int, eps: float, **options: Any) -> Experiment:
    """Return the federation of J clusters, explored with the probability eps unless told else."""
    fields = {
        "epochs": setting.local_epochs,
        "batch_size": setting.batch_size,
        "client": setting.cluster,
        "clusters": clusters,
        "explore": Explore(eps),
    }
    return federated(setting, IFCA(**{**fields, **options}))


def alone(setting: Adaptive) -> Experiment:
    """Return the local experts, which know of no federation."""
    algorithm = Local(**setting.home(setting.local), model=setting.own)
    return Experiment(setting.task, algorithm, 1, cohort=1.0, evaluate_every=0)


def mixed(
    setting: Adaptive, first: Experiment, gate: Optimizer | None = None, **options: Any
) -> Experiment:
    """Return a mixture over the clusters of ``first`` and the local experts."""
    gated = setting.home(gate or setting.gate)
    mixture = Mixture(**gated, expert=setting.own, gate=setting.chooser, frozen=True, **options)
    stage = Experiment(setting.task, mixture, 1, cohort=1.0, evaluate_every=0)
    return replace(stage, after=first, beside=alone(setting))


def ways(setting: Adaptive, clusters: int, eps: float) -> dict[str, Experiment]:
    """Return the ways to use clusters: the best one, all of them, or one to start from."""
    first = clustered(setting, clusters, eps)
    rate = setting.eager * setting.gate.lr
    tuned = Local(**setting.home(setting.tuned))
    return {
        BEST: first,
        MOE: mixed(setting, first),
        EAGER: mixed(setting, first, replace(setting.gate, lr=rate)),
        ALL_EQUAL: mixed(setting, first, pool="mean"),
        TUNED: replace(alone(setting), algorithm=tuned, after=first),
    }


def _compared(setting: Adaptive, **where: float) -> list[Run]:
    """Return every way at every number of clusters and rate of exploration.

    Between no exploration and the most of it only the best cluster and the mixture; the eager gate
    only where clusters and exploration are most.
    """
    runs = placed({LOCAL: alone(setting), MAJORITY: floor(setting.task)}, **where)
    most = (max(setting.js), max(setting.eps))
    for clusters in setting.js:
        # One cluster leaves nothing to explore.
        for eps in setting.eps if clusters > 1 else (0.0,):
            made = ways(setting, clusters, eps)
            kept = set(made) if eps in (0.0, max(setting.eps)) else {BEST, MOE}
            kept -= {EAGER} if (clusters, eps) != most else set()
            some = {m: made[m] for m in made if m in kept}
            runs += placed(some, **where, J=clusters, eps=eps)
    return runs


def _by_fraction(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way at every majority fraction (Table 2, Fig. 3 to 6)."""
    least = replace(setting, js=(max(setting.js),), eps=(0.0, max(setting.eps)))
    runs: list[Run] = []
    for p in setting.ps:
        here = setting if p in (setting.whole or setting.ps) else least
        runs += _compared(here.at(p), p=p)
    return runs


def _participation(setting: Adaptive, dataset: str) -> list[Run]:
    """Return clusters, mixtures and a single model by the number of clients in a round.

    All with as many rounds as leave the same local work: rounds times clients is constant.
    """
    here, most = setting.at(setting.some_p), max(setting.eps)
    runs = [Run(LOCAL, alone(here))]
    for cohort in setting.cohorts:
        rounds = round(setting.rounds * setting.cohort / cohort)
        every = max(1, setting.evaluate_every * rounds // setting.rounds)
        some = replace(here, cohort=cohort, rounds=rounds, evaluate_every=every)
        runs.append(Run(FEDAVG, clustered(some, 1, 0.0), {"cohort": cohort}))
        for eps in (0.0, most):
            first = clustered(some, max(setting.js), eps)
            runs += placed({BEST: first, MOE: mixed(some, first)}, cohort=cohort, eps=eps)
    return runs


def _by_orientation(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way where groups of clients see their images turned (rotated CIFAR-10).

    Without exploration also from initial models that are redrawn, as IFCA's code does.
    """
    runs: list[Run] = []
    for k, share in zip(setting.orientations, setting.least_shares, strict=True):
        here = setting.turned(k)
        runs += _compared(here, orientations=k)
        redrawn = clustered(here, k, 0.0, least_share=share)
        runs.append(Run(REDRAWN, redrawn, {"orientations": k, "J": k, "eps": 0.0}))
    return runs


def _by_writer(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way where clients are writers (FEMNIST)."""
    return _compared(setting)


def _as_released(setting: Adaptive, dataset: str) -> list[Run]:
    """Return the mixture and the best cluster as described, and as the released code has them.

    Its tests decide what validation examples should, only clusters that are some client's best are
    mixed, and the best is that of the training loss (A29).
    """
    runs: list[Run] = []
    for p in setting.released_ps:
        here = setting.at(p)
        peek = replace(here, task=replace(here.task, validate_on="test"))
        clusters, eps = max(setting.js), max(setting.eps)
        first, peeked = (clustered(s, clusters, eps) for s in (here, peek))
        trained = clustered(here, clusters, eps, inference="train")
        made = {
            BEST: first,
            BY_TRAINING: trained,
            BEST_PEEKING: peeked,
            MOE: mixed(here, first),
            USED: mixed(here, first, used_only=True),
            PEEKING: mixed(peek, first),
            ALL_RELEASED: mixed(peek, trained, used_only=True),
            MAJORITY: floor(here.task),
        }
        runs += placed(made, p=p)
    return runs


def _options(setting: Adaptive, dataset: str) -> list[Run]:
    """Return other ways to find clusters, at one majority fraction."""
    here, most = setting.at(setting.some_p), max(setting.eps)

    def found(eps: float, **options: Any) -> Experiment:
        return clustered(here, setting.some, eps, **options)

    others = {
        FADING: found(1.0, explore=Explore(1.0, decay=1.0)),
        SLOWLY: found(1.0, explore=Explore(1.0, decay=0.5)),
        REDRAWN: found(0.0, least_share=setting.least_share),
        LAST_LAYER: found(most, clustered="head."),
        STOPPED: found(most, stop=setting.converged),
        MAJORITY: floor(here.task),
    }
    ends = [Run(BEST, found(eps), {"eps": eps}) for eps in (0.0, most)]
    return [*ends, *placed(others)]


def _setting(scale: str, task: Task, **more: Any) -> Adaptive:
    """Return a setting of 003.

    The gate's rate of the paper moves a weight by at most about 0.03 in its 200 epochs of 50 steps;
    those of the smaller scales by about as much in theirs.
    """
    fields: dict[str, Any] = {"batch_size": 10, "local_epochs": 3}
    if scale == "quick":
        fields |= {"cluster": Optimizer("sgd", lr=0.1), "most": 40}
        fields |= {"local": Optimizer("adamw", lr=3e-3), "gate": Optimizer("adamw", lr=1e-4)}
        fields |= {"stop": EarlyStop(patience=2), "js": (1, 3), "eps": (0.0, 0.33), "eager": 100.0}
        fields |= {"ps": (0.2, 0.6, 1.0), "cohort": 5, "evaluate_every": 5, "rounds": 30}
        fields |= {"converged": ClusterStop(every=2, patience=2)}
        fields |= {"tuned": Optimizer("adamw", lr=3e-3), "cohorts": (3, 5, 10)}
        return Adaptive(replace(task, model=MLP((32,))), seeds=3, **{**fields, **more})
    if scale == "standard":
        fields |= {"batch_size": 25, "cluster": Optimizer("sgd", lr=0.05, weight_decay=1.1e-3)}
        fields |= {"local": Optimizer("adamw", lr=1e-3, weight_decay=9.89e-3), "most": 12}
        fields |= {"gate": Optimizer("adamw", lr=3e-4, weight_decay=6.88e-4), "eager": 10.0}
        fields |= {"tuned": Optimizer("adamw", lr=3e-4)}
        fields |= {"stop": EarlyStop(every=2, patience=2), "js": (1, 2, 3, 6)}
        fields |= {"ps": (0.2, 0.6, 1.0), "eps": (0.0, 0.1, 0.33), "cohort": 5}
        fields |= {"chooser": LeNet(channels=(2, 4), hidden=(8,))}
        fields |= {"converged": ClusterStop(every=2, patience=3)}
        fields |= {"rounds": 30, "seeds": 5, "evaluate_every": 15}
        return Adaptive(task, **{**fields, **more})
    fields |= {"own": LeNet(channels=(32, 256), hidden=(256,), dropout=0.76), "cohort": 0.1}
    gate = LeNet(channels=(12, 12), hidden=(8,), dropout=0.78, channel_dropout=0.78)
    fields |= {"chooser": gate, "evaluate_every": 10}
    return Adaptive(task, **{**fields, "rounds": 500, "seeds": 6, **more})


def _known(
    name: str, task: str, quick: str, standard: dict[str, Any] | None = None, **paper: Any
) -> dict[str, dict[str, Setting]]:
    """Return a section's settings by scale: one data set each, ``quick`` at the quick one.

    ``standard`` and ``paper`` are fields of those scales.
    """
    return {
        "quick": {quick: _setting("quick", named(task, "quick"))},
        "standard": {name: _setting("standard", named(task, "standard"), **(standard or {}))},
        "paper": {name: _setting("paper", named(task, "paper"), **paper)},
    }


# Half of the clients in a round: with a tenth, six clusters have a client each, and nothing is
# averaged. On validation examples of seed 100, p = 0.2, six explored clusters rise to 0.554 in 20
# rounds, one to 0.561. Gates have 16 epochs of 20 steps.
_SKEWED = _known(
    "cifar10",
    "003/cifar10",
    "digits",
    standard={
        "rounds": 24,
        "seeds": 3,
        "cohort": 25,
        "evaluate_every": 6,
        "most": 16,
        "gate": Optimizer("adamw", lr=1e-4, weight_decay=6.88e-4),
        "eager": 30.0,
        "ps": (0.2, 0.4, 0.6, 0.8, 1.0),
        "whole": (0.6,),
        "cohorts": (5, 10, 25),
    },
)
_TURNED = _known(
    "rotated_cifar10",
    "003/rotated_cifar10",
    "rotated_digits",
    own=None,
    rounds=600,
    batch_size=50,
    local_epochs=5,
    eps=(0.0, 0.1, 0.82),
)
_WRITTEN = _known(
    "writers",
    "003/femnist",
    "uneven_digits",
    standard={"js": (1, 3), "eps": (0.0, 0.33)},
    own=None,
    rounds=4000,
    cohort=0.03,
    eps=(0.0, 0.0615, 0.33),
)
ADAPTIVE = Section("adaptive", _SKEWED, _by_fraction)
ADAPTIVE_PARTICIPATION = Section("adaptive_participation", _SKEWED, _participation)
ADAPTIVE_ROTATED = Section("adaptive_rotated", _TURNED, _by_orientation)
ADAPTIVE_WRITERS = Section("adaptive_writers", _WRITTEN, _by_writer)
ADAPTIVE_RELEASED = Section("adaptive_released", _SKEWED, _as_released)
ADAPTIVE_OPTIONS = Section("adaptive_options", _SKEWED, _options)
