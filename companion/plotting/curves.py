"""Curves: metrics over rounds, over the traffic, over a parameter, and over the clients."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from companion.frames import bands
from companion.plotting import style
from companion.plotting.style import Drawn, Style, draw_panels
from companion.theme import theme

ROUNDS = "communication round"
BEGINNING = 0.15  # the share of the rounds whose steep rise would squeeze all that follows
LETTERS = 14  # letters in a line of the name of a place
ACCURACIES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)  # ticks of a logit axis
FEW = 6  # so many values of x, or fewer, have a tick each
LETTER = 0.035  # the width of a letter of a tick label, as a share of the panel's


def curves(
    panels: Mapping[str, pd.DataFrame],
    *,
    seeds: bool = True,
    run: str = "seed",
    at: Sequence[float] = (),
    mark: str = "",
    **labels: Any,
) -> Drawn:
    """Draw curves by method: the mean over seeds as a line, and every seed as a thin line.

    Args:
        panels: by title, a frame with columns method, seed, round and value.
        seeds: whether the thin lines are drawn.
        run: what a title calls the runs that it counts; "" counts nothing.
        at: a round per panel, which is marked with a dotted line.
        mark: what the legend calls that line.
        labels: as of `style.draw_panels`; ``ylabel`` is required.

    Returns:
        The figure, and the mean, interval and number of seeds by method and round.
    """
    marks = dict(zip(panels, at, strict=False))

    def draw(ax: Axes, name: str, curve: pd.DataFrame) -> pd.DataFrame:
        curve, floor = style.parted(curve)
        drawn = bands(curve)
        _lines(ax, drawn, "round", curve if seeds else curve[:0])
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        style.draw_floor(ax, floor["value"])
        style.fit(ax, drawn["mean"], floor["value"])
        # The axis of a quantity starts at zero, unless that would hide the differences.
        if style.FROM_ZERO.search(labels["ylabel"]) and curve["value"].min() < ax.get_ylim()[1] / 2:
            ax.set_ylim(bottom=0)
        if name in marks:
            ax.axvline(marks[name], label=mark or None, **style.MARK)
        ax.set_title(f"{name}, {style.seeds_of(drawn, run)}" if run else name)
        return drawn

    return draw_panels(panels, draw, (style.COLUMN, 2.7), **{"xlabel": ROUNDS} | labels)


class Cell(NamedTuple):
    """One panel of a ``grid``.

    Attributes:
        title: the title.
        curve: columns method, seed, round and value, and also ``x`` if that is "gigabytes".
        x: the column of the horizontal axis.
        ylabel: the label of the y axis; empty at all but the left panel of a row.
        zero: whether a line is drawn at y = 0.
        mark: the x of a dotted line, None for none.
        called: what the legend calls that line.
    """

    title: str
    curve: pd.DataFrame
    x: str = "round"
    ylabel: str = ""
    zero: bool = False
    mark: float | None = None
    called: str = ""


def grid(rows: Sequence[Sequence[Cell]], **labels: Any) -> Drawn:
    """Draw curves by method in rows and columns of panels, with one legend for all.

    Each curve is the mean over seeds at every evaluated round, at the mean of x, with a thin line
    for every seed. The y axis fits the means after the first rounds (``BEGINNING``): earlier means,
    and single seeds, may lie outside. In each row panels of real data come first.

    Args:
        rows: the panels, row by row.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean and interval by panel, method and round.
    """
    wide, rows = max(map(len, rows)), [_real_first(row) for row in rows]
    cells: list[tuple[str, tuple[Cell, str] | None]] = []
    for row in rows:  # a cell without a label of y has that of the first cell of its row
        cells += [(c.title, (c, c.ylabel or row[0].ylabel)) for c in row]
        cells += [("", None)] * (wide - len(row))
    size = (2.75 + 0.4 / wide, 2.2)
    return draw_panels(cells, _cell, size, columns=wide, least=5.2, room=0.8, **labels)


def _real_first(row: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a row, real data first; the labels of y stay at their positions."""
    names = style.real_first(dict.fromkeys(cell.title for cell in row))
    moved = sorted(row, key=lambda cell: names.index(cell.title))
    return [cell._replace(ylabel=at.ylabel) for cell, at in zip(moved, row, strict=True)]


