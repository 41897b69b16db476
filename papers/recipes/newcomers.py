"""New clients, with labels and without (000, sec. 2 and App. F)."""

from __future__ import annotations

from dataclasses import replace

from companion.sections import Run, Section, Setting, federated, placed
from fedlib.algorithms import Densities, FedMix, Newcomers
from fedlib.engine import EarlyStop
from fedlib.partition import Clients
from papers.named import named
from papers.recipes.communication import BIASED, LOCAL_GLOBAL, baselines
from papers.recipes.label_skew import FEDAVG, FEDMIX, fedmix

DENSITIES = "FedMix, p(s|x)"
JOINING = (FEDAVG, BIASED, LOCAL_GLOBAL, FEDMIX)
# The auto-encoders' widths: the paper's have 512 and 256, and a code of 32.
VAE = {
    "two_class_digits": {"hidden": (64, 32), "latent": 8, "samples": 4},
    "two_class_mnist": {"hidden": (256, 128), "latent": 16, "samples": 1},
    "two_class_mnist_paper": {"hidden": (512, 256), "latent": 32, "samples": 4},
}


def _setting(scale: str) -> Setting:
    task = named("000/two_class_mnist", scale)
    if scale == "quick":
        return Setting(
            task,
            rounds=100,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=5e-3,
            phi_rate=0.05,
            evaluate_every=10,
        )
    if scale == "standard":
        # An auto-encoder per client takes a CPU longer than all else.
        costly = ((DENSITIES, 1),)
        return Setting(task, rounds=200, seeds=3, server_rate=3e-3, phi_rate=0.03, costly=costly)
    return Setting(task, rounds=600, seeds=3)


def joined(method: str) -> str:
    """Return the name of newcomers with labels who join what a method trained."""
    return f"{method}, new clients"


def _plan(setting: Setting, dataset: str) -> list[Run]:
    """Return FedAvg and FedMix on all clients, FedMix with p(s|x), and newcomers with labels.

    For the latter four fifths of the clients federate, and the others join.
    """
    federation = {**baselines(setting), FEDMIX: FedMix(**fedmix(setting))}
    everyone = {m: federated(setting, federation[m]) for m in (FEDAVG, FEDMIX)}
    fitted = Densities(of=federation[FEDMIX], **VAE[dataset])  # type: ignore[arg-type]
    last = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}
    seen, new = _divided(setting)
    runs = {**everyone, DENSITIES: federated(setting, fitted, after=everyone[FEDMIX], **last)}
    for method in JOINING:
        join = Newcomers(
            of=federation[method],
            epochs=100,
            batch_size=setting.batch_size,
            stop=EarlyStop(every=1, patience=5),
        )
        runs[joined(method)] = federated(
            new, join, after=federated(seen, federation[method]), **last
        )
    return placed(runs)


def _divided(setting: Setting) -> tuple[Setting, Setting]:
    """Return the setting of the first four fifths of the clients, and of the others."""
    everyone = setting.task.partition
    clients = everyone.clients  # type: ignore[attr-defined]
    first = clients * 4 // 5
    parts = Clients(everyone, last=first), Clients(everyone, first, clients)
    seen, new = (replace(setting, task=replace(setting.task, partition=part)) for part in parts)
    return seen, new


SETTINGS = {
    "quick": {"two_class_digits": _setting("quick")},
    "standard": {"two_class_mnist": _setting("standard")},
    "paper": {"two_class_mnist_paper": _setting("paper")},
}
NEW_CLIENTS = Section("new_clients", SETTINGS, _plan)
