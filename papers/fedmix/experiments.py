"""Which runs each figure of FedMix (000) needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from companion.sections import Run, Section, Setting, federated, placed
from fedlib import data as datasets
from fedlib.algorithms import (
    ClusteredFedMix,
    Densities,
    FedAvg,
    FedMix,
    LocalGlobal,
    Newcomers,
    Personal,
    PrunedFedMix,
)
from fedlib.engine import EarlyStop, Report, State, play_round
from fedlib.federation import Federation
from fedlib.models import LeNet, ResNet, widened
from fedlib.optim import adam, sgd
from fedlib.partition import IID, Clients, Mirrored
from fedlib.privacy import NoisyFedMix
from fedlib.runs import Experiment, begun, run_with_state
from fedlib.tasks import Task
from papers.fedmix import (
    BIAS,
    BIASED,
    BY_ANGLE,
    BY_LABEL,
    CENTRALISED,
    DENSITIES,
    ENSEMBLE,
    EPOCH,
    ETA,
    FEDAVG,
    FEDMIX,
    JOINING,
    KS,
    LOCAL_GLOBAL,
    NEW,
    ORIGINAL,
    PRUNING,
    SLOWER,
    STEP,
    TEN,
    TEN_PRUNED,
    TRAINED,
    TWO,
    UNREGULARISED,
    WIDE,
    settings,
    with_experts,
    with_k,
    with_pruning,
)


def fedavg(setting: Setting, **more: Any) -> dict[str, Any]:
    """Return the fields that every algorithm of a setting shares, with ``more``."""
    local = {"batch_size": setting.batch_size, "epochs": setting.local_epochs}
    return {"server": adam(setting.server_rate), **local, **more}


def fedmix(setting: Setting, **more: Any) -> dict[str, Any]:
    """Return the fields that every FedMix of a setting shares, with ``more``."""
    return {**fedavg(setting), "experts": setting.experts, "server": setting.server, **more}


def _federated(setting: Setting, algorithms: Mapping[str, FedAvg]) -> dict[str, Experiment]:
    return {method: federated(setting, each) for method, each in algorithms.items()}


def fedmix_variants(setting: Setting) -> dict[str, FedAvg]:
    """Return FedAvg, FedMix and the variants of Fig. 3 and 14, which differ by one option each."""
    mix = fedmix(setting)
    return {
        FEDAVG: FedAvg(**fedavg(setting)),
        FEDMIX: FedMix(**mix),
        ENSEMBLE: FedMix(objective="entropy", **mix),
        UNREGULARISED: FedMix(marginal_entropy=0.0, **mix),
        ORIGINAL: FedMix(objective="likelihood", **mix),
    }


def _label_skew(setting: Setting, dataset: str) -> list[Run]:
    """Return the variants, and the original mixture of experts with S = 1 (Fig. 14b).

    The rounds of the latter are epochs.
    """
    runs = _federated(setting, fedmix_variants(setting))
    return placed({**runs, CENTRALISED: _centralised(setting)})


def _centralised(setting: Setting) -> Experiment:
    apart = setting.task.held_out
    assert isinstance(apart, Mirrored)
    one = Mirrored(apart.pool, validation=apart.pool // 2, test=apart.test * 5)
    task = Task(setting.task.dataset, IID(clients=1), setting.task.model, one)
    plain = FedMix(
        experts=setting.experts,
        objective="likelihood",
        server=sgd(1.0),
        batch_size=setting.batch_size,
    )
    return Experiment(task, plain, rounds=setting.epochs, cohort=1, evaluate_every=1)


def _long(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 1, 3, 4, 13 and 14 whose time scale is the paper's.

    As many rounds, at the paper's rates, at the standard scale with the classic LeNet-5.
    """
    known = {**fedmix_variants(setting), BIASED: Personal(**fedavg(setting))}
    return placed(_federated(setting, {m: known[m] for m in (FEDAVG, BIASED, FEDMIX, ENSEMBLE)}))


