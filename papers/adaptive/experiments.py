"""The experiments of 003 at three scales: clusters, exploration, ways to use them, and tuning."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pandas as pd

from companion.sections import SCALES, Run, federated, placed, seeded
from fedlib import paths
from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.ifca import ClusterStop, EpsilonGreedy
from fedlib.models import MLP, Architecture, LeNet
from fedlib.optim import Optimizer
from fedlib.partition import IID, MatchedHoldout, RepeatedPartition, Rotated
from fedlib.tasks import Task
from fedlib.values import check_choice, value
from fedrun import Experiment
from papers import scaled as common
from papers.adaptive import tuning
from papers.adaptive.tuning import Choice, Space, Uniform
from papers.published import tables

TURNED = LeNet(channels=(64, 64), hidden=(384, 194), response_norm=4)


@value
class Adaptive(common.AtHome):
    """The clusters, their exploration, and what clients train for themselves.

    Attributes:
        js: the numbers of clusters that are compared.
        eps: the rates of exploration that are compared.
        cluster, local, gate: the optimisers of 003, Table 1.
        tuned: the optimiser of fine-tuning, as released.
        eager: the factor by which the learning rate of the faster gate, which does leave its
            initial weights, is larger.
        own: the network of the local expert; None for the task's.
        chooser: the network of the gate; None for the task's.
        whole: the majority fractions with all ``js`` and ``eps``; the others have only the most
            clusters, with the most exploration and without any. All by default.
        some_p: the majority fraction of the released protocol, of other ways to find three
            clusters, and of ``cohorts``.
        converged: when a cluster counts as converged.
        cohorts: the numbers or fractions of clients in a round that are compared at equal local
            work.
    """

    _: KW_ONLY
    js: tuple[int, ...]
    eps: tuple[float, ...]
    cluster: Optimizer
    local: Optimizer
    gate: Optimizer
    tuned: Optimizer
    eager: float
    own: Architecture | None = None
    chooser: Architecture | None = None
    whole: tuple[float, ...] = ()
    some_p: float = 0.6
    converged: ClusterStop = ClusterStop()
    cohorts: tuple[int | float, ...] = ()

    def turned(self, count: int) -> Self:
        """Return the setting with as many clients and examples in ``count`` orientations.

        The numbers of clusters are one, and the number of orientations.
        """
        groups = self.task.partition.of  # type: ignore[attr-defined]
        turned = _turned(groups.of.clients * groups.times, groups.of.size, count)
        return replace(self.dealt(turned), js=(1, count))


def _turned(clients: int, size: int, count: int) -> Rotated:
    """Return groups of clients that hold the same images, each group in its orientation."""
    angles = tuple(360.0 / count * i for i in range(count))
    return Rotated(RepeatedPartition(IID(clients // count, size), count), angles, alpha=None)


def rotated_cifar10(scale: str, orientations: int = 2) -> Task:
    """Adaptive expert models and IFCA: every group of clients sees all images, turned its way."""
    sizes, test = ((20, 60), (20, 200), (200, 500)), MatchedHoldout(2000, 100, 100, source="test")
    few, some, many = (_turned(clients, size, orientations) for clients, size in sizes)
    digits = Task("digits", few, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    standard = Task("cifar10", some, LeNet(), test, portion=0.4)
    paper = Task("cifar10", many, TURNED, test)
    return dict(zip(SCALES, (digits, standard, paper), strict=True))[scale]


TASKS = {**common.tasks("adaptive"), "003/rotated_cifar10": rotated_cifar10}

BEST, MOE, ALL_EQUAL = "IFCA", "MoE", "Ensemble"
EAGER, JOINT = "MoE, faster gate", "MoE, experts trained"
# What each part of the released protocol changes (A29).
BY_TRAINING = "IFCA, by training loss"
PEEKING, BEST_PEEKING = "MoE, chosen on tests", "IFCA, chosen on tests"
USED, ALL_RELEASED = "MoE, used clusters only", "MoE, as released"
# Other ways to find clusters.
FADING, SLOWLY = "IFCA, exploring as 1/t", "IFCA, exploring as 1/sqrt(t)"
REDRAWN, LAST_LAYER, STOPPED = "IFCA, redrawn", "IFCA, last layer", "IFCA, early stopping"
# IFCA's code redraws initial models until each is the best one of so large a share of the clients,
# by the number of orientations.
LEAST_SHARES = {2: 0.35, 4: 0.1}


def clustered(setting: Adaptive, clusters: int, eps: float, **options: Any) -> Experiment:
    """Return the federation of J clusters, explored with probability eps by default."""
    found = {"client": setting.cluster, "clusters": clusters, "explore": EpsilonGreedy(eps)}
    return federated(setting, IFCA(**{**setting.local_round, **found, **options}))


def _at_home(setting: Adaptive, algorithm: object, **stages: Experiment) -> Experiment:
    return federated(setting, algorithm, **{**common.ONCE, "evaluate_every": 0}, **stages)


def alone(setting: Adaptive) -> Experiment:
    """Return the local experts, which are trained without a federation."""
    return _at_home(setting, Local(**setting.home(setting.local), model=setting.own))


def mixed(
    setting: Adaptive, first: Experiment, gate: Optimizer | None = None, **options: Any
) -> Experiment:
    """Return a mixture over the clusters of ``first`` and the local experts, all of them frozen."""
    home = setting.home(gate or setting.gate)
    fields = {**home, "expert": setting.own, "gate": setting.chooser, "frozen": True, **options}
    return _at_home(setting, Mixture(**fields), first_stage=first, local_stage=alone(setting))


def ways(setting: Adaptive, clusters: int, eps: float) -> dict[str, Experiment]:
    """Return the ways to use clusters: the best one, all of them, or one to start from."""
    first = clustered(setting, clusters, eps)
    eager = replace(setting.gate, lr=setting.eager * setting.gate.lr)
    return {
        BEST: first,
        MOE: mixed(setting, first),
        EAGER: mixed(setting, first, eager),
        ALL_EQUAL: mixed(setting, first, pool="mean"),
        common.TUNED: _at_home(setting, Local(**setting.home(setting.tuned)), first_stage=first),
    }


def _compared(setting: Adaptive, dataset: str, **where: float) -> list[Run]:
    """Return every way at every number of clusters and rate of exploration.

    At intermediate rates of exploration, only the best cluster and the mixture are included; the
    faster gate only with the most clusters and exploration.
    """
    plain = {common.LOCAL: alone(setting), common.MAJORITY: common.floor(setting.task)}
    runs = placed(plain, **where)
    most = (max(setting.js), max(setting.eps))
    for clusters in setting.js:
        # One cluster leaves nothing to explore.
        for eps in setting.eps if clusters > 1 else (0.0,):
            made = ways(setting, clusters, eps)
            if (clusters, eps) != most:
                del made[EAGER]
            if eps not in (0.0, most[1]):
                made = {BEST: made[BEST], MOE: made[MOE]}
            runs += placed(made, **where, J=clusters, eps=eps)
    return runs


def _by_fraction(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way at every majority fraction (Table 2, Fig. 3 to 6)."""
    least = replace(setting, js=(max(setting.js),), eps=(0.0, max(setting.eps)))
    here = {p: setting if p in (setting.whole or setting.ps) else least for p in setting.ps}
    return [run for p, some in here.items() for run in _compared(some.at(p), dataset, p=p)]


