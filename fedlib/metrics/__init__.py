"""Metrics: scores of predictions, accuracies over clients, gradient divergence."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlib.metrics.intervals import interval
from fedlib.metrics.own import AUC, F1, BalancedAccuracy, Metric

# Elements that are converted to float64 at once: the memory of larger tensors is not reused.
AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of predicted probabilities.

    Args:
        accuracy: fraction of examples whose most probable class is the label.
        nll: mean negative log-likelihood -log p(label), in nats.
        balanced_accuracy: mean recall over the classes that occur among the labels.
        f1: mean F1 score over these classes.
        confusion: int64 ``[classes, classes]``: number of examples by label (row) and prediction
            (column).
        class_names: names of the classes, or ().

    >>> from fedrun import evaluate, run, tiny
    >>> evaluate(run(tiny, progress=False), data.load("digits").test).confusion.shape
    (10, 10)
    """

    accuracy: float
    nll: float
    balanced_accuracy: float
    f1: float
    confusion: np.ndarray
    class_names: tuple[str, ...] = ()


def evaluation(probabilities: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Return the scores of predicted probabilities.

    Args:
        probabilities: ``[N, classes]``, N > 0.
        labels: int64 ``[N]``.

    >>> p = np.array([[0.75, 0.25], [0.25, 0.75], [0.25, 0.75]])
    >>> found = evaluation(p, np.array([0, 0, 1]))
    >>> found.confusion.tolist(), found.balanced_accuracy
    ([[1, 1], [0, 1]], 0.75)
    """
    from sklearn.metrics import confusion_matrix

    predicted, classes = probabilities.argmax(1), probabilities.shape[1]
    with np.errstate(divide="ignore"):
        nll = -np.log(probabilities[np.arange(len(labels)), labels].astype(float)).mean()
    return Evaluation(
        float((predicted == labels).mean()),
        float(nll),
        BalancedAccuracy()(labels, probabilities, {}),
        F1()(labels, probabilities, {}),
        confusion_matrix(labels, predicted, labels=range(classes)),
    )


def over_clients(accuracy: np.ndarray, sizes: np.ndarray) -> dict[str, float]:
    """Return statistics of accuracies over clients that have examples.

    Args:
        accuracy: ``[clients]``.
        sizes: number of examples of each client, ``[clients]``.

    Returns:
        The "mean", the mean "weighted" by size, the standard deviation "std", and the
        "worst_decile", the mean over the tenth of the clients (at least one) with the lowest
        accuracy. nan if no client has examples.
    """
    there = np.asarray(sizes) > 0
    a, n = np.asarray(accuracy, dtype=float)[there], np.asarray(sizes)[there]
    names = ("mean", "weighted", "std", "worst_decile")
    if not len(a):
        return dict.fromkeys(names, float("nan"))
    worst = np.sort(a)[: max(1, len(a) // 10)]
    found = a.mean(), (a * n).sum() / n.sum(), a.std(), worst.mean()
    return dict(zip(names, map(float, found), strict=True))


def gradient_divergence(updates: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient divergence of one tensor (eq. 16, or eq. 17 with p(s)), in float64.

        GD = sum_ij w_i w_j (1 - cos(D_i, D_j)) / 2 = ((sum_i w_i)^2 - |sum_i w_i u_i|^2) / 2

    with unit vectors u_i = D_i / |D_i|; the second form is linear in S. Updates that are exactly
    zero have no direction and contribute nothing.

    Args:
        updates: the clients' before - after, ``[S, ...]``, or ``[S, K, ...]`` with one tensor per
            expert.
        weights: ``[S]`` or ``[S, K]``.

    Returns:
        A scalar, or one number per expert, ``[K]``.
    """
    together = max(1, AT_ONCE // max(1, math.prod(updates.shape[1:])))
    parts = zip(updates.split(together), weights.double().split(together), strict=True)
    resultant = w = torch.zeros((), dtype=torch.double, device=weights.device)
    for some, own in parts:
        direction, of = _directions(some, own)
        resultant, w = resultant + direction, w + of
    return 0.5 * (w**2 - (resultant**2).sum(-1)).clamp(min=0)


def _directions(updates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the clients' unit vectors, and the sum of their weights."""
    apart = updates.double().unsqueeze(-1)  # a scalar parameter has no axis to flatten
    flat = apart.flatten(weights.ndim)
    length = flat.norm(dim=-1, keepdim=True)
    w = torch.where((length > 0).squeeze(-1), weights, 0)
    unit = flat / torch.where(length > 0, length, 1)
    return (w.unsqueeze(-1) * unit).sum(0), w.sum(0)


def true_groups(values: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """Return the true group of every client, ``[clients]``, or None if there is none.

    A client has a group if the side information of all its examples is equal.

    Args:
        values: side information of all examples, client after client, ``[examples]``.
        sizes: number of examples of each client, ``[clients]``.
    """
    if not (sizes > 0).all():
        return None
    first: np.ndarray = values[np.cumsum(sizes) - sizes]
    return first if (values == np.repeat(first, sizes)).all() else None