def baselines(setting: Setting) -> dict[str, FedAvg]:
    """Return FedAvg and the two ways to keep a part of the network local.

    Local/Global has the paper's cut: the input layer, or a ResNet's first block.
    """
    fields, cut = fedavg(setting), 4 if isinstance(setting.task.model, ResNet) else 3
    return {
        FEDAVG: FedAvg(**fields),
        BIASED: Personal(**fields),
        LOCAL_GLOBAL: LocalGlobal(**fields, cut=cut),
    }


def _communication(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 4."""
    if dataset == "cifar100":
        return placed(_federated(setting, _cifar100(setting)))
    if dataset == "femnist":
        return placed(_federated(setting, _femnist(setting)))
    runs = _federated(setting, _cifar10(setting))
    wide = {name: wider(setting, times) for times, name in WIDE.items()}
    return placed({FEDAVG: runs.pop(FEDAVG), **wide, **runs})


def _cifar10(setting: Setting) -> dict[str, FedAvg]:
    return {
        **baselines(setting),
        TWO: FedMix(**fedmix(setting, experts=2)),
        FEDMIX: FedMix(**fedmix(setting)),
        PRUNING: PrunedFedMix(**fedmix(setting), eta=ETA),
        BIAS: FedMix(**fedmix(setting, personal_bias=True)),
    }


def _cifar100(setting: Setting) -> dict[str, FedAvg]:
    ten = fedmix(setting, experts=10)
    return {
        **baselines(setting),
        FEDMIX: FedMix(**fedmix(setting)),
        TEN: FedMix(**ten),
        TEN_PRUNED: PrunedFedMix(**ten, eta=ETA),
    }


def _femnist(setting: Setting) -> dict[str, FedAvg]:
    """Return FedMix with gates that are averaged, as local ones overfit."""
    known, gates = baselines(setting), {"gates": "averaged"}
    return {
        **{name: known[name] for name in (FEDAVG, BIASED)},
        **{with_experts(k): FedMix(**fedmix(setting, experts=k, **gates)) for k in (2, 4)},
    }


def wider(setting: Setting, times: int) -> Experiment:
    """Return FedAvg with a LeNet of ``times`` as many parameters."""
    model = setting.task.model
    assert isinstance(model, LeNet)
    wide = replace(setting.task, model=_widened(model, times, setting.task.dataset))
    return replace(federated(setting, FedAvg(**fedavg(setting))), task=wide)


@cache
def _widened(model: LeNet, times: int, dataset: str) -> LeNet:
    return widened(model, times, *datasets.form(dataset))


def _ablation(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts and the thresholds of Fig. 11."""
    experts, etas = settings.ABLATED[dataset]
    algorithms = {FEDAVG: FedAvg(**fedavg(setting))}
    algorithms |= {with_experts(k): FedMix(**fedmix(setting, experts=k)) for k in experts}
    algorithms |= {with_pruning(eta): PrunedFedMix(**fedmix(setting), eta=eta) for eta in etas}
    return placed(_federated(setting, algorithms))


def _rotated(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 5 and 6."""
    algorithms = {
        FEDAVG: FedAvg(**fedavg(setting)),
        BIASED: Personal(**fedavg(setting)),
        BY_LABEL: FedMix(**fedmix(setting)),
        BY_ANGLE: FedMix(**fedmix(setting, condition="angle")),
    }
    return placed(_federated(setting, algorithms))


def _permuted(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts of Fig. 8; four permutations are there to be found.

    With as many experts also at half the server's rate in twice the rounds, so that permutations
    have time to part before an expert falls behind.
    """
    mixes = {with_k(k): ClusteredFedMix(**fedmix(setting, experts=k)) for k in KS}
    slow = replace(setting, server_rate=setting.server_rate / 2, phi_rate=setting.phi_rate / 2)
    mix = ClusteredFedMix(**fedmix(slow, experts=4))
    slower = federated(setting, mix, rounds=2 * setting.rounds)
    return placed({**_federated(setting, mixes), SLOWER: slower})


def _new_clients(setting: Setting, dataset: str) -> list[Run]:
    """Return FedAvg and FedMix on all clients, FedMix with p(s|x), and newcomers with labels.

    For the latter four fifths of the clients federate, and the others join.
    """
    federation = {**baselines(setting), FEDMIX: FedMix(**fedmix(setting))}
    everyone = {m: federated(setting, federation[m]) for m in (FEDAVG, FEDMIX)}
    fitted = Densities(of=federation[FEDMIX], **settings.VAE[dataset])  # type: ignore[arg-type]
    last = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}
    seen, new = _divided(setting)
    joined = {}
    for method in JOINING:
        join = Newcomers(
            of=federation[method],
            epochs=100,
            batch_size=setting.batch_size,
            stop=EarlyStop(every=1, patience=5),
        )
        joined[method] = federated(new, join, after=federated(seen, federation[method]), **last)
    runs = {**everyone, DENSITIES: federated(setting, fitted, after=everyone[FEDMIX], **last)}
    return [*placed(runs), *placed(joined, who=NEW)]


def _divided(setting: Setting) -> tuple[Setting, Setting]:
    """Return the setting of the first four fifths of the clients, and of the others."""
    everyone = setting.task.partition
    clients = everyone.clients  # type: ignore[attr-defined]
    first = clients * 4 // 5
    parts = Clients(everyone, last=first), Clients(everyone, first, clients)
    seen, new = (replace(setting, task=replace(setting.task, partition=part)) for part in parts)
    return seen, new


def _privacy(setting: Setting, dataset: str) -> list[Run]:
    """Return one round with all clients, from a fresh or a trained model, with an audit."""
    kinds = {
        FEDAVG: (FedAvg, fedavg(setting)),
        BIASED: (Personal, fedavg(setting)),
        FEDMIX: (FedMix, fedmix(setting)),
    }
    once = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1, "audit": True}
    runs = []
    for method, (kind, fields) in kinds.items():
        whole = kind(**{**fields, "batch_size": None})
        one = kind(**fields)
        messages = {
            STEP: federated(setting, whole, **once),
            EPOCH: federated(setting, one, **once),
            TRAINED: federated(setting, one, after=federated(setting, one), **once),
        }
        runs += [Run(method, made, {"message": message}) for message, made in messages.items()]
    return runs