def _cell(ax: Axes, name: str, field: tuple[Cell, str]) -> pd.DataFrame:
    """Draw one panel of a grid.

    Returns:
        The mean and interval by method and round, with the names of x and y.
    """
    cell, y = field
    curve, floor = style.parted(cell.curve)
    drawn = bands(style.ordered(curve))
    scale, label = 1.0, ROUNDS
    if cell.x != "round":
        at = curve.groupby(["method", "round"], as_index=False)[cell.x].mean()
        drawn = drawn.merge(at, on=["method", "round"])
        small = drawn[cell.x].max() < 0.1
        scale, label = (1e3, "megabytes") if small else (1.0, "gigabytes")
        label += " sent, down and up"
    shown, runs = (rows.assign(**{cell.x: rows[cell.x] * scale}) for rows in (drawn, curve))
    _lines(ax, shown, cell.x, runs)
    if cell.zero:
        ax.axhline(0, color="black", linewidth=0.8)
    if cell.mark is not None:
        ax.axvline(cell.mark * scale, label=cell.called or None, **style.MARK)
    style.draw_floor(ax, floor["value"])
    means = drawn.loc[drawn["round"] > BEGINNING * drawn["round"].max(), "mean"]
    ends = [*means, *floor["value"], *([0.0] if cell.zero else [])]
    room = 0.08 * (max(ends) - min(ends)) or 0.05
    limits = min(ends) - room, max(ends) + room
    ax.set(xlabel=label, ylabel=cell.ylabel, xlim=(0, None), ylim=limits)
    ax.set_title(f"{name}, {style.seeds_of(drawn)}", fontsize="small")
    return drawn.assign(panel=name, x=cell.x, y=y)


def over(
    panels: Mapping[str, pd.DataFrame],
    *,
    x: str,
    log: bool = False,
    level: float | None = None,
    least: float = 0.0,
    seeds: bool = True,
    apart: float = 0.0,
    printed: Mapping[str, pd.DataFrame] | None = None,
    **labels: Any,
) -> Drawn:
    """Draw a number by method over a parameter: the mean over seeds, and every run as a dot.

    The baseline is a thin line, which is level if it does not depend on the parameter.

    Args:
        panels: by title, a frame with columns method, seed, ``x`` and value.
        x: the column of the parameter.
        log: whether the axis of x is logarithmic.
        level: the y of a dotted line, None for none.
        least: how far the y axis extends at least to either side of ``level``.
        seeds: whether runs are drawn as dots and counted in the titles.
        apart: the distance in x between methods, which would otherwise cover each other.
        printed: published numbers in the same form but without seeds, drawn as hollow circles.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean, interval and number of seeds by method and ``x``.
    """

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        numbers, floor = style.parted(style.ordered(numbers))
        shown, order = bands(numbers, by=("method", x)), pd.factorize(numbers["method"])[0]
        moved = numbers.assign(**{x: numbers[x] + apart * (order - order.mean())})
        _lines(ax, bands(moved, by=("method", x)), x, numbers[:0], forms=True)
        for method, runs in moved.groupby("method") if seeds else ():
            colour = style.look_of(str(method))["color"]
            ax.plot(runs[x], runs["value"], ".", color=colour, alpha=0.45, ms=6, zorder=1.8)
        style.mark(ax, name, moved, x, "value")
        hollow(ax, (printed or {}).get(name, numbers[:0]), x, "value")
        if level is not None:
            ax.axhline(level, **style.MARK)
        style.draw_floor(ax, floor["value"], floor[x])
        style.fit(ax, numbers["value"], floor["value"])
        if level is not None:
            low, high = ax.get_ylim()
            ax.set_ylim(min(low, level - least), max(high, level + least))
        title = f"{name}, {style.seeds_of(shown)}" if seeds else name
        ax.set(title=title, xscale="log" if log else "linear")
        _tick(ax, sorted(shown[x].unique()), log)
        if not len(floor):
            return shown
        by = ("method",) if floor[x].isna().all() else ("method", x)
        return pd.concat([shown, bands(floor, by=by)])

    return draw_panels(panels, draw, (3.0, 2.9), **labels)


