"""The experiments of 004 at three scales: fourteen methods, PM-MoE, and its gates."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from itertools import product
from typing import Any, Self

from companion.sections import Run, Setting, federated, placed
from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.algorithms.features import FeaturesAudit
from fedlib.models.architectures import ACTIVATIONS, INITS, GateNet
from fedlib.optim import sgd
from fedlib.privacy import PartsAudit
from fedlib.values import NonNegativeFloat, value
from fedrun import Experiment
from papers.pm_moe import DENOISED, NINE, SERVERS_BASE, STAGE, SYNCHRONOUS, UNTUNED, WITH_MOE
from papers.scaled import MAJORITY, ONCE, floor, sections, tasks

# Methods whose private parts are audited: heads, a vector, and bases.
REVEALING = ("FedPer", "FedRep", "FedRoD", "FedCP", "DBE", "LG-FedAvg")


@value
class PrivateParts(Setting):
    """The rates and lengths of both stages, and the values that are compared.

    A method's own numbers are 004's, or those of the method's paper if 004's scripts give none.
    Fields without a default differ by scale.

    Attributes:
        near, decay: of GPFL.
        gate_rate: the learning rate of gates.
        gamma: the share of the experts that denoising leaves out.
        experts: of FedMix.
        ratios: the shares (S / 100) of every class that are distributed equally.
        gate_rates, gammas, temperatures: the values that are compared, one choice of a gate at a
            time.
        select: which state of a federation is kept.
        rate: the learning rate of every client's SGD.
        phi_rate: of FedMix.
        rates: the learning rates of methods that have another one.
        apart: lambda of FedCP.
        kappa: of DBE.
        header_rate: the learning rate of FedGH's server for the output layer.
        fitted: the steps per round of FedGen's generator.
        generator: the width of its noise and its hidden layer.
        tuned: the epochs of FedBABU's fine-tuning.
        gated: the epochs of a gate. It takes the M / 2 largest weights, or all M if a part of every
            class is shared, as 004 finds best.
        studied: the methods on which choices of a gate are compared.
        tops, gate_epochs: the values that are compared.
    """

    near: float = 0.01
    decay: float = 0.1
    gate_rate: float = 0.1
    gamma: float = 0.2
    experts: int = 4
    ratios: tuple[NonNegativeFloat, ...] = (0.0, 0.2)
    gate_rates: tuple[float, ...] = (0.05, 0.1, 0.5)
    gammas: tuple[float, ...] = (0.2, 0.5, 0.8)
    temperatures: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    select: str = "last"
    _: KW_ONLY
    rate: float
    phi_rate: float
    rates: tuple[tuple[str, float], ...]
    apart: float
    kappa: float
    header_rate: float
    fitted: int
    generator: int
    tuned: int
    gated: int
    studied: tuple[str, ...]
    tops: tuple[int, ...]
    gate_epochs: tuple[int, ...]

    def sharing(self, ratio: float) -> Self:
        """Return the setting with a ratio of every class distributed equally."""
        return self.dealt(replace(self.task.partition, shared=ratio))  # type: ignore[call-arg]

    @property
    def shared(self) -> float:
        """The ratio of every class that is distributed equally."""
        return float(self.task.partition.shared)  # type: ignore[attr-defined]


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
        "FedRep": algorithms.FedRep(head_epochs=1, **c),
        "FedRoD": algorithms.FedRoD(**c),
        "FedBABU": algorithms.FedBABU(**c),
        "FedGH": algorithms.FedGH(head=sgd(setting.header_rate), **c),
        "FedCP": algorithms.FedCP(lam=setting.apart, **c),
        "GPFL": algorithms.GPFL(near=setting.near, decay=setting.decay, **c),
        "DBE": algorithms.DBE(kappa=setting.kappa, **c),
    }
    return made | {m: replace(made[m], client=sgd(rate)) for m, rate in setting.rates}


def local_round(setting: PrivateParts, **more: Any) -> dict[str, Any]:
    """Return the fields of an algorithm that describe a client's round, with ``more``."""
    return {**setting.local_round, "client": sgd(setting.rate), **more}


