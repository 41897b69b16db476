"""The trials of a search, stage by stage."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fedlib.plotting.style import PAGE


def trials(table: pd.DataFrame, *, ylabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw every trial's score over its rate, a panel per stage; the best has a ring.

    ``table`` has columns stage, score, best, and lr, or eps where a stage has no lr; see
    ``fedlib.tuning.search``.
    """
    stages = list(table.groupby("stage", sort=False))
    figure, axes = plt.subplots(1, len(stages), figsize=(PAGE, 2.3), squeeze=False)
    for ax, (stage, rows) in zip(axes[0], stages, strict=True):
        rate = "lr" if rows["lr"].notna().any() else "eps"
        best = rows[rows["best"]]
        ax.scatter(rows[rate], rows["score"], s=18, color="C0")
        ax.scatter(best[rate], best["score"], s=90, facecolors="none", edgecolors="black")
        label = "learning rate" if rate == "lr" else r"exploration $\varepsilon$"
        ax.set(xlabel=label, title=str(stage), xscale="log" if rate == "lr" else "linear")
        ax.grid(alpha=0.25)
    axes[0][0].set_ylabel(ylabel)
    return figure, table