def gaps(
    panels: Mapping[str, pd.DataFrame],
    pairs: Sequence[tuple[str, str]],
    *,
    x: str,
    printed: Mapping[str, pd.DataFrame] | None = None,
    log: bool = False,
    **labels: Any,
) -> Drawn:
    """Draw the difference of two methods over a parameter, in percentage points.

    The difference is paired by seed: its mean with the 95% interval, and every seed as a dot. A
    line at 0 is no difference. A pair has the colour of its first method, or of the second if one
    method is compared with several.

    Args:
        panels: by title, a frame with columns method, seed, ``x`` and value.
        pairs: each a method, and the one that is subtracted.
        x: the column of the parameter.
        printed: published numbers in the same form but without seeds; their differences are hollow.
        log: whether the axis of x is logarithmic.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean, interval and number of seeds by pair and ``x``.
    """
    several = len({method for method, _ in pairs}) < len(pairs)

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        ax.axhline(0, color="black", linewidth=0.8)
        theirs = (printed or {}).get(name, numbers[:0]).assign(seed=0)
        places = sorted(numbers[x].dropna().unique())
        # Pairs are drawn side by side, a twelfth of the least distance between values of x apart.
        step = min(np.diff(np.log(places) if log else places), default=1.0) / 12
        drawn = []
        for at, (method, other) in enumerate(pairs):
            rows = minus(numbers, method, other, x)
            shift = step * (at - (len(pairs) - 1) / 2)
            shown, dots, hollows = (
                rows.assign(**{x: rows[x] * np.exp(shift) if log else rows[x] + shift})
                for rows in (bands(rows, by=("method", x)), rows, minus(theirs, method, other, x))
            )
            named = other if several else method
            look = style.look_of(named)["color"]
            ends = [shown["mean"] - shown["low"], shown["high"] - shown["mean"]]
            marker: Style = {"fmt": style.form_of(named), "markersize": 5, "capsize": 2}
            label = f"{method} minus {other}"
            ax.errorbar(shown[x], shown["mean"], ends, color=look, label=label, lw=1.2, **marker)
            ax.plot(dots[x], dots["value"], ".", color=look, alpha=0.4, ms=5, zorder=1.8)
            hollow(ax, hollows.assign(method=named), x, "value")
            drawn.append(bands(rows, by=("method", x)))
        ax.set(
            title=f"{name}, {style.seeds_of(pd.concat(drawn))}", xscale="log" if log else "linear"
        )
        if len(places) <= FEW:
            _mark_each(ax, places, log)
        return pd.concat(drawn)

    return draw_panels(panels, draw, (3.2, 2.9), **{"ylabel": "difference (points)"} | labels)


def minus(numbers: pd.DataFrame, method: str, other: str, x: str) -> pd.DataFrame:
    """Return the differences of two methods in points by seed and ``x``, as rows of one method."""
    pair = numbers[numbers["method"].isin([method, other])]
    wide = pair.pivot_table("value", ["seed", x], "method").reindex(columns=[method, other])
    gap = (100 * (wide[method] - wide[other])).dropna().rename("value").reset_index()
    return gap.assign(method=f"{method} minus {other}")


def _tick(ax: Axes, places: list[float], log: bool) -> None:
    """Put a tick at each of a few values on a logarithmic x axis; else at whole numbers only."""
    if log and len(places) <= FEW:
        _mark_each(ax, places, log)
    elif all(float(place).is_integer() for place in places):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _mark_each(ax: Axes, places: Sequence[float], log: bool) -> None:
    """Put a tick at each value on the x axis; labels that would overlap are rotated."""
    names, at = [f"{place:g}" for place in places], np.log(places) if log else places
    apart = np.diff(at) / (np.ptp(at) or 1)
    crowded = apart.min(initial=1) < LETTER * max(map(len, names))
    ax.set_xticks(places, names, rotation=90 if crowded else 0)
    ax.minorticks_off()


