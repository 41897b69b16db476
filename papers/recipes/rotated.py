"""Rotated MNIST: clients that differ in angles, and in angles and labels (000, sec. 4.2)."""

from __future__ import annotations

from dataclasses import replace

from companion.scales import SCALES
from companion.sections import Run, Section, Setting, federated, placed
from fedlib.algorithms import FedAvg, FedMix, Personal
from fedlib.models import MLP
from papers.named import named
from papers.recipes.communication import BIASED
from papers.recipes.label_skew import FEDAVG, fedavg, fedmix

BY_LABEL = "FedMix, q(z|y)"
BY_ANGLE = "FedMix, q(z|rotation)"
# Figures by the kind of difference between clients: Fig. 5 and Fig. 6.
TURNED, TURNED_AND_SKEWED = "rotated_mnist", "rotated_skewed_mnist"


def _setting(dataset: str, scale: str) -> Setting:
    task = named(f"000/{dataset}", scale)
    if scale == "quick":
        return Setting(
            replace(task, model=MLP((64,))),  # all clients of a cohort in one program
            rounds=150,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=1e-2,
            phi_rate=0.05,
            evaluate_every=15,
        )
    if scale == "standard":
        return Setting(task, rounds=150, seeds=5, server_rate=5e-3, phi_rate=0.1, evaluate_every=10)
    return Setting(task, rounds=2000, seeds=3)


def _plan(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 5 and 6."""
    return placed(
        {
            FEDAVG: federated(setting, FedAvg(**fedavg(setting))),
            BIASED: federated(setting, Personal(**fedavg(setting))),
            BY_LABEL: federated(setting, FedMix(**fedmix(setting))),
            BY_ANGLE: federated(setting, FedMix(**fedmix(setting, condition="angle"))),
        }
    )


ROTATED = Section(
    "rotated",
    {
        scale: {dataset: _setting(dataset, scale) for dataset in (TURNED, TURNED_AND_SKEWED)}
        for scale in SCALES
    },
    _plan,
)
