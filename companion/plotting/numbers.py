"""Numbers by method: best at the top, by a place, and in rows with their range."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.frames import bands
from companion.plotting.curves import Cell, draw_cell
from companion.plotting.floor import draw_floor, draw_upright_floor, parted
from companion.plotting.layout import head, legend, side_by_side
from companion.plotting.style import PAGE, SHADES, look_of, seeds_of

FORMS = "osD^v"
STEPS = [1, 2, 2.5, 5, 10]  # between ticks, of which few leave room for labels such as -0.15


def standings(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw one number per run by method, best at the top: runs, mean and 95% interval.

    ``panels`` maps a panel's title to a frame with columns method, seed and value.
    """
    most = max(frame["method"].nunique() for frame in panels.values())
    figure, axes = side_by_side(panels, 3.6, 0.24 * most + 0.9, 4.6)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        drawn.append(_standing(ax, numbers).assign(panel=panel))
        ax.set_title(f"{panel}, {seeds_of(drawn[-1])}", fontsize="small")
        ax.set_xlabel(xlabel)
    head(figure, heading)
    return figure, pd.concat(drawn, ignore_index=True)


def ranked(curve: Cell, numbers: pd.DataFrame, *, xlabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw curves, and beside them one number per run by method as in ``standings``.

    ``numbers`` has columns method, seed and value. The methods' names at their numbers are the
    legend of the curves.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE + 1.2, 3.3), width_ratios=[1.2, 1])
    draw_cell(left, curve)
    drawn = _standing(right, numbers)
    right.set_xlabel(xlabel)
    right.yaxis.tick_right()
    return figure, drawn


def points(
    frame: pd.DataFrame, x: str, *, ylabel: str, heading: str = "", log: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw every run and the mean with its 95% interval, by method and ``x``.

    ``frame`` has columns method, seed, value and the one that ``x`` names. The floor is a thin line
    across each place that has one.
    """
    frame, floor = parted(frame)
    drawn = bands(frame, by=(x, "method"))
    methods = list(dict.fromkeys(frame["method"]))
    places = list(dict.fromkeys(frame[x]))
    figure, ax = plt.subplots(figsize=(min(PAGE, 2.4 + 1.8 * len(places)), 2.6))
    for j, method in enumerate(methods):
        at = {
            d: i + (j - (len(methods) - 1) / 2) * 0.8 / len(methods) for i, d in enumerate(places)
        }
        _points(
            ax, method, at, x, frame[frame["method"] == method], drawn[drawn["method"] == method]
        )
    _floor_of_places(ax, floor, x, places)
    crowded = len(places) > 6
    ax.set_xticks(range(len(places)), places, rotation=30 if crowded else 0)
    ax.set_xlim(-0.6, len(places) - 0.4)
    ax.set(ylabel=ylabel, yscale="log" if log else "linear")
    ax.grid(axis="y", alpha=0.3)
    legend(figure, [ax], heading)
    return figure, drawn


def dots(
    panels: Mapping[str, pd.DataFrame],
    *,
    xlabel: str,
    marks: Mapping[str, float] | None = None,
    mark: str = "",
    heading: str = "",
    empty: str = "",
    black: str = "",
    most: float | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Draw means with their ranges in rows, one panel each.

    A panel's frame has columns row, group, mean, low, high: rows from top to bottom, groups by
    colour and form. ``marks`` are places of dotted lines, one per panel, called ``mark``; ``empty``
    is written where a panel has nothing of a row; the group ``black`` is drawn so. Given ``most``,
    where an accuracy ends, no range is drawn beyond it or below 0. The floor is no row but a thin
    upright line.
    """
    floors = {name: parted(frame, "row")[1] for name, frame in panels.items()}
    panels = {name: parted(frame, "row")[0] for name, frame in panels.items()}
    every = pd.concat([f.assign(panel=name) for name, f in panels.items()], ignore_index=True)
    rows, groups = (list(dict.fromkeys(every[c])) for c in ("row", "group"))
    tall = 0.19 * len(groups) + 0.12
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(min(PAGE, max(4.6, 1.4 + 2.3 * len(panels))), tall * len(rows) + 1.3),
        squeeze=False,
        sharey=True,
        sharex=True,
    )
    looks = {
        g: ("black" if g == black else SHADES[j % len(SHADES)], FORMS[j % len(FORMS)])
        for j, g in enumerate(groups)
    }
    for ax, (name, frame) in zip(axes[0], panels.items(), strict=True):
        if most is not None:
            frame = frame.assign(low=frame["low"].clip(0), high=frame["high"].clip(upper=most))
        _rows(ax, frame, rows, looks)
        for row in set(rows) - set(frame["row"]):
            middle = {"ha": "center", "va": "center", "transform": ax.get_yaxis_transform()}
            ax.text(0.5, rows.index(row), empty, color="grey", fontsize="small", **middle)
        if marks and name in marks:
            ax.axvline(marks[name], color="black", linestyle=":", linewidth=0.9, label=mark)
        draw_upright_floor(ax, floors[name]["mean"])
        ax.set(title=fill(name, 28), xlabel=xlabel)
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
        ax.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(rows)), rows)
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    legend(figure, axes[0], heading)
    of_floor = [f.assign(panel=name) for name, f in floors.items() if len(f)]
    return figure, pd.concat([every, *of_floor], ignore_index=True)