def with_noise(setting: Setting, noise: float) -> Experiment:
    """Return an ordinary training run in which clients hide what they send of phi behind noise."""
    return federated(setting, NoisyFedMix(noise=noise, **fedmix(setting)))


def overheard(experiment: Experiment) -> tuple[Federation, State, Report]:
    """Return the federation, the state before and the report of an audited run, played anew.

    On the CPU, in memory; a first stage is trained unless it is stored. What an audit stores are
    its findings: this has the messages themselves.
    """
    fed = experiment.task.build(experiment.seed, "cpu")
    stages = [run_with_state(stage, device="cpu", progress=False) for stage in experiment.before]
    state = begun(experiment, fed, [last for _, last in stages])
    before = State(dict(state.shared), {}, dict(state.optimizer), dict(state.memory))
    seed, cohort = experiment.seed, experiment.cohort
    _, report = play_round(experiment.algorithm, fed, state, round=0, seed=seed, cohort=cohort)
    return fed, before, report


LABEL_SKEW = Section("label_skew", settings.LABEL_SKEW, _label_skew)
COMMUNICATION = Section("communication", settings.COMMUNICATION, _communication)
ABLATION = Section("ablation", settings.ABLATION, _ablation)
LONG = Section("long", settings.LONG, _long)
ROTATED = Section("rotated", settings.ROTATED, _rotated)
PERMUTED = Section("permuted", settings.PERMUTED, _permuted)
NEW_CLIENTS = Section("new_clients", settings.NEW_CLIENTS, _new_clients)
PRIVACY = Section("privacy", settings.PRIVACY, _privacy)
SECTIONS = (LABEL_SKEW, COMMUNICATION, ABLATION, LONG, ROTATED, PERMUTED, NEW_CLIENTS, PRIVACY)
