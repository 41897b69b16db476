"""Two numbers against each other, by method, client or setting."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from companion.frames import bands
from companion.plotting import style
from companion.plotting.style import Drawn, Style, draw_panels

Box = tuple[np.ndarray, np.ndarray]  # the centre, and half of the width and height
LETTERS, LETTER, ROOM = 7, 4.2, 4  # points: height of names, width of a letter, distance to dots
ENDS = ("mean", "low", "high")
WIDTH = (2, 0)  # half the width of an interval as an obstacle, in points


def versus(panels: Mapping[str, pd.DataFrame], **labels: Any) -> Drawn:
    """Draw one accuracy against another by method: the mean as a marker, and every run as a dot.

    A dotted line is where both accuracies are the same.

    Args:
        panels: by title, a frame with columns method, seed, x and y.
        labels: as of `style.draw_panels`.

    Returns:
        The figure; by method, the number of seeds and the mean and interval of x and y.
    """

    def draw(ax: Axes, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        sides = {c: bands(frame.assign(value=frame[c]), by=("method",)) for c in "xy"}
        ends = {f"{c}_{k}": sides[c][k] for c in "xy" for k in ENDS}
        drawn = sides["x"][["method", "seeds"]].assign(**ends)
        for method, rows in drawn.groupby("method", sort=False):
            runs = frame[frame["method"] == method]
            colour = style.look_of(str(method))["color"]
            ax.plot(runs["x"], runs["y"], ".", color=colour, alpha=0.4, markersize=4)
            form = style.form_of(str(method))
            ax.plot(rows["x_mean"], rows["y_mean"], form, color=colour, label=method, ms=6)
        seeds = frame.groupby("method")["seed"].nunique().to_frame("seeds")
        ax.set_title(f"{name}, {style.seeds_of(seeds)}")
        same = frame[["x", "y"]].min().min(), frame[["x", "y"]].max().max()
        ax.plot(same, same, zorder=0, **style.MARK)
        return drawn

    return draw_panels(panels, draw, (style.COLUMN, 2.9), room=0.5, **labels)


def scattered(panels: Mapping[str, pd.DataFrame], names: Sequence[str], **labels: Any) -> Drawn:
    """Draw examples as dots in a plane without units, such as that of a t-SNE, by label.

    Args:
        panels: by title, a frame with columns x, y and label.
        names: the names of the labels.
        labels: as of `style.draw_panels`.
    """
    held = sorted({label for frame in panels.values() for label in frame["label"]})
    many = len(style.FORMS)

    def draw(ax: Axes, name: str, frame: pd.DataFrame) -> pd.DataFrame:
        for i, label in enumerate(held):
            rows, look = frame[frame["label"] == label], {"color": style.BLIND[i % many], "ms": 3.5}
            ax.plot(rows["x"], rows["y"], style.FORMS[i % many], label=names[label], **look)
        ax.set(xticks=[], yticks=[])
        return frame

    return draw_panels(panels, draw, (2.4, 2.4), room=0.5, **labels)


def tradeoff(panels: Mapping[str, pd.DataFrame], *, x: str, **labels: Any) -> Drawn:
    """Draw what each setting of a method gains, in points, against its cost on a logarithmic axis.

    A method is a line through the means of its settings, with their 95% intervals, their names, and
    every seed as a dot. Names of the first method stand above its intervals, and its costs are the
    ticks of the axis; names of the other methods stand below. No name covers an interval. A line at
    0 is no difference.

    Args:
        panels: by title, a frame with columns method, at (the name of the setting), seed, ``x`` and
            value.
        x: the column of the cost.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the mean, interval and cost by method and setting.
    """

    def draw(ax: Axes, name: str, numbers: pd.DataFrame) -> pd.DataFrame:
        ax.axhline(0, color="black", linewidth=0.8)
        costs = numbers.groupby(["method", "at"], as_index=False)[x].mean()
        drawn = bands(style.ordered(numbers), by=("method", "at")).merge(costs, on=["method", "at"])
        ax.set_xscale("log")
        ax.margins(0.16, 0.14)
        for k, (method, rows) in enumerate(drawn.groupby("method", sort=False)):
            rows, runs = rows.sort_values(x), numbers[numbers["method"] == method]
            colour, form = style.look_of(str(method))["color"], style.form_of(str(method))
            ends = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
            how: Style = {"color": colour, "fmt": f"{form}-", "ms": 5, "capsize": 2, "lw": 1.2}
            ax.errorbar(rows[x], rows["mean"], ends, label=method, **how)
            ax.plot(runs[x], runs["value"], ".", color=colour, alpha=0.4, ms=5, zorder=1.8)
            if not k:
                ax.set_xticks(rows[x], [f"{cost:.2g}" for cost in rows[x]])
        ax.minorticks_off()
        ax.set_title(f"{name}, {style.seeds_of(drawn)}")
        return drawn

    figure, drawn = draw_panels(panels, draw, (style.COLUMN, 3.0), room=0.3, **labels)
    figure.draw_without_rendering()  # only then are the positions of intervals known
    for ax, (_, rows) in zip(figure.axes, drawn.groupby("panel", sort=False), strict=False):
        _name_intervals(ax, rows[rows["at"] != ""], x)
    return figure, drawn


def _name_intervals(ax: Axes, drawn: pd.DataFrame, x: str) -> None:
    """Write the name of each setting above its interval, or below it for all but the first method.

    A name is centred if possible. Otherwise it is moved sideways or away from the interval, until
    it covers no interval, no other name, and not the line at 0.
    """
    figure: Any = ax.figure
    top, drawn = drawn["method"].iloc[0], drawn.sort_values(x)
    places = [drawn[[x, end]].assign(**{end: drawn[end].fillna(drawn["mean"])}) for end in ENDS]
    means, lows, highs = (ax.transData.transform(at) * 72 / figure.dpi for at in places)
    taken = [(*low, *high) for low, high in zip(lows - WIDTH, highs + WIDTH, strict=True)]
    zero = ax.transData.transform((drawn[x].iloc[0], 0))[1] * 72 / figure.dpi
    taken.append((-np.inf, zero, np.inf, zero))
    names = drawn["at"], drawn["method"], drawn[x], drawn["mean"], drawn["method"].eq(top)
    for k, (name, method, cost, value, upward) in enumerate(zip(*names, strict=True)):
        long = len(name) * LETTER
        end = max(highs[k, 1], means[k, 1] + 3) + 3 if upward else 0.0
        end = end or min(lows[k, 1], means[k, 1] - 3) - 3 - LETTERS
        tries = (
            (means[k, 0] - side * long, end + (away if upward else -away))
            for away in range(0, 90, 3)
            for side in (0.5, 0, 1)
        )
        left, bottom = next(p for p in tries if not any(_behind(p, long, box) for box in taken))
        taken.append((left, bottom, left + long, bottom + LETTERS))
        how: Style = {"textcoords": "offset points", "fontsize": LETTERS, "va": "bottom"}
        how |= {"color": style.legible(style.look_of(method)["color"])}
        ax.annotate(name, (cost, value), xytext=(left - means[k, 0], bottom - means[k, 1]), **how)


def _behind(corner: tuple[float, float], long: float, box: tuple[float, ...]) -> bool:
    """Return whether a name of some length, given its lower left ``corner``, overlaps a box."""
    left, bottom, right, top = box
    across = left < corner[0] + long and corner[0] < right
    return across and bottom < corner[1] + LETTERS and corner[1] < top


def frontier(
    panels: Mapping[str, pd.DataFrame], *, log: bool = False, unit: str = "", **labels: Any
) -> Drawn:
    """Draw every method as a marker, with a line through those that no other method beats in both.

    The marker depends on the group of a method; methods without a group are grey. The baseline is a
    thin line at its y, and so, on a logarithmic axis, is a method that costs nothing.

    Args:
        panels: by title, a frame with columns method, group, x, y, best (whether the line passes
            through it) and named (whether its name is written).
        log: whether the x axis is logarithmic.
        unit: the unit of x.
        labels: as of `style.draw_panels`.

    Returns:
        The figure, and the rows of all panels, those of the baseline at the end.
    """
    split = {name: style.parted(frame) for name, frame in panels.items() if len(frame)}
    if not split:
        return style.blank()
    every = pd.concat([frame for frame, _ in split.values()])["group"]
    groups = [*dict.fromkeys(filter(None, every))]

    def draw(ax: Axes, name: str, parts: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
        points, floor = parts
        free = points["x"].eq(0) & log
        for method, y in zip(points["method"][free], points["y"][free], strict=True):
            label = f"{method}, 0 {unit}".strip()
            ax.axhline(y, **style.look_of(method), label=label, linewidth=1, zorder=0)
        points = points[~free]
        others = points[points["group"].eq("")]
        ax.plot(others["x"], others["y"], "o", color="0.6", markersize=3.5, label="other methods")
        for k, group in enumerate(groups):
            dots = points[points["group"].eq(group)]
            look: Style = {"color": style.BLIND[k], "label": group, "alpha": 0.8}
            ax.plot(dots["x"], dots["y"], style.FORMS[k % len(style.FORMS)], markersize=6, **look)
        style.draw_floor(ax, floor["y"])
        ax.set_xscale("log" if log else "linear")
        ax.margins(0.1, 0.1)
        low, high = ax.get_ylim()
        ticks = [tick for tick in ax.get_yticks() if low <= tick <= min(high, 1)]
        ax.set_ylim(top=max(min(high + 0.4 * (high - low), 1), high if high > 1.1 else 0))
        ax.set_yticks(ticks)
        best = points[points["best"]].sort_values("x")
        ax.plot(best["x"], best["y"], ":", color="grey", linewidth=0.9, zorder=0)
        shown.append((ax, points.sort_values("y", ascending=False)))
        return parts[0]

    shown: list[tuple[Axes, pd.DataFrame]] = []
    figure, drawn = draw_panels(split, draw, (style.PAGE, 3.6), columns=1, room=0.6, **labels)
    for ax, points in shown:  # the legend, added last, moves the dots
        _name(ax, points)
    floors = [floor.assign(panel=name) for name, (_, floor) in split.items() if len(floor)]
    return figure, pd.concat([drawn, *floors], ignore_index=True)


def _name(ax: Axes, points: pd.DataFrame) -> None:
    """Write the names of methods, each at the nearest position free of dots and other names."""
    ax.autoscale_view(scaley=False)  # fixes the limits of x before anything is rendered
    figure: Any = ax.figure
    figure.draw_without_rendering()  # only then are the positions of dots known
    to_points = 72 / figure.dpi
    dots = ax.transData.transform(points[["x", "y"]].to_numpy(float)) * to_points
    field = ax.transAxes.transform([(0, 0), (1, 1)]) * to_points
    line: Style = {"arrowstyle": "-", "color": "0.4", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    how: Style = {"textcoords": "offset points", "fontsize": LETTERS, "ha": "center"}
    how |= {"va": "center", "path_effects": [withStroke(linewidth=2, foreground="white")]}
    written: list[Box] = []
    named = points["named"].to_numpy(bool)
    for of, dot in zip(points[named].to_dict("records"), dots[named], strict=True):
        name = style.title(of["method"])
        half = np.array([len(name) * LETTER, LETTERS + 2]) / 2
        way = _free_way(dot, half, dots, written, field)
        written.append((dot + way, half))
        written += [(at, np.ones(2)) for at in _line(dot, way)]
        ax.annotate(name, (of["x"], of["y"]), xytext=tuple(way), arrowprops=line, **how)


def _free_way(
    dot: np.ndarray, half: np.ndarray, dots: np.ndarray, written: Sequence[Box], field: np.ndarray
) -> np.ndarray:
    """Return the shortest offset from a dot to the centre of its name without an overlap.

    Args:
        dot: the position of the dot, in points.
        half: half of the width and height of the name.
        dots: the positions of all dots, which the line from dot to name may cross.
        written: the boxes of names and lines, which it may not cross.
        field: the lower left and the upper right corner of the panel.
    """
    obstacles = [(at, np.full(2, ROOM)) for at in dots] + [*written]
    for far, turn in product(range(3, 150, 3), np.radians(np.arange(90, 450, 15))):
        way = np.array([np.cos(turn), np.sin(turn)]) * (far + half)
        inside = (field[0] < dot + way - half).all() and (dot + way + half < field[1]).all()
        clear = inside and _apart((dot + way, half), obstacles)
        if clear and all(_apart((at, np.ones(2)), written) for at in _line(dot, way)):
            return way
    return np.array([0.0, ROOM + half[1]])


def _line(dot: np.ndarray, way: np.ndarray) -> np.ndarray:
    """Return points on the line from a dot to its name."""
    return dot + np.linspace(0.15, 0.9, 16)[:, None] * way


def _apart(one: Box, others: Sequence[Box]) -> bool:
    """Return whether a box overlaps none of the others."""
    return all((np.abs(one[0] - at) >= one[1] + half).any() for at, half in others)
