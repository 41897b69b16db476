"""Metrics of predictions that experiments log for every client, and a base class for one's own."""

import re
from collections.abc import Mapping

import numpy as np

from fedlib.values import value


@value
class Metric:
    """A function of a client's labels, predicted probabilities and side information.

    An experiment logs it for every client's test and validation examples in each evaluated round:
    ``Experiment(..., metrics=(F1(), AUC()))`` logs ``test_f1`` and ``validation_auc``. To define
    a metric, subclass this class.

    >>> @value
    ... class Confidence(Metric):
    ...     "The mean probability of the predicted class."
    ...     def __call__(self, labels, probabilities, side):
    ...         return probabilities.max(1).mean()
    >>> Confidence().name
    'confidence'
    """

    @property
    def name(self) -> str:
        """The name under which the metric is logged. Default: that of the class, "my_metric"."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def __call__(
        self, labels: np.ndarray, probabilities: np.ndarray, side: Mapping[str, np.ndarray]
    ) -> float:
        """Return the metric of one client's examples, of which there is at least one.

        Args:
            labels: int64 ``[N]``.
            probabilities: float64 ``[N, classes]``, whose rows have the sum 1.
            side: the side information of the partition, such as "angle" of ``Rotated``, int64
                ``[N]`` each, by name. Columns of the data set are not included.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


@value
class BalancedAccuracy(Metric):
    """The mean recall over the classes that occur among a client's labels.

    >>> import numpy as np
    >>> BalancedAccuracy()(np.array([0, 0, 1]), np.eye(2)[[0, 1, 1]], {})
    0.75
    """

    def __call__(
        self, labels: np.ndarray, probabilities: np.ndarray, side: Mapping[str, np.ndarray]
    ) -> float:
        right = probabilities.argmax(1) == labels
        return float(np.mean([right[labels == c].mean() for c in np.unique(labels)]))


@value
class F1(Metric):
    """The mean F1 score over the classes that occur among a client's labels.

    >>> import numpy as np
    >>> F1()(np.array([0, 0, 1]), np.eye(2)[[0, 1, 1]], {})  # 2/3 of both classes
    0.6666666666666666
    """

    def __call__(
        self, labels: np.ndarray, probabilities: np.ndarray, side: Mapping[str, np.ndarray]
    ) -> float:
        from sklearn.metrics import f1_score

        there = {"labels": np.unique(labels), "average": "macro", "zero_division": 0}
        return float(f1_score(labels, probabilities.argmax(1), **there))


@value
class AUC(Metric):
    """The mean area under the ROC curve, one class against the rest.

    The mean is over classes that are the label of some, but not all, of a client's examples; it is
    NaN if there is none.

    >>> import numpy as np
    >>> AUC()(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), {})
    1.0
    """

    def __call__(
        self, labels: np.ndarray, probabilities: np.ndarray, side: Mapping[str, np.ndarray]
    ) -> float:
        from sklearn.metrics import roc_auc_score

        there = np.unique(labels)
        each = [roc_auc_score(labels == c, probabilities[:, c]) for c in there if len(there) > 1]
        return float(np.mean(each)) if each else float("nan")
