"""Two accuracies against each other, and one against a setting's parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.claims.rule import LEAST_SEEDS
from fedlib.frames import bands
from fedlib.plotting.curves import ordered, seeds_of
from fedlib.plotting.style import legend, look_of

FEW = 6  # places on a logarithmic axis that are all named
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
    ``printed`` are a paper's numbers in the same form, without seeds, drawn hollow.
    """
    figure, axes = _row(panels, 3.4, 3.6)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        both = _both(numbers, x, y, by)
        for place, (method, rows) in enumerate(both.groupby("method", sort=False)):
            _path(ax, str(method), MARKS[place % len(MARKS)], rows.sort_values(by), by)
        theirs = (printed or {}).get(panel)
        if theirs is not None and len(theirs):
            wide = _wide(theirs, x, y, by)
            _hollow(ax, wide)
            for method, rows in wide.groupby("method", sort=False):
                _numbers(ax, rows, by, look_of(str(method))[0])
        ax.set(xlabel=xlabel, title=f"{panel}, {seeds_of(both)}")
        ax.grid(alpha=0.25)
        drawn.append(both.assign(panel=panel))
    return _finished(figure, axes, drawn, ylabel, heading)


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
    same form, without seeds, drawn hollow.
    """
    figure, axes = _row(panels, 3.0, 2.9)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        shown = bands(ordered(numbers), by=("method", x))
        for place, (method, rows) in enumerate(shown.groupby("method", sort=False)):
            _line(ax, str(method), MARKS[place % len(MARKS)], rows.sort_values(x), x)
        theirs = (printed or {}).get(panel)
        if theirs is not None and len(theirs):
            _hollow(ax, theirs.rename(columns={x: "mean_x", "value": "mean_y"}))
        if one:
            ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
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
        drawn.append(shown.assign(panel=panel))
    return _finished(figure, axes, drawn, ylabel, heading)


def cumulative(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw which share of the clients has at most a value, by method: further right is better.

    ``panels`` maps a panel's title to a frame with columns method and value, one row per client and
    seed. Returns, by panel and method, every value and the share of those up to it.
    """
    figure, axes = _row(panels, 3.0, 2.9, sharey=True)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        for method, rows in ordered(numbers).groupby("method", sort=False):
            colour, dash = look_of(str(method))
            values = rows["value"].dropna().sort_values().reset_index(drop=True)
            share = (values.index + 1) / len(values)
            ax.step(values, share, where="post", color=colour, linestyle=dash, label=str(method))
            parts = {"panel": panel, "method": method, "value": values, "share": share}
            drawn.append(pd.DataFrame(parts))
        ax.set(xlabel=xlabel, title=panel)
        ax.grid(alpha=0.25)
    return _finished(figure, axes, drawn, "share of the clients", heading)


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
    of which the metrics ``x`` and ``y`` are drawn. Panels share their axes, from 0 to 1.
    """
    figure, axes = _row(panels, 3.2, 3.6, sharey=True)
    drawn = []
    for ax, (panel, numbers) in zip(axes, panels.items(), strict=True):
        rows = numbers[numbers["metric"].isin([x, y])]
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
    return _finished(figure, axes, drawn, ylabel, heading)


def embedding(
    points: pd.DataFrame, names: Sequence[str] = (), *, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw examples in planes, coloured by label, a panel for each base.

    ``points`` has columns base, x, y, label, purity; ``names`` are the labels' names.
    """
    bases = {str(base): rows for base, rows in points.groupby("base", sort=False)}
    figure, axes = _row(bases, 2.3, 2.9)
    for ax, (base, rows) in zip(axes, bases.items(), strict=True):
        for label, dots in rows.groupby("label"):
            k = int(str(label))
            name = names[k] if names else str(k)
            colour = plt.get_cmap("tab10")(k % 10)
            ax.scatter(dots["x"], dots["y"], s=14, color=colour, label=name, lw=0)
        ax.set(title=f"{base}\n{rows['purity'].iloc[0]:.2f}", xticks=[], yticks=[])
    legend(figure, axes, heading)
    return figure, points


def _row(
    panels: Mapping[str, pd.DataFrame], wide: float, high: float, *, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of panels, each ``wide`` and ``high`` inches; one has room too."""
    size = (max(wide * len(panels), 4.2), high)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=sharey)
    return figure, list(axes[0])


def _finished(
    figure: Figure, axes: list[Axes], drawn: list[pd.DataFrame], ylabel: str, heading: str
) -> tuple[Figure, pd.DataFrame]:
    """Return a row of panels with its legend, and what was drawn in all of them."""
    axes[0].set_ylabel(ylabel)
    legend(figure, axes, heading)
    return figure, pd.concat(drawn, ignore_index=True)


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
    sure = rows["seeds"] >= LEAST_SEEDS
    half = {
        side: ((rows[f"high_{side}"] - rows[f"low_{side}"]) / 2).where(sure) for side in ("x", "y")
    }
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


def _line(ax: Axes, method: str, mark: str, rows: pd.DataFrame, x: str) -> None:
    colour, dash = look_of(method)
    style: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": mark, "markersize": 4}
    ax.plot(rows[x], rows["mean"], label=method, **style)
    sure = rows[rows["seeds"] >= LEAST_SEEDS]
    ax.fill_between(sure[x], sure["low"], sure["high"], color=colour, alpha=0.15, lw=0)


def _hollow(ax: Axes, rows: pd.DataFrame) -> None:
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
