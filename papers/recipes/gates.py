"""What a gate of PM-MoE is made of, one choice at a time (004, Fig. 5 to 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, placed
from fedlib.models.gate import ACTIVATIONS, INITS
from fedlib.optim import sgd
from papers.recipes.floor import MAJORITY, floor
from papers.recipes.private_parts import (
    WITH_MOE,
    PrivateParts,
    each_ratio,
    first_stages,
    known,
    mixed,
)


def _study(setting: PrivateParts) -> list[Run]:
    """Return what a gate is made of, one choice at a time (Fig. 5 to 8), and the floor.

    What is chosen anyway is the mixture without further name.
    """
    runs = [Run(MAJORITY, floor(setting.task))]
    for method in setting.studied:
        name = f"{method} {WITH_MOE}"
        alone, plain = first_stages(setting)[method], mixed(setting, method)
        runs += placed({method: alone, name: plain})
        known = [alone, plain]
        for where, options in _choices(setting):
            made = mixed(setting, method, **options)
            if made not in known:
                runs.append(Run(name, made, where))
                known.append(made)
    return runs


def _choices(setting: PrivateParts) -> list[tuple[dict[str, float | str], dict[str, Any]]]:
    """Return each choice by name, and the options of a mixture that make it."""
    gate, gamma = setting.gate, setting.gamma
    depths = range(1, len(gate.hidden) + 2)
    return [
        *(({"k": k}, {"top": k}) for k in setting.tops),
        *(({"lr": rate}, {"client": sgd(rate)}) for rate in setting.gate_rates),
        *(({"epochs": n}, {"epochs": n}) for n in setting.gate_epochs),
        *(({"gamma": g}, {"denoise": g}) for g in setting.gammas),
        *(
            ({"gamma": gamma, "T": t}, {"denoise": gamma, "temperature": t})
            for t in setting.temperatures
        ),
        *(({"layers": n}, {"gate": replace(gate, hidden=gate.hidden[: n - 1])}) for n in depths),
        *(({"activation": a}, {"gate": replace(gate, activation=a)}) for a in ACTIVATIONS),
        *(({"initialisation": i}, {"gate": replace(gate, init=i)}) for i in INITS),
        ({"weights": "renormalised"}, {"renormalised": True}),
        ({"weights": "favouring its own"}, {"favour": 5.0}),
    ]


GATES = Section("gates", known(("cifar10",), ("cifar10",)), each_ratio(_study))
