"""``grid`` and ``best``: values of hyper-parameters, chosen on validation examples."""

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import product
from math import isnan
from typing import Any

import numpy as np

from fedlib.values import check_choice, check_type, short_repr
from fedrun.experiment import Experiment, Result


def grid(experiment: Experiment, **values: Iterable[Any]) -> list[Experiment]:
    """Return an experiment for every combination of values, which ``sweep`` trains.

    Args:
        experiment: the base experiment; its other fields are kept.
        values: lists of values by the name of a field of the algorithm, or else of the experiment.

    Raises:
        UnknownName: if neither has such a field.
        TypeError: if the values of a field are not a list.

    >>> [e.algorithm.mu for e in grid(Experiment(tiny.task, FedProx(), 2), mu=[0.1, 1.0])]
    [0.1, 1.0]
    >>> len(grid(tiny, client=[sgd(0.1), sgd(0.01)], seed=range(3)))
    6
    """
    check_type("experiment", experiment, Experiment)
    own = [field.name for field in fields(experiment.algorithm)]
    others = [field.name for field in fields(experiment) if field.name != "algorithm"]
    for name in values:
        check_choice("hyper-parameter", name, [*own, *others])
        if isinstance(values[name], str) or not isinstance(values[name], Iterable):
            raise TypeError(
                f"{name} must be a list of values, such as [{short_repr(values[name])}]"
            )
    made = []
    for chosen in product(*values.values()):
        given = dict(zip(values, chosen, strict=True))
        mine = {name: given.pop(name) for name in own if name in given}
        made.append(replace(experiment, algorithm=replace(experiment.algorithm, **mine), **given))
    return made


def best(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the best results of each method, as ``compare`` takes them.

    The settings of a method are all of an experiment but its seeds. The best have the highest
    validation accuracy of the final state, averaged over clients and seeds; the first of several.

    Args:
        results: results of one task, with the same seeds for all settings of a method.

    Returns:
        the results of the best settings, one per seed, by the name of the algorithm's class.

    Raises:
        ValueError: if there is no validation accuracy, the tasks or seeds differ, or models are
            validated on test examples.

    >>> found = best(run(e) for e in grid(tiny, client=[sgd(0.001), sgd(0.3)], seed=range(2)))
    >>> [result.experiment.algorithm.client.lr for result in found["FedAvg"]]
    [0.3, 0.3]
    """
    methods: dict[str, dict[Experiment, list[Result]]] = {}
    tasks = set()
    for result in results:
        e = check_type("results", result, Result).experiment
        tasks.add(e.task)
        settings = methods.setdefault(type(e.algorithm).__name__, {})
        settings.setdefault(_settings(e), []).append(result)
    if len(tasks) > 1 or any(task.validate_on == "test" for task in tasks):
        raise ValueError("results must be of one task, and validated on validation examples")
    return {method: _best(method, [*runs.values()]) for method, runs in methods.items()}


def _settings(e: Experiment) -> Experiment:
    """Return an experiment with seed 0 in all of its stages."""
    first, local = (stage and _settings(stage) for stage in (e.first_stage, e.local_stage))
    return replace(e, seed=0, first_stage=first, local_stage=local)


def _best(method: str, settings: list[list[Result]]) -> list[Result]:
    """Return the results of the settings with the highest mean validation accuracy."""
    seeds = [sorted(result.experiment.seed for result in runs) for runs in settings]
    if any(some != seeds[0] for some in seeds):
        raise ValueError(f"{method}: all settings must have the same seeds, got {seeds}")
    means = [float(np.mean([r.final("validation_accuracy") for r in runs])) for runs in settings]
    if any(map(isnan, means)):
        raise ValueError(f"{method}: there are no validation examples to choose by")
    return settings[int(np.argmax(means))]
