"""Which runs the tables and figures of 004 need: fourteen methods, PM-MoE, and what gates are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, federated, placed
from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.algorithms.splitting import Split
from fedlib.models import ACTIVATIONS, INITS
from fedlib.optim import sgd
from fedlib.runs import Experiment
from papers.floor import MAJORITY, floor
from papers.pm_moe import DENOISED, NINE, SERVERS_BASE, STAGE, SYNCHRONOUS, UNTUNED, WITH_MOE
from papers.pm_moe.settings import PrivateParts, known


def fourteen(setting: PrivateParts) -> dict[str, FedAvg]:
    """Return the fourteen methods, in the order of 004, Table 1."""
    c, wide = local_round(setting), setting.generator
    made = {
        "FedAvg": algorithms.FedAvg(**c),
        "FedProx": algorithms.FedProx(**c),
        "SCAFFOLD": algorithms.SCAFFOLD(**c),
        "MOON": algorithms.MOON(**c),
        "FedGen": algorithms.FedGen(steps=setting.fitted, noise=wide, hidden=wide, **c),
        "FedPer": algorithms.FedPer(**c),
        "LG-FedAvg": algorithms.LGFedAvg(**c),
        "FedRep": algorithms.FedRep(head_epochs=setting.head_epochs, **c),
        "FedRoD": algorithms.FedRoD(**c),
        "FedBABU": algorithms.FedBABU(**c),
        "FedGH": algorithms.FedGH(**c),
        "FedCP": algorithms.FedCP(apart=setting.apart, **c),
        "GPFL": algorithms.GPFL(near=setting.near, decay=setting.decay, **c),
        "DBE": algorithms.DBE(kappa=setting.kappa, **c),
    }
    return made | {m: replace(made[m], client=sgd(rate)) for m, rate in setting.rates}


def local_round(setting: PrivateParts, **more: Any) -> dict[str, Any]:
    """Return the fields of what clients do in a round, with ``more``."""
    fields = {"epochs": setting.local_epochs, "batch_size": setting.batch_size}
    return {**fields, "client": sgd(setting.rate), **more}


def stage(
    setting: PrivateParts,
    algorithm: FedAvg,
    after: Experiment | None = None,
    beside: Experiment | None = None,
) -> Experiment:
    """Return a stage that all clients train by themselves, for one round."""
    fields: dict[str, Any] = {"cohort": 1.0, "evaluate_every": 1}
    return Experiment(setting.task, algorithm, 1, **fields, after=after, beside=beside)


def at_home(setting: PrivateParts, epochs: int, after: Experiment | None = None) -> Experiment:
    """Return a stage in which every client trains its own model, or tunes what it has."""
    return stage(setting, algorithms.Local(**local_round(setting, epochs=epochs)), after)


def first_stages(setting: PrivateParts) -> dict[str, Experiment]:
    """Return the federations, FedBABU's with the fine-tuning that is part of it; and the floor."""
    runs = {m: federated(setting, a, cohort=1.0) for m, a in fourteen(setting).items()}
    runs[UNTUNED] = runs["FedBABU"]
    runs["FedBABU"] = at_home(setting, setting.tuned, runs[UNTUNED])
    runs[MAJORITY] = floor(setting.task)
    return runs


def mixed(setting: PrivateParts, method: str, own_base: bool = True, **options: Any) -> Experiment:
    """Return PM-MoE over the private parts of a method: a second stage of its federation.

    After FedBABU every client keeps its fine-tuned base, as released (A43), if it is to have its
    ``own_base``, or else gets the server's.
    """
    of = fourteen(setting)[method]
    if method == "FedBABU" and own_base:
        of = algorithms.Personal(**local_round(setting), local=("base.", "head."))
    assert isinstance(of, Split)
    fields: dict[str, Any] = {
        "epochs": setting.gated,
        "batch_size": setting.batch_size,
        "client": sgd(setting.gate_rate),
        "gate": setting.gate,
        "top": setting.clients // (1 if setting.shared else 2),
    }
    second = algorithms.PMMoE(of=of, **{**fields, **options})
    return stage(setting, second, first_stages(setting)[method])


