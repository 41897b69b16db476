"""The trials of a search, stage by stage."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from companion.plotting.style import PAGE


def trials(table: pd.DataFrame, *, ylabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw every trial's score over its rate, a panel per stage; the best has a ring.

    ``table`` has columns stage, score, best, and lr, or eps where a stage has no lr.
    """
    stages = list(table.groupby("stage", sort=False))
    figure, axes = plt.subplots(1, len(stages), figsize=(PAGE, 2.3), squeeze=False)
    for ax, (stage, rows) in zip(axes[0], stages, strict=True):
        rate = "lr" if rows["lr"].notna().any() else "eps"
        best = rows[rows["best"]]
        ax.scatter(rows[rate], rows["score"], s=18, color="C0")
        ax.scatter(best[rate], best["score"], s=90, facecolors="none", edgecolors="black")
        label = "learning rate" if rate == "lr" else r"exploration $\varepsilon$"
        ax.set(xlabel=label, title=str(stage))
        if rate == "lr":
            _log(ax, rows[rate].min(), rows[rate].max())
        ax.grid(alpha=0.25)
    axes[0][0].set_ylabel(ylabel)
    return figure, table


def _log(ax: Axes, low: float, high: float) -> None:
    """Give a narrow panel a logarithmic axis with few marks, none of them on an edge."""
    ax.set(xscale="log", xlim=(low / 1.6, high * 1.6))
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 30 * low else (1.0, 3.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
