"""A number over a parameter, and how many clients have at most some number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.frames import bands
from companion.plotting.floor import draw_floor, look_of_curve, parted
from companion.plotting.layout import finished, side_by_side
from companion.plotting.planes import MARKS, hollow
from companion.plotting.style import look_of, ordered, seeds_of

FEW = 6  # places on a logarithmic axis that are all named


def over(
    panels: Mapping[str, pd.DataFrame],
    *,
    x: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    one: bool = False,
    printed: Mapping[str, pd.DataFrame] | None = None,
    heading: str = "",
) -> tuple[Figure, pd.DataFrame]:
    """Draw a number by method over a parameter ``x``: mean over seeds and 95% interval.

    ``panels`` maps a panel's title to a frame with columns method, seed, ``x`` and value. ``log``
    is for x; ``one`` draws a line at y = 1, for ratios. ``printed`` are a paper's numbers in the
    same form, without seeds, drawn hollow. The floor is a thin line, level where it has no ``x``.
    """
    figure, axes = side_by_side(panels, 3.0, 2.9)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        numbers, floor = parted(numbers)
        shown = bands(ordered(numbers), by=("method", x))
        for place, (method, rows) in enumerate(shown.groupby("method", sort=False)):
            _line(ax, str(method), MARKS[place % len(MARKS)], rows.sort_values(x), x)
        theirs = (printed or {}).get(panel)
        if theirs is not None and len(theirs):
            hollow(ax, theirs.rename(columns={x: "mean_x", "value": "mean_y"}))
        if one:
            ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        draw_floor(ax, floor["value"], floor[x])
        ax.set(
            xlabel=xlabel, title=f"{panel}, {seeds_of(shown)}", xscale="log" if log else "linear"
        )
        places = sorted(shown[x].unique())
        if log and len(places) <= FEW:
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.minorticks_off()
        elif all(float(place).is_integer() for place in places):
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(alpha=0.25)
        drawn += [shown.assign(panel=panel), *_floor_of(floor, x, panel)]
    return finished(figure, axes, drawn, ylabel, heading)


def cumulative(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw which share of the clients has at most a value, by method: further right is better.

    ``panels`` maps a panel's title to a frame with columns method and value, one row per client and
    seed. Returns, by panel and method, every value and the share of those up to it.
    """
    figure, axes = side_by_side(panels, 3.0, 2.9, sharey=True)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        for method, rows in ordered(numbers).groupby("method", sort=False):
            values = rows["value"].dropna().sort_values().reset_index(drop=True)
            share = (values.index + 1) / len(values)
            ax.step(values, share, where="post", **look_of_curve(str(method)))
            parts = {"panel": panel, "method": method, "value": values, "share": share}
            drawn.append(pd.DataFrame(parts))
        ax.set(xlabel=xlabel, title=panel)
        ax.grid(alpha=0.25)
    return finished(figure, axes, drawn, "share of the clients", heading)


def _floor_of(floor: pd.DataFrame, x: str, panel: str) -> list[pd.DataFrame]:
    """Return the floor as it is drawn, if there is one; one number where it has no x."""
    if not len(floor):
        return []
    by = ("method",) if floor[x].isna().all() else ("method", x)
    return [bands(floor, by=by).assign(panel=panel)]


def _line(ax: Axes, method: str, mark: str, rows: pd.DataFrame, x: str) -> None:
    colour, dash = look_of(method)
    style: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": mark, "markersize": 4}
    ax.plot(rows[x], rows["mean"], label=method, **style)
    ax.fill_between(rows[x], rows["low"], rows["high"], color=colour, alpha=0.15, lw=0)