def stage(setting: PrivateParts, algorithm: FedAvg, **before: Experiment | None) -> Experiment:
    """Return a stage of one round that all clients train by themselves, ``before`` it others."""
    return federated(setting, algorithm, **ONCE, **before)


def at_home(setting: PrivateParts, epochs: int, after: Experiment | None = None) -> Experiment:
    """Return a stage in which every client trains its own model, or fine-tunes one."""
    local = algorithms.Local(**local_round(setting, epochs=epochs))
    return stage(setting, local, first_stage=after)


def first_stages(setting: PrivateParts) -> dict[str, Experiment]:
    """Return the federations and the majority-class baseline.

    FedBABU's federation is followed by the fine-tuning that is part of it.
    """
    runs = {m: _federation(setting, a) for m, a in fourteen(setting).items()}
    runs[UNTUNED] = runs["FedBABU"]
    runs["FedBABU"] = at_home(setting, setting.tuned, runs[UNTUNED])
    runs[MAJORITY] = floor(setting.task)
    return runs


def mixed(setting: PrivateParts, method: str, own_base: bool = True, **options: Any) -> Experiment:
    """Return PM-MoE over the private parts of a method: a second stage of its federation.

    Args:
        setting: the setting.
        method: one of ``NINE``.
        own_base: whether, after FedBABU, every client keeps its fine-tuned base, as released (A43),
            or else gets the server's.
        options: further fields of PM-MoE.
    """
    of: Any = fourteen(setting)[method]
    if method == "FedBABU" and own_base:
        of = algorithms.Personal(**local_round(setting), local=("base.", "head."))
    top = setting.clients // (1 if setting.shared else 2)
    gated = local_round(setting, epochs=setting.gated, client=sgd(setting.gate_rate))
    second = algorithms.PMMoE(of=of, **{**gated, "top": top, **options})
    return stage(setting, second, first_stage=first_stages(setting)[method])


def synchronous(setting: PrivateParts) -> Experiment:
    """Return Fed-Syn-MoE, a mixture that is trained from the start (Table 4)."""
    return _federation(setting, algorithms.FedSynMoE(**local_round(setting)))


def _federation(setting: PrivateParts, algorithm: FedAvg) -> Experiment:
    """Return the federation of all clients."""
    return federated(setting, algorithm, cohort=1.0, select=setting.select)


def _each_ratio(plan: Callable[[PrivateParts], Sequence[Run]]) -> Callable[..., Sequence[Run]]:
    """Return a plan at every shared ratio, with S in percent as in 004."""
    return lambda setting, dataset: [
        replace(run, where={"S": 100 * ratio, **run.where})
        for ratio in setting.ratios
        for run in plan(setting.sharing(ratio))
    ]


def _mixtures(setting: PrivateParts) -> list[Run]:
    """Return the nine methods alone, with PM-MoE and with denoising; and Fed-Syn-MoE."""
    runs, alone = [], first_stages(setting)
    stages: dict[str, dict[str, Any]] = {WITH_MOE: {}, DENOISED: {"denoise": setting.gamma}}
    for m in NINE:
        runs.append(Run(m, alone[m]))
        runs += [Run(m, mixed(setting, m, **how), {STAGE: name}) for name, how in stages.items()]
    runs.append(Run("FedBABU", mixed(setting, "FedBABU", own_base=False), {STAGE: SERVERS_BASE}))
    return runs + placed({SYNCHRONOUS: synchronous(setting), MAJORITY: alone[MAJORITY]})


def _revealed(setting: PrivateParts) -> list[Run]:
    """Return audits of what the private parts of some methods reveal of labels (A.4)."""
    of: dict[str, Any] = fourteen(setting)
    alone = first_stages(setting)
    return placed(
        {m: stage(setting, PartsAudit(of=of[m]), first_stage=alone[m]) for m in REVEALING}
    )


