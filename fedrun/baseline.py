"""The majority-class baseline of an experiment, against which accuracies are read."""

from contextlib import suppress

import numpy as np

from fedlib import data as datasets
from fedlib.algorithms import MajorityClass
from fedlib.data import DatasetError
from fedlib.engine.evaluate import evaluate, evaluate_everywhere, evaluate_global
from fedlib.federation import Federation
from fedlib.tasks import Task
from fedlib.values import check_choice
from fedrun.experiment import NONE, Experiment, Result, built
from fedrun.provenance import data_of

SPLITS = ("validation", "test", "balanced", "balanced_validation")  # on which clients are scored
MEASURES = (*SPLITS, "everywhere", "global")


class BelowBaseline(UserWarning):
    """A trained model is no better than the majority-class baseline."""


def by_client(fed: Federation, measure: str) -> dict[int, float]:
    """Return the accuracy of predicting each client's commonest training label.

    Args:
        fed: the federation.
        measure: one of ``MEASURES``, "test" for the metric "test_accuracy".

    Returns:
        the accuracy by the client's id, NaN without examples; for "global", which is the accuracy
        of the commonest label of all clients, by ``NONE``.
    """
    whole, method = fed.full_view(), MajorityClass()
    state = method.init(whole, 0)
    if measure == "global":
        return {NONE: evaluate_global(whole, method, state)}
    if measure == "everywhere":
        found = evaluate_everywhere(whole, method, state)
    else:
        table = getattr(whole, "balanced" if measure.startswith("balanced") else measure)
        if table is None:
            return {}
        found = evaluate(whole, method, state, table).accuracy
    return dict(zip(whole.ids.tolist(), found.tolist(), strict=True))


def mean_of(accuracies: dict[int, float]) -> float:
    """Return the mean of the numbers that are not NaN; NaN if there are none."""
    known = [a for a in accuracies.values() if a == a]
    return float(np.mean(known)) if known else float("nan")


def majority_accuracy(experiment: Experiment, split: str = "test") -> float:
    """Return the mean accuracy over clients of predicting their commonest training label.

    Args:
        experiment: the experiment, whose federation is built.
        split: "validation" or "test". Default: "test".

    Returns:
        the mean over the clients that have examples; NaN if none has.

    Raises:
        UnknownName: for another split.
        DatasetError: if the data are not there.

    >>> 0 < majority_accuracy(tiny) < 1
    True
    """
    check_choice("split", split, ("validation", "test"))
    return mean_of(by_client(built(experiment), split))


class Baselines:
    """The majority-class baselines of runs; those of one task and seed are computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Task, int], dict[str, dict[int, float]]] = {}

    def of(self, run: Result, metric: str) -> dict[int, float]:
        """Return the baseline of a metric of a run, as ``by_client`` does.

        The baseline of the accuracy after local training, ``adapted_...``, is that before it. The
        result is {} for other metrics than accuracies, and if the run's data are missing or its
        data or code have changed since.
        """
        e, measure = run.experiment, metric.removeprefix("adapted_").removesuffix("_accuracy")
        if measure not in MEASURES or not metric.endswith("_accuracy"):
            return {}
        with suppress(DatasetError, ValueError):
            now, then = datasets.fingerprint(e.task.dataset), data_of(run.provenance)
            if (run.pinned or e).changed or (then and not now.startswith(then)):
                return {}
            if (e.task, e.seed) not in self._known:
                fed = built(e)
                self._known[e.task, e.seed] = {name: by_client(fed, name) for name in MEASURES}
            return self._known[e.task, e.seed][measure]
        return {}
