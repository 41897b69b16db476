"""The floor in a figure: a thin line where always saying the commonest label ends."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from companion.looks import looks
from companion.plotting.style import look_of

CALLED = "always the commonest label"
FLOOR_COLOUR = (0.3, 0.3, 0.3)
_LINE: dict[str, Any] = {
    "color": FLOOR_COLOUR,
    "linestyle": (0, (4, 3)),
    "linewidth": 0.9,
    "zorder": 1.5,
    "label": CALLED,
}


def parted(frame: pd.DataFrame, column: str = "method") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a frame without the floor's rows, and these."""
    of_floor = frame[column] == looks().floor
    return frame[~of_floor], frame[of_floor]


def line_of_floor(ax: Axes) -> Line2D | None:
    """Return the floor's line in a field, None where there is none."""
    return next((line for line in ax.lines if line.get_label() == CALLED), None)


def draw_floor(ax: Axes, level: pd.Series, at: pd.Series | None = None) -> None:
    """Draw the floor's mean as a line across a field, or as a curve over ``at`` where it differs.

    Nothing where the floor was not run.
    """
    if not len(level):
        return
    if at is None or at.isna().all():
        ax.axhline(float(level.mean()), **_LINE)
        return
    means = level.groupby(at).mean()
    ax.plot(means.index, means, **_LINE)


def look_of_curve(method: str) -> dict[str, Any]:
    """Return how a method's curve is drawn, and what it is called; the floor's is thin."""
    if method == looks().floor:
        return _LINE
    colour, dash = look_of(method)
    return {"color": colour, "linestyle": dash, "label": method}


def path_of_floor(ax: Axes, x: pd.Series, y: pd.Series) -> None:
    """Draw the floor as a path through points of a plane."""
    ax.plot(x, y, marker=".", markersize=3, **_LINE)


def draw_upright_floor(ax: Axes, level: pd.Series) -> None:
    """Draw the floor's mean as an upright line, in a field whose accuracies go to the right."""
    if len(level):
        ax.axvline(float(level.mean()), **_LINE)
