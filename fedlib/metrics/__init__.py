"""What is measured: accuracies over clients, divergence, true groups."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.metrics.intervals import interval


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well probabilities tell labels.

    ``accuracy``; ``nll``, the mean of -log p(label), in nats; ``balanced_accuracy``, the mean over
    classes of the share of their examples that is recognised; ``f1``, the mean over classes of the
    harmonic mean of precision and recall, both over the classes that there are; ``confusion`` int64
    ``[classes, classes]``, how many examples of a row's class were taken for a column's.
    ``class_names`` are those of its rows and columns, () where they are not known.

    >>> evaluate(run(tiny), data.load("digits").test).confusion.shape
    (10, 10)
    """

    accuracy: float
    nll: float
    balanced_accuracy: float
    f1: float
    confusion: np.ndarray
    class_names: tuple[str, ...] = ()


def evaluation(probabilities: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Return the scores of probabilities ``[N, classes]`` for labels ``[N]``, N > 0.

    >>> p = np.array([[0.75, 0.25], [0.25, 0.75], [0.25, 0.75]])
    >>> found = evaluation(p, np.array([0, 0, 1]))
    >>> found.confusion.tolist(), found.balanced_accuracy
    ([[1, 1], [0, 1]], 0.75)
    """
    from sklearn.metrics import confusion_matrix, f1_score, recall_score

    predicted, classes = probabilities.argmax(1), probabilities.shape[1]
    there: Any = {"labels": np.unique(labels), "average": "macro", "zero_division": 0}
    with np.errstate(divide="ignore"):
        nll = -np.log(probabilities[np.arange(len(labels)), labels].astype(float)).mean()
    return Evaluation(
        float((predicted == labels).mean()),
        float(nll),
        float(recall_score(labels, predicted, **there)),
        float(f1_score(labels, predicted, **there)),
        confusion_matrix(labels, predicted, labels=range(classes)),
    )


def over_clients(accuracy: np.ndarray, sizes: np.ndarray) -> dict[str, float]:
    """Return mean, size-weighted mean, standard deviation and worst-decile mean over clients.

    ``accuracy`` and ``sizes`` are ``[clients]``; clients without examples are left out. The worst
    decile is the mean over the tenth of the clients (at least one) with the lowest accuracy.
    """
    there = np.asarray(sizes) > 0
    a, n = np.asarray(accuracy, dtype=float)[there], np.asarray(sizes)[there]
    names = ("mean", "weighted", "std", "worst_decile")
    if not len(a):
        return dict.fromkeys(names, float("nan"))
    worst = np.sort(a)[: max(1, len(a) // 10)]
    values_of = a.mean(), (a * n).sum() / n.sum(), a.std(), worst.mean()
    return dict(zip(names, map(float, values_of), strict=True))


def gradient_divergence(updates: Tensor, weights: Tensor) -> Tensor:
    """Return GD = sum_ij w_i w_j (1 - cos(D_i, D_j)) / 2 for one tensor (eq. 16; eq. 17 with p(s)).

    ``updates`` are the clients' before - after, ``[S, ...]`` with weights ``[S]``, giving a scalar,
    or ``[S, K, ...]`` with weights ``[S, K]``, giving one number per expert ``[K]``. Pairs with an
    update that is exactly zero have no direction and contribute nothing. Float64.

    With unit vectors u_i the double sum is ((sum w)^2 - |sum_i w_i u_i|^2) / 2: linear in S.
    """
    apart = updates.double().unsqueeze(-1)  # a tensor of one number has no axis of its own
    flat = apart.flatten(weights.ndim)
    length = flat.norm(dim=-1, keepdim=True)
    some = (length > 0).squeeze(-1)
    w = torch.where(some, weights.double(), 0)
    unit = flat / torch.where(length > 0, length, 1)
    resultant = (w.unsqueeze(-1) * unit).sum(0)
    return 0.5 * (w.sum(0) ** 2 - (resultant**2).sum(-1)).clamp(min=0)


def truth(values: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """Return the group of every client whose side information is one value, ``[clients]``.

    ``values`` are that of all examples, client after client, and ``sizes`` ``[clients]`` how many
    each has. None if a client's examples differ, or it has none.
    """
    if not (sizes > 0).all():
        return None
    first: np.ndarray = values[np.cumsum(sizes) - sizes]
    return first if (values == np.repeat(first, sizes)).all() else None
