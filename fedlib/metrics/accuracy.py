"""Summaries of per-client accuracies."""

from __future__ import annotations

import numpy as np


def over_clients(accuracy: np.ndarray, sizes: np.ndarray) -> dict[str, float]:
    """Return mean, size-weighted mean, standard deviation and worst-decile mean over clients.

    ``accuracy`` and ``sizes`` are ``[clients]``; clients without examples are left out. The worst
    decile is the mean over the tenth of the clients (at least one) with the lowest accuracy.
    """
    there = np.asarray(sizes) > 0
    a, n = np.asarray(accuracy, dtype=float)[there], np.asarray(sizes)[there]
    if not len(a):
        return dict.fromkeys(("mean", "weighted", "std", "worst_decile"), float("nan"))
    worst = np.sort(a)[: max(1, len(a) // 10)]
    return {
        "mean": float(a.mean()),
        "weighted": float((a * n).sum() / n.sum()),
        "std": float(a.std()),
        "worst_decile": float(worst.mean()),
    }


def majority_floor(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return every client's accuracy if it always says its commonest training label.

    From counts of labels ``[clients, classes]``, float64 ``[clients]``; ties go to the smallest
    label, and a client without tests has nan.
    """
    right = np.take_along_axis(test, train.argmax(1)[:, None], 1)[:, 0]
    with np.errstate(invalid="ignore"):
        return np.asarray(right / test.sum(1), dtype=np.float64)
