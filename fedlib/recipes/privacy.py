"""What a server learns about labels from one message of every client (000, App. C)."""

from __future__ import annotations

from fedlib.algorithms import FedAvg, FedMix, Personal
from fedlib.experiment import Experiment
from fedlib.recipes.communication import BIASED
from fedlib.recipes.label_skew import FEDAVG, FEDMIX, SETTINGS, fedavg, fedmix
from fedlib.recipes.section import Section, Setting, federated

STEP, EPOCH, TRAINED = "one full-batch step", "one epoch", "trained, one epoch"


def audited(method: str, stage: str) -> str:
    """Return the name of the run in which every client of a method sends one message."""
    return f"{method}: {stage}"


def _plan(setting: Setting, dataset: str) -> dict[str, Experiment]:
    """Return one round with all clients, from a fresh or a trained model, with an audit."""
    kinds = {
        FEDAVG: (FedAvg, fedavg(setting)),
        BIASED: (Personal, fedavg(setting)),
        FEDMIX: (FedMix, fedmix(setting)),
    }
    once = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1, "audit": True}
    runs = {}
    for method, (kind, fields) in kinds.items():
        whole = kind(**{**fields, "batch_size": None})
        runs[audited(method, STEP)] = federated(setting, whole, **once)
        runs[audited(method, EPOCH)] = federated(setting, kind(**fields), **once)
        trained = federated(setting, kind(**fields))
        runs[audited(method, TRAINED)] = federated(setting, kind(**fields), after=trained, **once)
    return runs


PRIVACY = Section(
    "privacy",
    {
        "quick": SETTINGS["quick"],
        "standard": {"cifar10": SETTINGS["standard"]["cifar10"]},
        "paper": {"cifar10": SETTINGS["paper"]["cifar10"]},
    },
    _plan,
)
