"""Two numbers against each other: of methods, of clients, of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.frames import bands
from companion.plotting.floor import FLOOR_COLOUR, parted, path_of_floor
from companion.plotting.layout import fields, finished, legend, side_by_side
from companion.plotting.style import COLUMN, look_of, ordered, seeds_of

MARKS = ("o", "s", "^", "D", "v", "P")


def plane(
    panels: Mapping[str, pd.DataFrame],
    *,
    x: str,
    y: str,
    by: str,
    xlabel: str,
    ylabel: str,
    printed: Mapping[str, pd.DataFrame] | None = None,
    heading: str = "",
) -> tuple[Figure, pd.DataFrame]:
    """Draw two numbers of every method against each other, a point per value of ``by``.

    Each point is the mean over seeds with both 95% intervals, and says its value of ``by``; a
    line joins the points of a method in that order. ``panels`` maps a panel's title to a frame with
    columns method, seed, ``by``, metric and value, of which the metrics ``x`` and ``y`` are drawn.
    ``printed`` are a paper's numbers in the same form, without seeds, drawn hollow. The floor is a
    thin line, with its values of ``by`` beside it.
    """
    figure, axes = side_by_side(panels, 3.4, 3.6)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        both, floor = parted(_both(numbers, x, y, by))
        for place, (method, rows) in enumerate(both.groupby("method", sort=False)):
            _path(ax, str(method), MARKS[place % len(MARKS)], rows.sort_values(by), by)
        theirs = (printed or {}).get(panel)
        if theirs is not None and len(theirs):
            wide = _wide(theirs, x, y, by)
            hollow(ax, wide)
            for method, rows in wide.groupby("method", sort=False):
                _numbers(ax, rows, by, look_of(str(method))[0])
        if len(floor):
            path_of_floor(ax, floor["mean_x"], floor["mean_y"])
            _numbers(ax, floor, by, FLOOR_COLOUR)
        ax.set(xlabel=xlabel, title=f"{panel}, {seeds_of(both)}")
        ax.grid(alpha=0.25)
        drawn += [both.assign(panel=panel), floor.assign(panel=panel)]
    return finished(figure, axes, drawn, ylabel, heading)


def cloud(
    panels: Mapping[str, pd.DataFrame],
    *,
    x: str,
    y: str,
    xlabel: str,
    ylabel: str,
    heading: str = "",
) -> tuple[Figure, pd.DataFrame]:
    """Draw two numbers of every client against each other: a dot each, and a method's mean.

    ``panels`` maps a panel's title to a frame with columns method, seed, client, metric and value,
    of which the metrics ``x`` and ``y`` are drawn. Panels share their axes, from 0 to 1. The floor
    is left out: it looks at no example.
    """
    figure, axes = side_by_side(panels, 3.2, 3.6, sharey=True)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        rows, _ = parted(numbers[numbers["metric"].isin([x, y])])
        wide = rows.pivot_table("value", ["method", "seed", "client"], "metric", sort=False)
        wide = ordered(wide.dropna().reset_index())
        for place, (method, dots) in enumerate(wide.groupby("method", sort=False)):
            colour, mark = look_of(str(method))[0], MARKS[place % len(MARKS)]
            ax.scatter(dots[x], dots[y], s=9, color=colour, marker=mark, alpha=0.35, lw=0)
            ax.scatter(
                dots[x].mean(),
                dots[y].mean(),
                s=70,
                color=colour,
                marker=mark,
                edgecolors="black",
                label=str(method),
            )
        ax.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=":")
        ax.set(xlabel=xlabel, title=panel, xlim=(0, 1), ylim=(0, 1))
        drawn.append(wide.assign(panel=panel))
    return finished(figure, axes, drawn, ylabel, heading)


def versus(
    panels: Mapping[str, pd.DataFrame],
    *,
    xlabel: str,
    ylabel: str,
    heading: str = "",
    most: float = np.inf,
) -> tuple[Figure, pd.DataFrame]:
    """Draw one number against another by method, one panel each: mean, interval, and every run.

    A panel's frame has columns method, seed, x, y. The dotted line is where both are the same. No
    interval is drawn beyond ``most``, where an accuracy ends.
    """
    wide = len(panels) if len(panels) <= 3 else 2
    figure, axes = fields(len(panels), wide, max(COLUMN * wide, 4.6), 2.9)
    frames = []
    for ax, (name, frame) in zip(axes.flat, panels.items(), strict=False):
        for method, runs in frame.groupby("method", sort=False):
            frames.append(_cross(ax, str(method), runs, most).assign(panel=name))
        ends = [frame[["x", "y"]].to_numpy().min(), frame[["x", "y"]].to_numpy().max()]
        ax.plot(ends, ends, ":", color="grey", linewidth=0.9, zorder=0)
        ax.set(title=name, xlabel=xlabel)
        ax.grid(alpha=0.3)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    _complete(list(axes.flat))
    legend(figure, list(axes.flat), heading)
    return figure, pd.concat(frames, ignore_index=True)


def embedding(
    points: pd.DataFrame, names: Sequence[str] = (), *, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw examples in planes, coloured by label, a panel for each base.

    ``points`` has columns base, x, y, label, purity; ``names`` are the labels' names.
    """
    bases = {str(base): rows for base, rows in points.groupby("base", sort=False)}
    figure, axes = side_by_side(bases, 2.3, 2.9)
    for ax, (base, rows) in zip(axes, bases.items(), strict=True):
        for label, dots in rows.groupby("label"):
            k = int(str(label))
            name = names[k] if names else str(k)
            colour = plt.get_cmap("tab10")(k % 10)
            ax.scatter(dots["x"], dots["y"], s=14, color=colour, label=name, lw=0)
        ax.set(title=f"{base}\n{rows['purity'].iloc[0]:.2f}", xticks=[], yticks=[])
    legend(figure, axes, heading)
    return figure, points


