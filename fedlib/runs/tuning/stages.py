"""The four stages of 003: local experts, cluster model, gate, exploration, each after the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedlib.models import LeNet
from fedlib.optim import Optimizer
from fedlib.runs import Experiment
from fedlib.runs.tuning.space import Choice, Space, Uniform
from fedlib.values import one_of
from papers.recipes import Adaptive
from papers.recipes.adaptive import alone, clustered, mixed

Chosen = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """What a stage changes in a setting, and the experiment whose validation judges it.

    ``apply(setting, chosen)`` returns the setting with the chosen parameters.
    """

    name: str
    apply: Callable[[Adaptive, Chosen], Adaptive]
    experiment: Callable[[Adaptive], Experiment]


def _net(chosen: Chosen) -> LeNet:
    channels = (int(chosen["first"]), int(chosen["second"]))
    return LeNet(channels=channels, hidden=(int(chosen["hidden"]),))


def _rates(optimizer: Optimizer, chosen: Chosen) -> Optimizer:
    return replace(optimizer, lr=chosen["lr"], weight_decay=chosen["weight_decay"])


def _local(setting: Adaptive, chosen: Chosen) -> Adaptive:
    return replace(setting, local=_rates(setting.local, chosen), own=_net(chosen))


def _global(setting: Adaptive, chosen: Chosen) -> Adaptive:
    task = replace(setting.task, model=_net(chosen))
    return replace(setting, task=task, cluster=_rates(setting.cluster, chosen))


def _gate(setting: Adaptive, chosen: Chosen) -> Adaptive:
    return replace(setting, gate=_rates(setting.gate, chosen), chooser=_net(chosen))


def _exploration(setting: Adaptive, chosen: Chosen) -> Adaptive:
    return replace(setting, eps=(0.0, chosen["eps"]))


def _explored(setting: Adaptive) -> Experiment:
    return mixed(setting, clustered(setting, max(setting.js), max(setting.eps)))


STAGES = (
    Stage("local", _local, alone),
    Stage("global", _global, lambda setting: clustered(setting, 1, 0.0)),
    Stage("gate", _gate, lambda setting: mixed(setting, clustered(setting, 1, 0.0))),
    Stage("exploration", _exploration, _explored),
)


def spaces(scale: str) -> dict[str, Space]:
    """Return what each stage searches at a scale; shorter runs need larger rates."""
    one_of("scale", scale, ("standard", "paper"))
    small = scale == "standard"
    decay, widths = Uniform(1e-4, 1e-2), (12, 32, 64, 128, 256)
    nets = ((4, 6, 8), (8, 16), (32, 84, 120)) if small else (widths, widths, (8, 64, 256, 1024))
    gates = ((2, 4), (4, 8), (8, 16)) if small else nets

    def space(low: float, high: float, sizes: Sequence[tuple[int, ...]]) -> Space:
        widths = zip(("first", "second", "hidden"), map(Choice, sizes), strict=True)
        return Space((("lr", Uniform(low, high)), ("weight_decay", decay), *widths))

    return {
        "local": space(3e-4, 1e-2, nets) if small else space(1e-5, 1e-2, nets),
        "global": space(1e-2, 2e-1, nets) if small else space(1e-3, 1e-1, nets),
        "gate": space(1e-5, 1e-2, gates) if small else space(1e-7, 1e-3, gates),
        "exploration": Space((("eps", Uniform(0.01, 0.99, log=False)),)),
    }