def synchronous(setting: PrivateParts) -> Experiment:
    """Return Fed-Syn-MoE, a mixture that is trained from the start (Table 4)."""
    mixture = algorithms.FedSynMoE(**local_round(setting), gate=setting.gate)
    return federated(setting, mixture, cohort=1.0)


def _each_ratio(
    plan: Callable[[PrivateParts], Sequence[Run]],
) -> Callable[[PrivateParts, str], list[Run]]:
    """Return a plan at every shared ratio, S in percent as in 004."""

    def all_ratios(setting: PrivateParts, dataset: str) -> list[Run]:
        return [
            replace(run, where={"S": 100 * ratio, **run.where})
            for ratio in setting.ratios
            for run in plan(setting.sharing(ratio))
        ]

    return all_ratios


def _mixtures(setting: PrivateParts) -> list[Run]:
    """Return the nine methods, each alone, with PM-MoE and with denoising; and Fed-Syn-MoE."""
    runs: list[Run] = []
    alone = first_stages(setting)
    for method in NINE:
        second = {WITH_MOE: mixed(setting, method)}
        second[DENOISED] = mixed(setting, method, denoise=setting.gamma)
        runs += [Run(method, alone[method])]
        runs += [Run(method, made, {STAGE: name}) for name, made in second.items()]
    own = mixed(setting, "FedBABU", own_base=False)
    runs.append(Run("FedBABU", own, {STAGE: SERVERS_BASE}))
    return runs + placed({SYNCHRONOUS: synchronous(setting), MAJORITY: alone[MAJORITY]})


def _study(setting: PrivateParts) -> list[Run]:
    """Return what a gate is made of, one choice at a time (Fig. 5 to 8), and the floor.

    What is chosen anyway is the mixture of which nothing else is said.
    """
    runs = [Run(MAJORITY, floor(setting.task))]
    for method in setting.studied:
        alone, plain = first_stages(setting)[method], mixed(setting, method)
        runs += [Run(method, alone), Run(method, plain, {STAGE: WITH_MOE})]
        known = [alone, plain]
        for where, options in _choices(setting):
            made = mixed(setting, method, **options)
            if made not in known:
                runs.append(Run(method, made, {STAGE: WITH_MOE, **where}))
                known.append(made)
    return runs


def _choices(setting: PrivateParts) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each choice by name, and the options of a mixture that make it."""
    gate, gamma = setting.gate, setting.gamma
    depths = range(1, len(gate.hidden) + 2)
    made: dict[str, dict[Any, dict[str, Any]]] = {
        "k": {k: {"top": k} for k in setting.tops},
        "lr": {rate: {"client": sgd(rate)} for rate in setting.gate_rates},
        "epochs": {n: {"epochs": n} for n in setting.gate_epochs},
        "gamma": {g: {"denoise": g} for g in setting.gammas},
        "layers": {n: {"gate": replace(gate, hidden=gate.hidden[: n - 1])} for n in depths},
        "activation": {a: {"gate": replace(gate, activation=a)} for a in ACTIVATIONS},
        "initialisation": {i: {"gate": replace(gate, init=i)} for i in INITS},
        "weights": {"renormalised": {"renormalised": True}, "favouring its own": {"favour": 5.0}},
    }
    cold = [
        ({"gamma": gamma, "T": t}, {"denoise": gamma, "temperature": t})
        for t in setting.temperatures
    ]
    return [({n: c}, options) for n, each in made.items() for c, options in each.items()] + cold


_KNOWN = known(("mnist", "fashion_mnist", "cifar10"))
FOURTEEN = Section("fourteen", _KNOWN, _each_ratio(lambda setting: placed(first_stages(setting))))
PRIVATE_PARTS = Section("private_parts", _KNOWN, _each_ratio(_mixtures))
GATES = Section("gates", known(("cifar10",), ("cifar10",)), _each_ratio(_study))