def _both(numbers: pd.DataFrame, x: str, y: str, by: str) -> pd.DataFrame:
    """Return mean, low and high of x and of y by method and ``by``, and the number of seeds."""
    sides = [
        bands(ordered(numbers[numbers["metric"] == metric]), by=("method", by)) for metric in (x, y)
    ]
    return sides[0].merge(sides[1].drop(columns="seeds"), on=["method", by], suffixes=("_x", "_y"))


def _wide(printed: pd.DataFrame, x: str, y: str, by: str) -> pd.DataFrame:
    rows = printed[printed["metric"].isin([x, y])]
    wide = rows.pivot_table("value", ["method", by], "metric", sort=False).reset_index()
    return wide.rename(columns={x: "mean_x", y: "mean_y"}).dropna()


def _path(ax: Axes, method: str, mark: str, rows: pd.DataFrame, by: str) -> None:
    colour, _ = look_of(method)
    half = {side: (rows[f"high_{side}"] - rows[f"low_{side}"]) / 2 for side in ("x", "y")}
    ax.plot(rows["mean_x"], rows["mean_y"], color=colour, linewidth=0.8, alpha=0.5)
    ax.errorbar(
        rows["mean_x"],
        rows["mean_y"],
        xerr=half["x"],
        yerr=half["y"],
        fmt=mark,
        color=colour,
        label=method,
        markersize=5,
        elinewidth=0.8,
    )
    _numbers(ax, rows, by, colour)


def hollow(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw a paper's points, and say once what they are."""
    for place, (method, points) in enumerate(rows.groupby("method", sort=False)):
        colour, _ = look_of(str(method))
        label: dict[str, Any] = {"label": "published"} if place == 0 else {}
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": [colour], "linewidths": 0.9}
        ax.scatter(points["mean_x"], points["mean_y"], s=26, **style, **label)


def _numbers(ax: Axes, rows: pd.DataFrame, by: str, colour: tuple[float, float, float]) -> None:
    for row in rows.to_dict("records"):
        where = (row["mean_x"], row["mean_y"])
        ax.annotate(
            f"{row[by]:g}",
            where,
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=6.5,
            color=colour,
        )


def _cross(ax: Axes, method: str, runs: pd.DataFrame, most: float) -> pd.DataFrame:
    ends = {c: bands(runs.rename(columns={c: "value"}), by=("method",)).iloc[0] for c in "xy"}
    colour, _ = look_of(method)
    reach = {
        c: [[e["mean"] - e["low"]], [np.minimum(e["high"], most) - e["mean"]]]
        for c, e in ends.items()
    }
    ax.plot(runs["x"], runs["y"], ".", color=colour, alpha=0.4, markersize=4)
    ax.errorbar(
        ends["x"]["mean"],
        ends["y"]["mean"],
        xerr=reach["x"],
        yerr=reach["y"],
        fmt="o",
        color=colour,
        label=method,
        markersize=6,
        elinewidth=0.9,
    )
    means = {f"{c}_{k}": e[k] for c, e in ends.items() for k in ("mean", "low", "high")}
    return pd.DataFrame([{"method": method, "seeds": len(runs), **means}])


def _complete(axes: Sequence[Axes]) -> None:
    """Give the first panel an empty entry for each method that only others have."""
    known = set(axes[0].get_legend_handles_labels()[1])
    for ax in axes[1:]:
        for name in ax.get_legend_handles_labels()[1]:
            if name not in known:
                axes[0].errorbar([], [], fmt="o", color=look_of(name)[0], label=name)
                known.add(name)
