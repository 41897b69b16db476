"""Which runs each figure of FedMix (000) needs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from companion.sections import Run, Section, Setting, federated, placed
from fedlib import algorithms, data
from fedlib.algorithms import FedAvg, FedMix, LocalGlobal, Personal, PrunedFedMix
from fedlib.engine import EarlyStop, Report, State, play_round
from fedlib.federation import Federation
from fedlib.models import ResNet, widened
from fedlib.optim import adam, sgd
from fedlib.partition import IID, Clients, Mirrored
from fedlib.privacy import NoisyFedMix
from fedlib.runs import Experiment, begun, run_with_state
from fedlib.tasks import Task
from papers import fedmix as names
from papers.fedmix import settings
from papers.fedmix.settings import ABLATED
from papers.scaled import ONCE

# What figures compare; Fig. 4 by data set, of which the digits have the label skew of CIFAR-10.
FIG_3 = (names.FEDAVG, names.FEDMIX, names.ENSEMBLE, names.UNREGULARISED, names.ORIGINAL)
_MIXTURES = (names.TWO, names.FEDMIX, names.PRUNING, names.BIAS)
_SKEWED = (names.FEDAVG, *names.WIDE.values(), names.BIASED, names.LOCAL_GLOBAL, *_MIXTURES)
FIG_4 = {
    "digits": _SKEWED,
    "cifar10": _SKEWED,
    "cifar100": (*names.JOINING, names.TEN, names.TEN_PRUNED),
    "femnist": (names.FEDAVG, names.BIASED, names.TWO, names.FEDMIX),
}
FIG_5 = (names.FEDAVG, names.BIASED, names.BY_LABEL, names.BY_ANGLE)


def fedavg(setting: Setting) -> dict[str, Any]:
    """Return the fields that every algorithm of a setting shares."""
    local = {"batch_size": setting.batch_size, "epochs": setting.local_epochs}
    return {"server": adam(setting.server_rate), **local}


def fedmix(setting: Setting, **more: Any) -> dict[str, Any]:
    """Return the fields that every FedMix of a setting shares, with ``more``."""
    return {**fedavg(setting), "experts": setting.experts, "server": setting.server, **more}


def methods(setting: Setting, **mixture: Any) -> dict[str, FedAvg]:
    """Return every algorithm that figures name; each says in what it differs from its like.

    ``mixture`` are further fields of all mixtures. Local/Global has the paper's cut: the input
    layer, or a ResNet's first block.
    """
    plain, mix = fedavg(setting), fedmix(setting, **mixture)
    ten, cut = {**mix, "experts": 10}, 4 if isinstance(setting.task.model, ResNet) else 3
    experts, etas = ABLATED["cifar10"]
    return {
        **{names.with_experts(k): FedMix(**{**mix, "experts": k}) for k in experts},
        **{names.with_pruning(eta): PrunedFedMix(**mix, eta=eta) for eta in etas},
        names.TEN_PRUNED: PrunedFedMix(**ten, eta=names.ETA),
        names.FEDAVG: FedAvg(**plain),
        names.BIASED: Personal(**plain),
        names.LOCAL_GLOBAL: LocalGlobal(**plain, cut=cut),
        names.FEDMIX: FedMix(**mix),
        names.ENSEMBLE: FedMix(objective="entropy", **mix),
        names.UNREGULARISED: FedMix(marginal_entropy=0.0, **mix),
        names.ORIGINAL: FedMix(objective="likelihood", **mix),
        names.BIAS: FedMix(personal_bias=True, **mix),
        names.BY_LABEL: FedMix(**mix),
        names.BY_ANGLE: FedMix(condition="angle", **mix),
    }


def _of(*compared: str) -> Callable[[Setting, str], list[Run]]:
    """Return a plan: the federations of some methods."""

    def plan(setting: Setting, dataset: str) -> list[Run]:
        known = methods(setting)
        return placed({m: federated(setting, known[m]) for m in compared})

    return plan


def _label_skew(setting: Setting, dataset: str) -> list[Run]:
    """Return Fig. 3 and 14: FedMix's variants, and the original mixture with S = 1 (Fig. 14b).

    The rounds of the latter are epochs.
    """
    apart: Any = setting.task.held_out
    one = Mirrored(apart.pool, validation=apart.pool // 2, test=apart.test * 5)
    task = Task(setting.task.dataset, IID(clients=1), setting.task.model, one)
    mix = {"experts": setting.experts, "batch_size": setting.batch_size, "server": sgd(1.0)}
    plain = FedMix(objective="likelihood", **mix)  # type: ignore[arg-type]
    central = Experiment(task, plain, rounds=setting.epochs, cohort=1, evaluate_every=1)
    federations = _of(*FIG_3)(setting, dataset)
    return [*federations, Run(names.CENTRALISED, central)]


def _communication(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 4; on FEMNIST gates are averaged, as local ones overfit."""
    known = methods(setting, **({"gates": "averaged"} if dataset == "femnist" else {}))
    times = {name: times for times, name in names.WIDE.items()}
    return placed(
        {
            m: wider(setting, times[m]) if m in times else federated(setting, known[m])
            for m in FIG_4[dataset]
        }
    )