def _standing(ax: Axes, numbers: pd.DataFrame) -> pd.DataFrame:
    drawn = bands(numbers, by=("method",)).sort_values("mean").reset_index(drop=True)
    for place, of in enumerate(drawn.to_dict("records")):
        colour, dash = look_of(of["method"])
        runs = numbers.loc[numbers["method"] == of["method"], "value"]
        ax.plot(runs, [place] * len(runs), "|", color=colour, alpha=0.6, markersize=9)
        ends = [of["low"], of["high"]]
        ax.plot(ends, [place, place], color=colour, linestyle=dash, linewidth=1.6)
        ax.plot([of["mean"]], [place], "o", color=colour, markersize=5)
    ax.set_yticks(range(len(drawn)), drawn["method"].tolist())
    ax.set_ylim(-0.6, len(drawn) - 0.4)
    ax.grid(axis="x", alpha=0.3)
    return drawn


def _points(
    ax: Axes, method: str, at: dict[str, float], x: str, runs: pd.DataFrame, drawn: pd.DataFrame
) -> None:
    colour, _ = look_of(method)
    centre = drawn[x].map(at).to_numpy(dtype=float)
    half = ((drawn["high"] - drawn["low"]) / 2).to_numpy()
    ax.errorbar(
        centre,
        drawn["mean"],
        yerr=half,
        fmt="o",
        color=colour,
        capsize=3,
        label=method,
        markersize=5,
    )
    ax.plot(runs[x].map(at), runs["value"], "_", color=colour, alpha=0.6, markersize=9)


def _floor_of_places(ax: Axes, floor: pd.DataFrame, x: str, places: list[str]) -> None:
    """Draw the floor across each place, one line that leaps between them."""
    means = floor.groupby(x)["value"].mean()
    ends = [
        (i + half, means[at])
        for i, at in enumerate(places)
        if at in means
        for half in (-0.45, 0.45)
    ]
    if ends:
        where, level = zip(*ends, strict=True)
        draw_floor(ax, pd.Series(level), pd.Series(where))


def _rows(
    ax: Axes, frame: pd.DataFrame, rows: list[str], looks: Mapping[str, tuple[str, str]]
) -> None:
    """Draw the dots and ranges of all groups, and lines between rows."""
    for j, (group, (colour, form)) in enumerate(looks.items()):
        mine = frame[frame["group"] == group]
        shift = (j - (len(looks) - 1) / 2) * 0.75 / len(looks)
        at = [rows.index(row) + shift for row in mine["row"]]
        ax.hlines(at, mine["low"], mine["high"], color=colour, linewidth=1.3)
        ax.plot(mine["mean"], at, form, color=colour, markersize=4.5, label=group)
    for place in range(len(rows) - 1):
        ax.axhline(place + 0.5, color="0.9", linewidth=0.6)
