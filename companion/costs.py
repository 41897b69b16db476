"""What runs will cost, from short probes on the machine that is to train them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from fedlib.engine import State, evaluate, play_round
from fedlib.federation import Federation
from fedlib.optim import Optimizer
from fedlib.runs import Experiment, begun

Costs = Mapping[Experiment, float | str]
PROBED = 2  # rounds, after one that is not counted


def probed(
    experiments: Iterable[Experiment],
    device: str = "auto",
    told: Callable[[Experiment, float | str], None] = lambda experiment, cost: None,
) -> dict[Experiment, float | str]:
    """Return the estimated seconds of every run, or why there is no estimate.

    Runs that differ in seeds, lengths and rates only are probed once: a few rounds are played and
    the clients scored, of a stage that trains for many epochs one epoch. What early stopping may
    save is not known beforehand, so that all epochs count. ``told`` hears of every probe.
    """
    found: dict[Experiment, float | str] = {}
    units: dict[Hashable, tuple[float, float] | str] = {}
    for experiment in experiments:
        kind = kind_of(experiment)
        known = kind in units
        unit = units[kind] if known else _tried(experiment, device)
        units[kind] = unit
        found[experiment] = unit if isinstance(unit, str) else _total(experiment, unit)
        if not known:
            told(experiment, found[experiment])
    return found


def kind_of(experiment: Experiment) -> Hashable:
    """Return what runs have in common that cost the same per round, or at home per epoch."""
    task, home = experiment.task, experiment.rounds == 1
    where = (task.dataset, task.portion, _shape(task.partition), _shape(task.model))
    return (*where, _shape(experiment.algorithm, home), experiment.cohort, home)


def _shape(value: Any, without_epochs: bool = False) -> Hashable:
    """Return a value without its rates: what counts, and what is named, but no fraction."""
    if not is_dataclass(value) or isinstance(value, Optimizer):
        return None if isinstance(value, float | Optimizer) else value
    kept = [f.name for f in fields(value) if not (without_epochs and f.name == "epochs")]
    return (type(value).__name__, *((name, _shape(getattr(value, name))) for name in kept))


def epochs_of(experiment: Experiment) -> int:
    """Return how many epochs a stage at home trains; 1 for what federates, whose rounds count."""
    return experiment.algorithm.epochs if experiment.rounds == 1 else 1


def _total(experiment: Experiment, unit: tuple[float, float]) -> float:
    per_round, per_scoring = unit
    every = experiment.evaluate_every
    scorings = 1 + (experiment.rounds // every if every else 0)
    return per_round * experiment.rounds * epochs_of(experiment) + per_scoring * scorings


def _tried(experiment: Experiment, device: str) -> tuple[float, float] | str:
    """Return the seconds of a round and of a scoring; the reason if they cannot be had here."""
    one = experiment
    if epochs_of(experiment) > 1:
        one = replace(experiment, algorithm=replace(experiment.algorithm, epochs=1))
    try:
        return _measured(one, device)
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _measured(one: Experiment, device: str) -> tuple[float, float]:
    fed = one.task.build(one.seed, device)
    state, algorithm = _untrained(one, fed), one.algorithm
    spent = []
    for t in range(PROBED + 1):
        began = _now(fed)
        state, _ = play_round(algorithm, fed, state, round=t, seed=one.seed, cohort=one.cohort)
        spent.append(_now(fed) - began)
    began = _now(fed)
    state = algorithm.assign_models(fed, state)
    for table in (fed.validation, fed.test):
        evaluate(fed, algorithm, state, table)
    return sum(spent[1:]) / PROBED, _now(fed) - began


def _untrained(one: Experiment, fed: Federation) -> State:
    """Return a state that a stage can begin with, after fresh first stages, which cost nothing."""
    return begun(one, fed, [_untrained(stage, fed) for stage in one.before])


def _now(fed: Federation) -> float:
    if fed.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