@cache
def wider(setting: Setting, times: int) -> Experiment:
    """Return FedAvg with a LeNet of ``times`` as many parameters."""
    model: Any = setting.task.model
    wide = replace(setting.task, model=widened(model, times, *data.form(setting.task.dataset)))
    return replace(federated(setting, FedAvg(**fedavg(setting))), task=wide)


def _ablation(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts and the thresholds of Fig. 11."""
    experts, etas = ABLATED[dataset]
    mixtures = [*map(names.with_experts, experts), *map(names.with_pruning, etas)]
    return _of(names.FEDAVG, *mixtures)(setting, dataset)


def _permuted(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts of Fig. 8; four permutations are there to be found.

    With as many experts also at half the server's rate in twice the rounds, so that permutations
    have time to part before an expert falls behind.
    """

    def found(here: Setting, k: int, **more: int) -> Experiment:
        return federated(here, algorithms.ClusteredFedMix(**fedmix(here, experts=k)), **more)

    slow = replace(setting, server_rate=setting.server_rate / 2, phi_rate=setting.phi_rate / 2)
    slower = {names.SLOWER: found(slow, 4, rounds=2 * setting.rounds)}
    return placed({**{names.with_k(k): found(setting, k) for k in names.KS}, **slower})


def _new_clients(setting: Setting, dataset: str) -> list[Run]:
    """Return FedAvg and FedMix on all clients, FedMix with p(s|x), and newcomers with labels.

    For the latter four fifths of the clients federate, and the others join.
    """
    known, everyone = methods(setting), setting.task.partition
    clients, first = setting.clients, setting.clients * 4 // 5
    parts = Clients(everyone, last=first), Clients(everyone, first, clients)
    seen, new = map(setting.dealt, parts)
    there = {m: federated(setting, known[m]) for m in (names.FEDAVG, names.FEDMIX)}
    vae: dict[str, Any] = settings.VAE[dataset]
    densities = algorithms.Densities(of=known[names.FEDMIX], **vae)
    there[names.DENSITIES] = federated(setting, densities, after=there[names.FEDMIX], **ONCE)
    stop, joined = EarlyStop(every=1, patience=5), {}
    for m in names.JOINING:
        at_home = {"epochs": 100, "batch_size": setting.batch_size, "stop": stop}
        join = algorithms.Newcomers(of=known[m], **at_home)  # type: ignore[arg-type]
        joined[m] = federated(new, join, after=federated(seen, known[m]), **ONCE)
    return [*placed(there), *placed(joined, who=names.NEW)]


def _privacy(setting: Setting, dataset: str) -> list[Run]:
    """Return one round with all clients, from a fresh or a trained model, with an audit."""
    known, runs, audited = methods(setting), [], {**ONCE, "audit": True}
    for method in (names.FEDAVG, names.BIASED, names.FEDMIX):
        one = known[method]
        messages = {
            names.STEP: federated(setting, replace(one, batch_size=None), **audited),
            names.EPOCH: federated(setting, one, **audited),
            names.TRAINED: federated(setting, one, after=federated(setting, one), **audited),
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
# Fig. 1, 3, 4, 13 and 14 at the paper's time scale: as many rounds, at the paper's rates.
LONG = Section("long", settings.LONG, _of(*(method for method, _ in settings.ONE_SEED)))
ROTATED = Section("rotated", settings.ROTATED, _of(*FIG_5))
PERMUTED = Section("permuted", settings.PERMUTED, _permuted)
NEW_CLIENTS = Section("new_clients", settings.NEW_CLIENTS, _new_clients)
PRIVACY = Section("privacy", settings.PRIVACY, _privacy)
