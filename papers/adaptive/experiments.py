"""What 003 runs: clusters that are explored or not, and the ways to use them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, federated, placed
from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.ifca import Explore
from fedlib.optim import Optimizer
from fedlib.runs import Experiment
from papers.adaptive.settings import CIFAR10, ROTATED, WRITERS, Adaptive
from papers.floor import FEDAVG, LOCAL, MAJORITY, TUNED, floor

BEST, MOE, ALL_EQUAL = "IFCA", "MoE", "Ensemble"
EAGER = "MoE, eager gate"
# What each part of the released protocol changes (A29).
BY_TRAINING, PEEKING, BEST_PEEKING = "IFCA, by training loss", "MoE, peeking", "IFCA, peeking"
USED, ALL_RELEASED = "MoE, used clusters only", "MoE, as released"
# Other ways to find clusters.
FADING, SLOWLY = "IFCA, exploring as 1/t", "IFCA, exploring as 1/sqrt(t)"
REDRAWN, LAST_LAYER, STOPPED = "IFCA, redrawn", "IFCA, last layer", "IFCA, early stopping"


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


ADAPTIVE = Section("adaptive", CIFAR10, _by_fraction)
ADAPTIVE_PARTICIPATION = Section("adaptive_participation", CIFAR10, _participation)
ADAPTIVE_ROTATED = Section("adaptive_rotated", ROTATED, _by_orientation)
ADAPTIVE_WRITERS = Section("adaptive_writers", WRITERS, _by_writer)
ADAPTIVE_RELEASED = Section("adaptive_released", CIFAR10, _as_released)
ADAPTIVE_OPTIONS = Section("adaptive_options", CIFAR10, _options)
SECTIONS = (
    ADAPTIVE,
    ADAPTIVE_PARTICIPATION,
    ADAPTIVE_ROTATED,
    ADAPTIVE_WRITERS,
    ADAPTIVE_RELEASED,
    ADAPTIVE_OPTIONS,
)
