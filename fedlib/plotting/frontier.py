"""Many methods by two numbers, and those that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.plotting.layout import legend
from fedlib.plotting.style import PAGE

FORMS = "osD^vP"


def frontier(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, ylabel: str, log: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw every method as a dot of its family's form, and name those that none beats in both.

    A panel's frame has columns method, family, x, y, best; the unbeaten are joined by a line.
    ``log`` is for x.
    """
    every = pd.concat([f.assign(panel=name) for name, f in panels.items()], ignore_index=True)
    looks = {
        name: (plt.get_cmap("tab10")(k), FORMS[k % len(FORMS)])
        for k, name in enumerate(dict.fromkeys(every["family"]))
    }
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(PAGE, 3.6 * len(panels) + 0.6), squeeze=False
    )
    for ax, (name, points) in zip(axes[:, 0], panels.items(), strict=True):
        for family, dots in points.groupby("family", sort=False):
            colour, form = looks[str(family)]
            ax.plot(dots["x"], dots["y"], form, color=colour, markersize=5, label=family, alpha=0.8)
        _front(ax, points[points["best"]].sort_values("x"))
        ax.set(title=name, xlabel=xlabel, ylabel=ylabel, xscale="log" if log else "linear")
        ax.margins(0.1, 0.15)  # room for names
        ax.grid(alpha=0.25)
    legend(figure, list(axes[:, 0]))
    return figure, every


def _front(ax: Axes, best: pd.DataFrame) -> None:
    """Join the unbeaten and name them, each above its dot."""
    ax.plot(best["x"], best["y"], ":", color="grey", linewidth=0.9, zorder=0)
    for x, y, method in zip(best["x"], best["y"], best["method"], strict=True):
        ax.annotate(
            str(method), (x, y), xytext=(3, 4), textcoords="offset points", rotation=20, fontsize=7
        )
