"""Label skew (000, sec. 2.1, Fig. 1, 3 and 14): which objective makes experts.

``quick`` runs on scikit-learn's digits in minutes, ``standard`` on the papers' data with fewer
rounds and a smaller model, ``paper`` is the paper's own setting. What a smaller scale changes is
written beside it.
"""

from __future__ import annotations

from typing import Any

from companion.sections import Run, Section, Setting, federated, placed
from fedlib.algorithms import FedAvg, FedMix
from fedlib.optim import adam, sgd
from fedlib.partition import IID, Mirrored
from fedlib.runs import Experiment
from fedlib.tasks import Task
from papers.named import named

FEDAVG = "FedAvg"
FEDMIX = "FedMix"
ENSEMBLE = "FedMix with H(q)"
UNREGULARISED = "FedMix without marginal entropy"
ORIGINAL = "Mixture of experts (eq. 3)"
CENTRALISED = "Mixture of experts (eq. 3), S = 1"

SETTINGS: dict[str, dict[str, Setting]] = {
    "quick": {
        "digits": Setting(
            named("000/cifar10", "quick"),
            rounds=120,
            seeds=3,
            cohort=5,
            batch_size=20,
            server_rate=5e-3,
            phi_rate=0.05,
            evaluate_every=10,
            epochs=12,
        )
    },
    "standard": {
        "cifar10": Setting(named("000/cifar10", "standard"), 300, 3, phi_rate=0.03),
        "fashion_mnist": Setting(named("000/fashion_mnist", "standard"), 200, 5, phi_rate=0.03),
    },
    "paper": {
        "cifar10": Setting(named("000/cifar10", "paper"), 2000, 3),
        "fashion_mnist": Setting(named("000/fashion_mnist", "paper"), 2000, 3),
    },
}


def fedavg(setting: Setting, **more: Any) -> dict[str, Any]:
    """Return the fields that every algorithm of a setting shares, with ``more``."""
    local = {"batch_size": setting.batch_size, "epochs": setting.local_epochs}
    return {"server": adam(setting.server_rate), **local, **more}


def fedmix(setting: Setting, **more: Any) -> dict[str, Any]:
    """Return the fields that every FedMix of a setting shares, with ``more``."""
    return {**fedavg(setting), "experts": setting.experts, "server": setting.server, **more}


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


def _plan(setting: Setting, dataset: str) -> list[Run]:
    """Return the variants, and the original mixture of experts with S = 1 (Fig. 14b).

    The rounds of the latter are epochs.
    """
    runs = {name: federated(setting, a) for name, a in fedmix_variants(setting).items()}
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


LABEL_SKEW = Section("label_skew", SETTINGS, _plan)
