"""The four stages of 003: local experts, cluster model, gate, exploration, each after the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from companion.sections import seeded
from fedlib import paths
from fedlib.models import LeNet
from fedlib.optim import Optimizer
from fedlib.runs import Experiment, tuning
from fedlib.runs.tuning import Choice, Space, Uniform
from fedlib.values import one_of
from papers.adaptive.experiments import alone, clustered, mixed
from papers.adaptive.settings import Adaptive

SEED = 11  # of a task that no figure shows
Chosen = Mapping[str, Any]


@dataclass(frozen=True)
class Stage:
    """What a stage changes in a setting, and the experiment whose validation judges it.

    ``apply(setting, chosen)`` returns the setting with the chosen parameters.
    """

    name: str
    apply: Callable[[Adaptive, Chosen], Adaptive]
    experiment: Callable[[Adaptive], Experiment]

    def trial(self, setting: Adaptive, seed: int, chosen: Chosen) -> Experiment:
        """Return the experiment that scores a choice."""
        return seeded(self.experiment(self.apply(setting, chosen)), seed)


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


def search(
    stage: Stage, setting: Adaptive, space: Space, *, trials: int, seed: int = SEED, **ray: Any
) -> pd.DataFrame:
    """Return the trials of one stage: stage, trial, score, best and the parameters.

    Each is scored by its clients' mean validation accuracy; ``seed`` is also the task's. ``ray``
    are options of ``fedlib.runs.tuning.search``.
    """
    trial = partial(stage.trial, setting, seed)
    found = tuning.search(stage.name, trial, space, trials=trials, seed=seed, of=setting, **ray)
    table = pd.DataFrame(found).assign(stage=stage.name, trial=range(len(found)))
    return table.assign(best=table.index == table["score"].idxmax())


def tune(
    setting: Adaptive,
    spaces: Mapping[str, Space],
    *,
    trials: int,
    workers: int = 1,
    address: str | None = None,
    device: str = "cpu",
) -> tuple[Adaptive, pd.DataFrame]:
    """Tune the four stages one after another, each with the best of those before it.

    Returns the tuned setting and every trial: see ``search``. Source: 003, sec. 4.4.
    """
    tables = []
    with tuning.session(workers, address):
        for stage in STAGES:
            table = search(stage, setting, spaces[stage.name], trials=trials, device=device)
            best = table.loc[table["best"]].to_dict("records")[0]  # of Python's own numbers
            setting = stage.apply(
                setting, {name: best[name] for name, _ in spaces[stage.name].axes}
            )
            tables.append(table)
    return setting, pd.concat(tables, ignore_index=True)


def where(name: str) -> Path:
    """Return the file in which a search's trials are kept with the project."""
    return paths.results() / "tuning" / f"{name}.csv"


def stored(name: str) -> pd.DataFrame | None:
    """Return the trials of a search that is kept with the project; None if there is none."""
    return pd.read_csv(where(name)) if where(name).is_file() else None