def _features(setting: PrivateParts) -> list[Run]:
    """Return an audit of the features of LG-FedAvg's bases (Fig. 1A).

    The central model is trained for as many epochs as a client of the federation.
    """
    method, epochs = "LG-FedAvg", setting.rounds * setting.local_epochs
    of: Any = fourteen(setting)[method]
    central = algorithms.FedAvg(**local_round(setting, epochs=epochs))
    audit = FeaturesAudit(of=of, central=central)
    return [Run(method, stage(setting, audit, first_stage=first_stages(setting)[method]))]


def _renormalised(setting: PrivateParts) -> list[Run]:
    """Return mixtures of few experts with weights that sum to less than 1, and to 1 (A32)."""
    runs = [Run(MAJORITY, floor(setting.task))]
    for method in setting.studied:
        runs.append(Run(method, first_stages(setting)[method]))
        for k, even in product(setting.tops, (False, True)):
            made = mixed(setting, method, top=k, renormalised=even)
            weights = "renormalised" if even else "as they are"
            runs.append(Run(method, made, {STAGE: WITH_MOE, "k": k, "weights": weights}))
    return runs


def _study(setting: PrivateParts) -> list[Run]:
    """Return mixtures that vary the gate, one choice at a time (Fig. 5 to 8), and the baseline.

    A choice that is the default is the mixture without a choice in its place.
    """
    floored = floor(setting.task)
    runs = {floored: Run(MAJORITY, floored)}
    for method in setting.studied:
        alone = first_stages(setting)[method]
        runs[alone] = Run(method, alone)
        for where, options in ({}, {}), *_choices(setting):
            made = mixed(setting, method, **options)
            runs.setdefault(made, Run(method, made, {STAGE: WITH_MOE, **where}))
    return [*runs.values()]


def _choices(setting: PrivateParts) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the name of each choice with its value, and the options of a mixture that make it."""
    gate, gamma = GateNet(), setting.gamma
    depths = range(1, len(gate.hidden) + 2)
    return [
        *(({"k": k}, {"top": k}) for k in setting.tops),
        *(({"lr": rate}, {"client": sgd(rate)}) for rate in setting.gate_rates),
        *(({"epochs": n}, {"epochs": n}) for n in setting.gate_epochs),
        *(({"gamma": g}, {"denoise": g}) for g in setting.gammas),
        *(({"layers": n}, {"gate": replace(gate, hidden=gate.hidden[: n - 1])}) for n in depths),
        *(({"activation": a}, {"gate": replace(gate, activation=a)}) for a in ACTIVATIONS),
        *(({"initialisation": i}, {"gate": replace(gate, init=i)}) for i in INITS),
        ({"weights": "renormalised"}, {"renormalised": True}),
        ({"weights": "favouring its own"}, {"own_expert_bias": 5.0}),
        *(
            ({"gamma": gamma, "T": t}, {"denoise": gamma, "temperature": t})
            for t in setting.temperatures
        ),
    ]


TASKS = tasks("pm_moe")
section = sections("pm_moe", PrivateParts, TASKS)
FOURTEEN = section("fourteen", _each_ratio(lambda setting: placed(first_stages(setting))))
PRIVATE_PARTS = section("private_parts", _each_ratio(_mixtures))
GATES = section("gates", _each_ratio(_study))
GATES_RENORMALISED = section("gates_renormalised", _each_ratio(_renormalised))
# Federations whose state is chosen on validation examples, or that are five times as long.
PRIVATE_PARTS_CHOSEN = section("private_parts_chosen", _each_ratio(_mixtures))
PRIVATE_PARTS_LONG = section("private_parts_long", _each_ratio(_mixtures))
REVEALED = section("revealed_parts", _each_ratio(_revealed))
BORROWED = section("borrowed_features", _each_ratio(_features))
