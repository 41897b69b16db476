"""Summaries of per-client accuracies, and of a run's course."""

from __future__ import annotations

import numpy as np
import pandas as pd


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


def report(curve: pd.DataFrame) -> dict[str, float]:
    """Return what a run is reported by: last, mean of the last ten, best on validation.

    ``curve`` has columns round, validation and test, one row per evaluation. The round is chosen
    on validation, the number given is the test accuracy of that round; test never chooses.
    """
    ordered = curve.sort_values("round")
    best = ordered["validation"].to_numpy().argmax()
    return {
        "last": float(ordered["test"].iloc[-1]),
        "last_ten": float(ordered["test"].iloc[-10:].mean()),
        "best_on_validation": float(ordered["test"].iloc[best]),
        "best_round": int(ordered["round"].iloc[best]),
    }
