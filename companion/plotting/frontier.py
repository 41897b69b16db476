"""Many methods by two numbers, and those that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.plotting.floor import draw_floor, parted
from companion.plotting.layout import legend
from companion.plotting.style import PAGE

FORMS = "osD^vP"
SLOPE, LETTERS, LETTER = 20, 7, 3.8  # of names: degrees; their height and a letter's width, points


def frontier(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, ylabel: str, log: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw every method as a dot of its family's form, and name those that none beats in both.

    A panel's frame has columns method, family, x, y, best; the unbeaten are joined by a line.
    ``log`` is for x. The floor is no dot but a thin line at its y.
    """
    floors = {name: parted(frame)[1] for name, frame in panels.items()}
    panels = {name: parted(frame)[0] for name, frame in panels.items()}
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
        draw_floor(ax, floors[name]["y"])
        ax.set(title=name, xlabel=xlabel, ylabel=ylabel, xscale="log" if log else "linear")
        ax.margins(0.1, 0.1)
        low, high = ax.get_ylim()
        ax.set_ylim(top=high + 0.25 * (high - low))  # room for names
        ax.grid(alpha=0.25)
        _front(ax, points[points["best"]].sort_values("x"))
    legend(figure, list(axes[:, 0]))
    of_floor = [f.assign(panel=name) for name, f in floors.items() if len(f)]
    return figure, pd.concat([every, *of_floor], ignore_index=True)


def _front(ax: Axes, best: pd.DataFrame) -> None:
    """Join the unbeaten and name them, each above its dot and clear of the names before it."""
    ax.plot(best["x"], best["y"], ":", color="grey", linewidth=0.9, zorder=0)
    ax.autoscale_view(scaley=False)  # else the limits would only be known when all is drawn
    dots = ax.transData.transform(best[["x", "y"]].to_numpy(float)) * 72 / ax.figure.dpi
    written: list[tuple[np.ndarray, float]] = []
    for x, y, dot, method in zip(best["x"], best["y"], dots, best["method"], strict=True):
        at, long = dot + np.array([3, 4]), len(str(method)) * LETTER
        while any(_overlap(at - there, long, other) for there, other in written):
            at = at + np.array([0, 1])
        written.append((at, long))
        ax.annotate(
            str(method),
            (x, y),
            xytext=tuple(at - dot),
            textcoords="offset points",
            rotation=SLOPE,
            fontsize=LETTERS,
        )


def _overlap(between: np.ndarray, long: float, other: float) -> bool:
    """Return whether two sloping names overlap; lengths and the way between them in points."""
    turn = np.radians(SLOPE)
    along = between @ (np.cos(turn), np.sin(turn))
    across = between @ (-np.sin(turn), np.cos(turn))
    return bool(abs(across) < LETTERS + 1 and -long < along < other)
