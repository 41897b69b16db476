"""Learning curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.frames import bands
from companion.plotting.floor import draw_floor, parted
from companion.plotting.layout import finished, head, side_by_side
from companion.plotting.style import COLUMN, look_of, ordered, seeds_of


def curves(
    panels: Mapping[str, pd.DataFrame],
    *,
    ylabel: str,
    xlabel: str = "communication round",
    band: bool = True,
    heading: str = "",
    share_y: bool = False,
    at: Sequence[float] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draw curves by method, one panel each: the mean over seeds and its 95% interval.

    With fewer than three seeds no interval is drawn: it would be wider than the figure. ``at`` are
    rounds to mark with a dotted line, one per panel.

    ``panels`` maps a panel's title to a frame with columns method, seed, round and value.
    """
    figure, axes = side_by_side(panels, COLUMN, 2.7, 4.6, sharey=share_y)
    frames = []
    for ax, (panel, curve) in zip(axes, panels.items(), strict=True):
        curve, floor = parted(curve)
        drawn = bands(curve)
        for method, rows in drawn.groupby("method", sort=False):
            _curve(ax, str(method), rows.sort_values("round"), band)
        draw_floor(ax, floor["value"])
        ax.set(xlabel=xlabel, title=f"{panel}, {seeds_of(drawn)}")
        frames.append(drawn.assign(panel=panel))
    for ax, mark in zip(axes, at, strict=False):
        ax.axvline(mark, color="black", linestyle=":", linewidth=0.8)
    return finished(figure, axes, frames, ylabel, heading)


class Cell(NamedTuple):
    """One field of a ``grid``: its title, a curve, which of its columns is x, and y's label.

    ``curve`` has columns method, seed, round and value, and also ``x`` if that is "gigabytes".
    ``zero`` draws a line at y = 0, and ``mark`` a dotted one at some x.
    """

    title: str
    curve: pd.DataFrame
    x: str = "round"
    ylabel: str = ""
    zero: bool = False
    mark: float | None = None


CROWDED = 5  # with more curves than this, bands are paler
BEGINNING = 0.15  # of the rounds: the steep rise, which would squeeze what follows


def grid(rows: Sequence[Sequence[Cell]], *, heading: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draw fields of curves by method in rows and columns, with one legend for all.

    Each curve is the mean over seeds at every evaluated round with its 95% interval (from three
    seeds on), at the mean of x. The axis of y fits the means after the beginning: what comes
    before, and intervals, may lie outside.
    """
    wide, high = max(map(len, rows)), len(rows)
    size = (max(2.75 * wide + 0.4, 5.2), 2.2 * high + 0.8)
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False)
    drawn = []
    for cells, line in zip(rows, axes, strict=True):
        for cell, ax in zip(cells, line, strict=False):
            drawn.append(draw_cell(ax, cell).assign(panel=cell.title, x=cell.x))
        for ax in line[len(cells) :]:
            ax.set_visible(False)
    _legend_of_all(figure, axes.flat, heading)
    return figure, pd.concat(drawn, ignore_index=True)


def draw_cell(ax: Axes, cell: Cell) -> pd.DataFrame:
    """Draw one field; return what is drawn: mean and interval by method and round."""
    curve, floor = parted(cell.curve)
    drawn = bands(ordered(curve))
    shown, label = drawn, "communication round"
    if cell.x != "round":
        at = curve.groupby(["method", "round"], as_index=False)[cell.x].mean()
        drawn = drawn.merge(at, on=["method", "round"])
        small = drawn[cell.x].max() < 0.1
        label = f"{'megabytes' if small else 'gigabytes'} sent, down and up"
        shown = drawn.assign(**{cell.x: drawn[cell.x] * (1e3 if small else 1)})
    pale = 0.08 if drawn["method"].nunique() > CROWDED else 0.18
    for method, rows in shown.groupby("method", sort=False):
        _curve(ax, str(method), rows.sort_values("round"), True, cell.x, pale)
    if cell.zero:
        ax.axhline(0, color="black", linewidth=0.8)
    if cell.mark is not None:
        scale = shown[cell.x].max() / drawn[cell.x].max()
        ax.axvline(cell.mark * scale, color="black", linestyle=":", linewidth=0.8)
    draw_floor(ax, floor["value"])
    limits = _limits(drawn, cell.zero, floor["value"])
    ax.set(xlabel=label, ylabel=cell.ylabel, xlim=(0, None), ylim=limits)
    ax.set_title(f"{cell.title}, {seeds_of(drawn)}", fontsize="small")
    ax.grid(alpha=0.25)
    return drawn


def _limits(drawn: pd.DataFrame, zero: bool, floor: pd.Series) -> tuple[float, float]:
    """Return limits of y for the means after the first rounds, the floor, and 0 if asked."""
    means = drawn.loc[drawn["round"] > BEGINNING * drawn["round"].max(), "mean"]
    ends = [*means, *floor, *([0.0] if zero else [])]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _legend_of_all(figure: Figure, axes: Iterable[Axes], heading: str) -> None:
    known: dict[str, Artist] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    names = ordered(pd.DataFrame({"method": list(known)}))["method"].tolist()
    figure.legend(
        [known[name] for name in names],
        names,
        loc="outside lower center",
        ncols=max(2, int(figure.get_figwidth() / 1.9)),
        handlelength=2.8,
    )
    head(figure, heading)


def _curve(
    ax: Axes, method: str, rows: pd.DataFrame, band: bool, x: str = "round", alpha: float = 0.18
) -> None:
    colour, dash = look_of(method)
    ax.plot(rows[x], rows["mean"], color=colour, linestyle=dash, label=method, linewidth=1.6)
    if band:
        ax.fill_between(rows[x], rows["low"], rows["high"], color=colour, alpha=alpha, linewidth=0)
