"""Performance against communication, and its ablations (000, sec. 4.1 and App. E, F, G).

``LONG`` plays as many rounds as the paper, at the paper's rates, with the classic LeNet-5.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from companion.sections import Run, Section, Setting, federated, placed
from fedlib import data as datasets
from fedlib.algorithms import FedAvg, FedMix, LocalGlobal, Personal, PrunedFedMix
from fedlib.models import LeNet, ResNet, widened
from fedlib.runs import Experiment
from papers.named import named
from papers.recipes.label_skew import ENSEMBLE, FEDAVG, FEDMIX, SETTINGS, fedavg, fedmix

WIDE = {2: "FedAvg, 2x parameters", 4: "FedAvg, 4x parameters"}
BIASED = "Biased FedAvg"
LOCAL_GLOBAL = "Local/Global"
BIAS = "FedMix + personal bias"
PRUNING = "FedMix + pruning"  # at the eta of Fig. 4
ETA = 0.9

COMMUNICATION_SETTINGS = {
    "quick": SETTINGS["quick"],
    "standard": {
        "cifar10": SETTINGS["standard"]["cifar10"],
        "cifar100": Setting(
            named("000/cifar100", "standard"),
            rounds=120,
            seeds=5,
            batch_size=20,
            server_rate=3e-3,
            phi_rate=0.03,
        ),
        "femnist": Setting(
            named("000/femnist", "standard"),
            rounds=150,
            seeds=5,
            batch_size=20,
            server_rate=3e-3,
            phi_rate=0.03,
        ),
    },
    "paper": {
        "cifar10": SETTINGS["paper"]["cifar10"],
        "cifar100": Setting(named("000/cifar100", "paper"), 2000, 3, batch_size=20),
        "femnist": Setting(named("000/femnist", "paper"), 4000, 3, batch_size=20),
    },
}


def with_experts(experts: int) -> str:
    """Return the name of FedMix with K experts; FedAvg's, of which it is the limit, for one."""
    return {1: FEDAVG, 4: FEDMIX}.get(experts, f"FedMix, K = {experts}")


def with_pruning(eta: float) -> str:
    """Return the name of FedMix that prunes at eta / K; FedMix's for 0."""
    return {0: FEDMIX, ETA: PRUNING}.get(eta, f"FedMix + pruning, eta = {eta:g}")


TEN_PRUNED = f"{with_experts(10)} + pruning"


def _communication(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 4."""
    algorithms = {"cifar100": _cifar100, "femnist": _femnist}.get(dataset, _cifar10)(setting)
    runs = {method: federated(setting, algorithm) for method, algorithm in algorithms.items()}
    if dataset in ("cifar100", "femnist"):
        return placed(runs)
    wide = {name: wider(setting, times) for times, name in WIDE.items()}
    return placed({FEDAVG: runs.pop(FEDAVG), **wide, **runs})


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


def _cifar10(setting: Setting) -> dict[str, FedAvg]:
    return {
        **baselines(setting),
        with_experts(2): FedMix(**fedmix(setting, experts=2)),
        FEDMIX: FedMix(**fedmix(setting)),
        PRUNING: PrunedFedMix(**fedmix(setting), eta=ETA),
        BIAS: FedMix(**fedmix(setting, personal_bias=True)),
    }


def _cifar100(setting: Setting) -> dict[str, FedAvg]:
    ten = fedmix(setting, experts=10)
    return {
        **baselines(setting),
        FEDMIX: FedMix(**fedmix(setting)),
        with_experts(10): FedMix(**ten),
        TEN_PRUNED: PrunedFedMix(**ten, eta=ETA),
    }


def _femnist(setting: Setting) -> dict[str, FedAvg]:
    """Return FedMix with gates that are averaged, as local ones overfit."""
    known, gates = baselines(setting), {"gates": "averaged"}
    return {
        **{name: known[name] for name in (FEDAVG, BIASED)},
        **{with_experts(k): FedMix(**fedmix(setting, experts=k, **gates)) for k in (2, 4)},
    }


def _ablation(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts and the thresholds of Fig. 11."""
    experts, etas = ABLATED[dataset]
    runs = {FEDAVG: federated(setting, FedAvg(**fedavg(setting)))}
    for k in experts:
        runs[with_experts(k)] = federated(setting, FedMix(**fedmix(setting, experts=k)))
    for eta in etas:
        mix = PrunedFedMix(**fedmix(setting), eta=eta)
        runs[with_pruning(eta)] = federated(setting, mix)
    return placed(runs)


ABLATED: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "digits": ((2, 4, 8), (0.5, 0.9)),
    "cifar10": ((2, 4, 8, 10, 16), (0.1, 0.5, 0.9)),
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


def _only(dataset: str) -> dict[str, dict[str, Setting]]:
    known = COMMUNICATION_SETTINGS
    return {
        scale: {d: s for d, s in each.items() if d in (dataset, "digits")}
        for scale, each in known.items()
    }


def _long(setting: Setting, dataset: str) -> list[Run]:
    """Return the curves of Fig. 1, 3, 4, 13 and 14 whose time scale is the paper's."""
    algorithms = {
        FEDAVG: FedAvg(**fedavg(setting)),
        BIASED: Personal(**fedavg(setting)),
        FEDMIX: FedMix(**fedmix(setting)),
        ENSEMBLE: FedMix(objective="entropy", **fedmix(setting)),
    }
    return placed({method: federated(setting, a) for method, a in algorithms.items()})


# One seed of each method for now: four methods take a core about four hours.
_ONCE = tuple((method, 1) for method in (FEDAVG, BIASED, FEDMIX, ENSEMBLE))
_AS_LONG = Setting(named("000/cifar10", "standard"), 2000, 3, evaluate_every=50, costly=_ONCE)
_LONG = {**COMMUNICATION_SETTINGS, "standard": {"cifar10": _AS_LONG}}
_LONG["paper"] = {"cifar10": SETTINGS["paper"]["cifar10"]}
LONG = Section("long", _LONG, _long)
COMMUNICATION = Section("communication", COMMUNICATION_SETTINGS, _communication)
ABLATION_SETTINGS = _only("cifar10")
# Left out for the time that they would take a CPU: a round costs what its experts cost, so that K =
# 10 and 16 would take as long as six and a half of the others, K = 4.
ABLATION_SETTINGS["standard"]["cifar10"] = replace(
    ABLATION_SETTINGS["standard"]["cifar10"],
    costly=((with_experts(10), 0), (with_experts(16), 0)),
)
ABLATION = Section("ablation", ABLATION_SETTINGS, _ablation)
