"""The majority-class baseline of an experiment, against which accuracies are read."""

import numpy as np

from fedlib.algorithms import MajorityClass
from fedlib.engine.evaluate import evaluate
from fedlib.federation import Federation
from fedrun.experiment import Experiment, built


def accuracy_of_majority(fed: Federation, split: str) -> float:
    """Return the mean accuracy over clients of predicting their commonest training label.

    Args:
        fed: the federation.
        split: "validation" or "test". Without examples the result is NaN.
    """
    method, whole = MajorityClass(), fed.full_view()
    found = evaluate(whole, method, method.init(whole, 0), getattr(whole, split)).accuracy
    return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")


def majority_accuracy(experiment: Experiment, split: str = "test") -> float:
    """Return the mean accuracy over clients of predicting their commonest training label.

    Args:
        experiment: the experiment, whose federation is built.
        split: "validation" or "test". Default: "test".

    Raises:
        DatasetError: if the data are not there.

    >>> 0 < majority_accuracy(tiny) < 1
    True
    """
    return accuracy_of_majority(built(experiment), split)
