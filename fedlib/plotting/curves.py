"""Learning curves, and numbers by method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.claims.rule import LEAST_SEEDS
from fedlib.frames import bands
from fedlib.plotting.style import COLUMN, METHODS, PAGE, legend, look_of


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
    figure, axes = plt.subplots(
        1, len(panels), figsize=(max(COLUMN * len(panels), 4.6), 2.7), squeeze=False, sharey=share_y
    )
    frames = []
    for ax, (panel, curve) in zip(axes[0], panels.items(), strict=True):
        drawn = bands(curve)
        for method, rows in drawn.groupby("method", sort=False):
            _curve(ax, str(method), rows.sort_values("round"), band)
        ax.set(xlabel=xlabel, title=f"{panel}, {seeds_of(drawn)}")
        frames.append(drawn.assign(panel=panel))
    for ax, mark in zip(axes[0], at, strict=False):
        ax.axvline(mark, color="black", linestyle=":", linewidth=0.8)
    axes[0][0].set_ylabel(ylabel)
    legend(figure, axes[0], heading)
    return figure, pd.concat(frames, ignore_index=True)


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
    wide, high = max(len(row) for row in rows), len(rows)
    size = (max(2.75 * wide + 0.4, 5.2), 2.2 * high + 0.8)
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False)
    drawn = []
    for row, line in zip(rows, axes, strict=True):
        for cell, ax in zip(row, line, strict=False):
            drawn.append(_cell(ax, cell).assign(panel=cell.title, x=cell.x))
        for ax in line[len(row) :]:
            ax.set_visible(False)
    _legend_of_all(figure, axes.flat, heading)
    return figure, pd.concat(drawn, ignore_index=True)


def standings(
    panels: Mapping[str, pd.DataFrame], *, xlabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw one number per run by method, best at the top: runs, mean and 95% interval.

    ``panels`` maps a panel's title to a frame with columns method, seed and value.
    """
    most = max(frame["method"].nunique() for frame in panels.values())
    size = (max(3.6 * len(panels), 4.6), 0.24 * most + 0.9)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    drawn = []
    for ax, (panel, numbers) in zip(axes[0], panels.items(), strict=True):
        drawn.append(_standing(ax, numbers).assign(panel=panel))
        ax.set_title(f"{panel}, {seeds_of(drawn[-1])}", fontsize="small")
        ax.set_xlabel(xlabel)
    if heading:
        figure.suptitle(heading, fontsize="medium")
    return figure, pd.concat(drawn, ignore_index=True)


def ranked(curve: Cell, numbers: pd.DataFrame, *, xlabel: str) -> tuple[Figure, pd.DataFrame]:
    """Draw curves, and beside them one number per run by method as in ``standings``.

    ``numbers`` has columns method, seed and value. The methods' names at their numbers are the
    legend of the curves.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(PAGE + 1.2, 3.3), width_ratios=[1.2, 1])
    _cell(left, curve)
    drawn = _standing(right, numbers)
    right.set_xlabel(xlabel)
    right.yaxis.tick_right()
    return figure, drawn


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame's rows with its methods in the order of ``METHODS``, others at the end."""
    place = {method: i for i, method in enumerate(METHODS)}
    return frame.sort_values(
        "method", key=lambda names: names.map(lambda n: place.get(n, len(place))), kind="stable"
    )


def points(
    frame: pd.DataFrame, x: str, *, ylabel: str, heading: str = "", log: bool = False
) -> tuple[Figure, pd.DataFrame]:
    """Draw every run and the mean with its 95% interval, by method and ``x``.

    ``frame`` has columns method, seed, value and the one that ``x`` names.
    """
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
    crowded = len(places) > 6
    ax.set_xticks(range(len(places)), places, rotation=30 if crowded else 0)
    ax.set_xlim(-0.6, len(places) - 0.4)
    ax.set(ylabel=ylabel, yscale="log" if log else "linear")
    ax.grid(axis="y", alpha=0.3)
    legend(figure, [ax], heading)
    return figure, drawn


def _cell(ax: Axes, cell: Cell) -> pd.DataFrame:
    drawn = bands(ordered(cell.curve))
    shown, label = drawn, "communication round"
    if cell.x != "round":
        at = cell.curve.groupby(["method", "round"], as_index=False)[cell.x].mean()
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
    ax.set(xlabel=label, ylabel=cell.ylabel, xlim=(0, None), ylim=_limits(drawn, cell.zero))
    ax.set_title(f"{cell.title}, {seeds_of(drawn)}", fontsize="small")
    ax.grid(alpha=0.25)
    return drawn


def _limits(drawn: pd.DataFrame, zero: bool) -> tuple[float, float]:
    """Return limits of y for the means after the first rounds, and for 0 if asked."""
    means = drawn.loc[drawn["round"] > BEGINNING * drawn["round"].max(), "mean"]
    ends = [*means, 0.0] if zero else [*means]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.05
    return low - room, high + room


def _standing(ax: Axes, numbers: pd.DataFrame) -> pd.DataFrame:
    drawn = bands(numbers, by=("method",)).sort_values("mean").reset_index(drop=True)
    for place, row in enumerate(drawn.to_dict("records")):
        colour, dash = look_of(row["method"])
        runs = numbers.loc[numbers["method"] == row["method"], "value"]
        ax.plot(runs, [place] * len(runs), "|", color=colour, alpha=0.6, markersize=9)
        if row["seeds"] >= LEAST_SEEDS:
            ends = [row["low"], row["high"]]
            ax.plot(ends, [place, place], color=colour, linestyle=dash, linewidth=1.6)
        ax.plot([row["mean"]], [place], "o", color=colour, markersize=5)
    ax.set_yticks(range(len(drawn)), drawn["method"].tolist())
    ax.set_ylim(-0.6, len(drawn) - 0.4)
    ax.grid(axis="x", alpha=0.3)
    return drawn


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
    if heading:
        figure.suptitle(heading, fontsize="medium")


def seeds_of(drawn: pd.DataFrame) -> str:
    """Return how many seeds a drawing has, in words."""
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"


def _curve(
    ax: Axes, method: str, rows: pd.DataFrame, band: bool, x: str = "round", alpha: float = 0.18
) -> None:
    colour, dash = look_of(method)
    ax.plot(rows[x], rows["mean"], color=colour, linestyle=dash, label=method, linewidth=1.6)
    if band and rows["seeds"].max() >= LEAST_SEEDS:
        ax.fill_between(rows[x], rows["low"], rows["high"], color=colour, alpha=alpha, linewidth=0)


def _points(
    ax: Axes, method: str, at: dict[str, float], x: str, runs: pd.DataFrame, drawn: pd.DataFrame
) -> None:
    colour, _ = look_of(method)
    centre = drawn[x].map(at).to_numpy(dtype=float)
    half = ((drawn["high"] - drawn["low"]) / 2).where(drawn["seeds"] >= LEAST_SEEDS).to_numpy()
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