def cumulative(panels: Mapping[str, pd.DataFrame], **labels: Any) -> Drawn:
    """Draw the share of the clients that have at most a value, by method: further right is better.

    Args:
        panels: by title, a frame with columns method and value, a row per client and seed. With a
            column seed, titles have the number of seeds.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; by panel and method, every value and the share of the values up to it.
    """

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        drawn = []
        for method, rows in style.ordered(numbers).groupby("method", sort=False):
            values = rows["value"].dropna().sort_values().reset_index(drop=True)
            share = (values.index + 1) / len(values)
            look: Style = {**style.look_of(str(method)), "label": method}
            ax.step(values, share, where="post", **style.FLOOR if method == theme().floor else look)
            parts = {"panel": name, "method": method, "value": values, "share": share}
            drawn.append(pd.DataFrame(parts))
        if "seed" in numbers:
            runs = numbers.groupby("method")["seed"].nunique().to_frame("seeds")
            ax.set_title(f"{name}, {style.seeds_of(runs)}")
        return pd.concat(drawn)

    axes: Style = {"sharey": True, "ylabel": "share of the clients", **labels}
    return draw_panels(panels, draw, (3.0, 2.9), **axes)


def hollow(ax: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    """Draw a paper's points as hollow circles, if there are any."""
    if len(rows):
        colours = [style.look_of(method)["color"] for method in rows["method"]]
        how: Style = {"facecolors": "none", "linewidths": 0.9}
        ax.scatter(rows[x], rows[y], s=26, edgecolors=colours, **how)
        ax.plot([], [], "o", color="black", fillstyle="none", markersize=5, label="published")


def slopes(panels: Mapping[str, pd.DataFrame], places: Sequence[str], **labels: Any) -> Drawn:
    """Draw an accuracy at several places as a line per method: a slope chart.

    The mean over seeds is a line, every seed a thin line. Panels share their y axis, on which
    errors of 40%, 4% and 0.4% are equally far apart (logit).

    Args:
        panels: by title, a frame with columns method, way, seed and value.
        places: values of the column way, from left to right.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean, interval and number of seeds by method and way.
    """
    values = pd.concat([*panels.values()])["value"] if panels else pd.Series([0.5])
    ticks = [t for t in ACCURACIES if values.min() <= t <= min(values.max(), ACCURACIES[-1])]

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        at = {way: i for i, way in enumerate(places)}
        runs = style.ordered(numbers[numbers["way"].isin(places)])
        drawn = bands(runs, by=("method", "way"))
        placed, each = (rows.assign(place=rows["way"].map(at)) for rows in (drawn, runs))
        each["value"] = each["value"].clip(upper=ACCURACIES[-1])  # 1 is infinitely far away
        ax.set_yscale("logit")
        _lines(ax, placed, "place", each.sort_values("place", kind="stable"), forms=True)
        ax.set_xticks(range(len(places)), [fill(way, LETTERS) for way in places])
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set(title=f"{name}, {style.seeds_of(drawn)}", xlim=(-0.4, len(places) - 0.6))
        return drawn

    size, how = (max(1.0 * len(places), 2.5), 3.0), {"ylabel": "accuracy (logit scale)"} | labels
    return draw_panels(panels, draw, size, room=0.3, sharey=True, **how)


def _lines(
    ax: Axes, drawn: pd.DataFrame, x: str, runs: pd.DataFrame, *, forms: bool = False
) -> None:
    """Draw the mean of each method over x, and each of the ``runs`` as a thin line."""
    for method, rows in drawn.groupby("method", sort=False):
        rows = rows.sort_values("round" if "round" in rows else x)
        look = style.look_of(str(method))
        marker: Style = {"marker": style.form_of(str(method)), "markersize": 4} if forms else {}
        ax.plot(rows[x], rows["mean"], label=method, linewidth=1.6, **look, **marker)
        for _, run in runs[runs["method"] == method].groupby("seed"):
            ax.plot(run[x], run["value"], linewidth=0.6, alpha=0.3, color=look["color"], zorder=1.8)