def _by_clusters(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way at every number of clusters (Fig. 4), at one majority fraction."""
    return _compared(setting.at(setting.some_p), dataset, p=setting.some_p)


def _joint(setting: Adaptive, dataset: str) -> list[Run]:
    """Return mixtures whose experts are all trained together with the gate, as released (A28).

    The best cluster and the mixture with frozen experts are included for comparison.
    """
    runs: list[Run] = []
    for p in setting.ps:
        here, most = setting.at(p), max(setting.js)
        runs += placed({common.LOCAL: alone(here), common.MAJORITY: common.floor(here.task)}, p=p)
        for eps in setting.eps:
            first = clustered(here, most, eps)
            trained = mixed(here, first, frozen=False, train_global=True)
            made = {BEST: first, MOE: mixed(here, first), JOINT: trained}
            runs += placed(made, p=p, J=most, eps=eps)
    return runs


def _ensembles(setting: Adaptive, dataset: str) -> list[Run]:
    """Return the methods without a gate: the best cluster, and the mean of all experts."""
    runs: list[Run] = []
    for p in setting.ps:
        here, most = setting.at(p), max(setting.js)
        runs += placed({common.LOCAL: alone(here), common.MAJORITY: common.floor(here.task)}, p=p)
        for eps in setting.eps:
            made = ways(here, most, eps)
            runs += placed({m: made[m] for m in (BEST, ALL_EQUAL)}, p=p, J=most, eps=eps)
    return runs


def _participation(setting: Adaptive, dataset: str) -> list[Run]:
    """Return clusters, mixtures and a single model by the number of clients in a round.

    The number of rounds is such that rounds times clients, the local work, is constant.
    """
    here, most = setting.at(setting.some_p), max(setting.eps)
    runs = [Run(common.LOCAL, alone(here))]
    for cohort in setting.cohorts:
        rounds = round(setting.rounds * setting.cohort / cohort)
        every = max(1, setting.evaluate_every * rounds // setting.rounds)
        some = replace(here, cohort=cohort, rounds=rounds, evaluate_every=every)
        runs.append(Run(common.FEDAVG, clustered(some, 1, 0.0), {"cohort": cohort}))
        for eps in (0.0, most):
            first = clustered(some, max(setting.js), eps)
            runs += placed({BEST: first, MOE: mixed(some, first)}, cohort=cohort, eps=eps)
    return runs


def _by_orientation(setting: Adaptive, dataset: str) -> list[Run]:
    """Return every way with groups of clients in different orientations (rotated CIFAR-10).

    IFCA without exploration is also run from initial models that are redrawn, as in its code.
    """
    runs: list[Run] = []
    for k, share in LEAST_SHARES.items():
        here = setting.turned(k)
        runs += _compared(here, dataset, orientations=k)
        redrawn = clustered(here, k, 0.0, least_share=share)
        runs.append(Run(REDRAWN, redrawn, {"orientations": k, "J": k, "eps": 0.0}))
    return runs


def _as_released(setting: Adaptive, dataset: str) -> list[Run]:
    """Return the mixture and the best cluster as described, and as in the released code (A29).

    The code selects on tests in place of validation examples, mixes only clusters that are some
    client's best, and determines the best cluster by the training loss.
    """
    here, clusters, eps = setting.at(setting.some_p), max(setting.js), max(setting.eps)
    peek = replace(here, task=replace(here.task, validate_on="test"))
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
        common.MAJORITY: common.floor(here.task),
    }
    return placed(made, p=setting.some_p)


def _options(setting: Adaptive, dataset: str) -> list[Run]:
    """Return other ways to find clusters, at one majority fraction."""
    here, most = setting.at(setting.some_p), max(setting.eps)
    found = partial(clustered, here, 3)
    others = {
        FADING: found(1.0, explore=EpsilonGreedy(1.0, decay=1.0)),
        SLOWLY: found(1.0, explore=EpsilonGreedy(1.0, decay=0.5)),
        REDRAWN: found(0.0, least_share=0.1),
        LAST_LAYER: found(most, clustered="head."),
        STOPPED: found(most, stop=setting.converged),
        common.MAJORITY: common.floor(here.task),
    }
    ends = [Run(BEST, found(eps), {"eps": eps}) for eps in (0.0, most)]
    return [*ends, *placed(others)]


section = common.sections("adaptive", Adaptive, TASKS)
ADAPTIVE = section("adaptive", _by_fraction)
ADAPTIVE_CLUSTERS = section("adaptive_clusters", _by_clusters)
ADAPTIVE_JOINT = section("adaptive_joint", _joint)
ADAPTIVE_OWN_NETWORK = section("adaptive_own_network", _ensembles, common.BOTH[1:])
ADAPTIVE_PARTICIPATION = section("adaptive_participation", _participation)
ADAPTIVE_ROTATED = section("adaptive_rotated", _by_orientation)
ADAPTIVE_WRITERS = section("adaptive_writers", _compared)
ADAPTIVE_RELEASED = section("adaptive_released", _as_released)
ADAPTIVE_OPTIONS = section("adaptive_options", _options)

# The stages of tuning in their order (sec. 4.4) before that of exploration: local experts, cluster
# model and gate, with the optimiser and the network that each of them changes.
_CHANGED = {"local": ("local", "own"), "global": ("cluster", "task"), "gate": ("gate", "chooser")}
SEED = 11  # the seed of tuning, which no figure uses


def spaces(scale: str) -> dict[str, Space]:
    """Return the search space of each stage at a scale; there is none at the quick one.

    ``settings.toml`` has the learning rates, and the widths of both convolutions and the hidden
    layer.
    """
    searched = tables("adaptive", "settings.toml")["searched"]
    check_choice("scale", scale, searched)
    found = dict[str, Space]()
    for stage, (low, high, *sizes) in searched[scale].items():
        rates = {"lr": Uniform(low, high), "weight_decay": Uniform(1e-4, 1e-2)}
        widths = zip(("first", "second", "hidden"), map(Choice, map(tuple, sizes)), strict=True)
        found[stage] = {**rates, **dict(widths)}
    return {**found, "exploration": {"eps": Uniform(0.01, 0.99, log=False)}}


def changed(setting: Adaptive, stage: str, chosen: Mapping[Any, Any]) -> Adaptive:
    """Return the setting with the parameters that a stage has chosen."""
    if stage == "exploration":
        return replace(setting, eps=(0.0, chosen["eps"]))
    (rates, net), decay = _CHANGED[stage], chosen["weight_decay"]
    optimizer = replace(getattr(setting, rates), lr=chosen["lr"], weight_decay=decay)
    first, second, hidden = (int(chosen[name]) for name in ("first", "second", "hidden"))
    model = LeNet(channels=(first, second), hidden=(hidden,))
    part = replace(setting.task, model=model) if net == "task" else model
    return replace(setting, **{rates: optimizer, net: part})


def trial(setting: Adaptive, stage: str, chosen: Mapping[Any, Any]) -> Experiment:
    """Return the experiment whose validation accuracy scores the parameters of a stage."""
    here = changed(setting, stage, chosen)
    explored = (max(here.js), max(here.eps)) if stage == "exploration" else (1, 0.0)
    first = clustered(here, *explored)
    made = {"local": alone(here), "global": first}
    return seeded(made.get(stage, mixed(here, first)), SEED)


def tune(
    setting: Adaptive, spaces: Mapping[str, Space], **how: Any
) -> tuple[Adaptive, pd.DataFrame]:
    """Tune the four stages one after another, each with the best parameters of those before it.

    Source: 003, sec. 4.4.

    Args:
        setting: the setting.
        spaces: the search space of each stage.
        how: further arguments of `tuning.search`: trials, workers, address, device.

    Returns:
        The tuned setting, and every trial: stage, trial, score (the clients' mean validation
        accuracy), best and the parameters.
    """
    tables = []
    for stage, space in spaces.items():
        one = partial(trial, setting, stage)
        table = pd.DataFrame(tuning.search(stage, one, space, seed=SEED, **how))
        table = table.assign(stage=stage, trial=range(len(table)))
        best = int(table["score"].argmax())
        tables.append(table.assign(best=table.index == best))
        # Records have Python's own numbers.
        setting = changed(setting, stage, table.to_dict("records")[best])
    return setting, pd.concat(tables, ignore_index=True)


def trials_file(name: str) -> Path:
    """Return the file in which the trials of a search are kept with the project."""
    return paths.results() / "tuning" / f"{name}.csv"
