"""Learning curves, and numbers by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.claims.rule import LEAST_SEEDS
from fedlib.frames import bands
from fedlib.plotting.style import COLUMN, PAGE, legend, look_of


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
        ax.set(xlabel=xlabel, title=f"{panel}, {_seeds(drawn)}")
        frames.append(drawn.assign(panel=panel))
    for ax, mark in zip(axes[0], at, strict=False):
        ax.axvline(mark, color="black", linestyle=":", linewidth=0.8)
    axes[0][0].set_ylabel(ylabel)
    legend(figure, axes[0], heading)
    return figure, pd.concat(frames, ignore_index=True)


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


def _seeds(drawn: pd.DataFrame) -> str:
    least, most = int(drawn["seeds"].min()), int(drawn["seeds"].max())
    return f"{most} seed{'s' * (most > 1)}" if least == most else f"{least} to {most} seeds"


def _curve(ax: Axes, method: str, rows: pd.DataFrame, band: bool) -> None:
    colour, dash = look_of(method)
    ax.plot(rows["round"], rows["mean"], color=colour, linestyle=dash, label=method, linewidth=1.6)
    if band and rows["seeds"].max() >= LEAST_SEEDS:
        ax.fill_between(
            rows["round"], rows["low"], rows["high"], color=colour, alpha=0.18, linewidth=0
        )


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
