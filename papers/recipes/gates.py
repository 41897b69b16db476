"""What a gate of PM-MoE is made of, one choice at a time (004, Fig. 5 to 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Section, at
from fedlib.models.gate import ACTIVATIONS, INITS
from fedlib.optim import sgd
from fedlib.runs import Experiment
from papers.recipes.floor import MAJORITY, floor
from papers.recipes.private_parts import (
    WITH_MOE,
    PrivateParts,
    each_ratio,
    first_stages,
    known,
    mixed,
)


def _study(setting: PrivateParts) -> dict[str, Experiment]:
    """Return what a gate is made of, one choice at a time (Fig. 5 to 8), and the floor.

    What is chosen anyway is the mixture without further name.
    """
    gate = setting.gate
    runs: dict[str, Experiment] = {MAJORITY: floor(setting.task)}
    for method in setting.studied:
        name = f"{method} {WITH_MOE}"
        runs |= {method: first_stages(setting)[method], name: mixed(setting, method)}
        choices: dict[str, dict[str, Any]] = {
            **{at(name, k=k): {"top": k} for k in setting.tops},
            **{at(name, lr=rate): {"client": sgd(rate)} for rate in setting.gate_rates},
            **{at(name, epochs=n): {"epochs": n} for n in setting.gate_epochs},
            **{at(name, gamma=g): {"denoise": g} for g in setting.gammas},
            **{
                at(name, gamma=setting.gamma, T=t): {"denoise": setting.gamma, "temperature": t}
                for t in setting.temperatures
            },
            **{
                at(name, layers=n): {"gate": replace(gate, hidden=gate.hidden[: n - 1])}
                for n in range(1, len(gate.hidden) + 2)
            },
            **{f"{name}, {a}": {"gate": replace(gate, activation=a)} for a in ACTIVATIONS},
            **{f"{name}, {i}": {"gate": replace(gate, init=i)} for i in INITS},
            f"{name}, renormalised": {"renormalised": True},
            f"{name}, favouring its own": {"favour": 5.0},
        }
        for choice, options in choices.items():
            made = mixed(setting, method, **options)
            runs |= {choice: made} if made not in runs.values() else {}
    return runs


GATES = Section("gates", known(("cifar10",), ("cifar10",)), each_ratio(_study))
