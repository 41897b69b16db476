"""Label shares beside their reconstructions, numbers with their range, and two accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.claims.rule import LEAST_SEEDS
from fedlib.frames import bands
from fedlib.plotting.style import COLUMN, PAGE, legend, look_of

TRUTH, GUESS = "#c0392b", "#2a6fbb"  # red and blue, as in Fig. 9 and 10 of 000
SHADES = ("#9ecae1", "#3182bd", "#08306b", "#e6550d", "#636363")  # light to dark, then others
FORMS = "osD^v"


def label_bars(
    truth: np.ndarray,
    guess: np.ndarray,
    *,
    clients: Sequence[int] = (),
    heading: str = "",
    columns: int = 0,
) -> tuple[Figure, pd.DataFrame]:
    """Draw two distributions of every client, ``[clients, classes]``, as small pairs of bars.

    Every client has a field of its own with the classes from left to right, the true share on the
    left of each pair and the reconstructed one on its right. All fields have the same height, the
    largest share, which the first one's axis tells.
    """
    count, classes = truth.shape
    wide = columns or (10 if count > 20 else 5)
    high = -(-count // wide)
    top = max(float(truth.max()), float(guess.max()))
    size = (PAGE, min(1.0, 6.2 / wide) * high + 0.9)
    figure, ax = plt.subplots(figsize=size)
    for i in range(count):
        _field(ax, truth[i], guess[i], i % wide, i // wide, top)
    for i, name in enumerate(clients or range(count)):
        at = (i % wide + 0.02, -(i // wide) * STEP + 0.99)
        ax.text(*at, str(name), fontsize=6.5, color="grey", va="top")
    ax.set(xlim=(-0.02, wide), ylim=(-(high - 1) * STEP - 0.15, 1.1), yticks=[0, 1])
    ax.set_yticklabels(["0", f"{top:.2f}"])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set_xticks([])
    ax.set_xlabel(f"one field per client (its number in grey), the {classes} classes in order")
    ax.set_ylabel("share", y=1 - 0.5 / (STEP * high), fontsize="small")
    ax.bar([0], [0], color=TRUTH, label="true label shares p(y|s)")
    ax.bar([0], [0], color=GUESS, label="reconstructed by the server")
    legend(figure, [ax], heading)
    return figure, _pairs(truth, guess, clients or range(count))


STEP = 1.28  # from one row of fields to the next, in heights of a field


def dots(
    panels: Mapping[str, pd.DataFrame],
    *,
    xlabel: str,
    marks: Mapping[str, float] | None = None,
    mark: str = "",
    heading: str = "",
    empty: str = "",
    black: str = "",
    most: float = np.inf,
) -> tuple[Figure, pd.DataFrame]:
    """Draw means with their ranges in rows, one panel each.

    A panel's frame has columns row, group, mean, low, high: rows from top to bottom, groups by
    colour and form. ``marks`` are places of dotted lines, one per panel, called ``mark``; ``empty``
    is written where a panel has nothing of a row; the group ``black`` is drawn so. No range is
    drawn beyond ``most``, where an accuracy ends.
    """
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
        _rows(ax, frame.assign(high=frame["high"].clip(upper=most)), rows, looks)
        for row in set(rows) - set(frame["row"]):
            middle = {"ha": "center", "va": "center", "transform": ax.get_yaxis_transform()}
            ax.text(0.5, rows.index(row), empty, color="grey", fontsize="small", **middle)
        if marks and name in marks:
            ax.axvline(marks[name], color="black", linestyle=":", linewidth=0.9, label=mark)
        ax.set(title=fill(name, 28), xlabel=xlabel)
        ax.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(rows)), rows)
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    legend(figure, axes[0], heading)
    return figure, every


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
    high = -(-len(panels) // wide)
    size = (max(COLUMN * wide, 4.6), 2.9 * high + 0.5)
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False)
    frames = []
    for ax, (name, frame) in zip(axes.flat, panels.items(), strict=False):
        for method, runs in frame.groupby("method", sort=False):
            frames.append(_cross(ax, str(method), runs, most).assign(panel=name))
        ends = [frame[["x", "y"]].to_numpy().min(), frame[["x", "y"]].to_numpy().max()]
        ax.plot(ends, ends, ":", color="grey", linewidth=0.9, zorder=0)
        ax.set(title=name, xlabel=xlabel)
        ax.grid(alpha=0.3)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    _complete(list(axes.flat))
    legend(figure, list(axes.flat), heading)
    return figure, pd.concat(frames, ignore_index=True)


def grouped(
    groups: Mapping[str, np.ndarray], names: Sequence[str], *, ylabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw several numbers of each class side by side, ``[classes]`` by group, the first in red."""
    figure, ax = plt.subplots(figsize=(PAGE, 2.6))
    thick = 0.8 / len(groups)
    colours = (TRUTH, GUESS, *SHADES[:1], SHADES[4])
    for j, (group, values) in enumerate(groups.items()):
        left = np.arange(len(names)) - 0.4 + j * thick
        colour = colours[j % len(colours)]
        ax.bar(left, values, thick, align="edge", color=colour, linewidth=0, label=group)
    ax.axhline(0, color="black", linewidth=0.6)
    crowded = max(map(len, names)) > 5
    ax.set_xticks(range(len(names)), names, rotation=30 if crowded else 0)
    ax.set_ylabel(ylabel)
    legend(figure, [ax], heading)
    rows = [(g, n, v) for g, values in groups.items() for n, v in zip(names, values, strict=True)]
    return figure, pd.DataFrame(rows, columns=["group", "name", "value"])


def _field(
    ax: Axes, truth: np.ndarray, guess: np.ndarray, column: int, row: int, top: float
) -> None:
    classes = len(truth)
    pair = 0.9 / classes
    left, floor = column + 0.02 + pair * np.arange(classes), -row * STEP
    for k, (shares, colour) in enumerate(((truth, TRUTH), (guess, GUESS))):
        at = left + (0.1 + 0.4 * k) * pair
        ax.bar(at, shares / top, 0.4 * pair, bottom=floor, color=colour, align="edge", linewidth=0)
    ax.plot([column + 0.02, column + 0.92], [floor, floor], color="0.5", linewidth=0.5)


def _pairs(truth: np.ndarray, guess: np.ndarray, clients: Sequence[int]) -> pd.DataFrame:
    who, label = np.indices(truth.shape)
    cells = {"client": np.asarray(clients)[who.ravel()], "label": label.ravel()}
    return pd.DataFrame({**cells, "true": truth.ravel(), "reconstructed": guess.ravel()})


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


def _cross(ax: Axes, method: str, runs: pd.DataFrame, most: float) -> pd.DataFrame:
    ends = {c: bands(runs.rename(columns={c: "value"}), by=("method",)).iloc[0] for c in "xy"}
    colour, _ = look_of(method)
    enough = len(runs) >= LEAST_SEEDS
    reach = {
        c: [[e["mean"] - e["low"]], [min(e["high"], most) - e["mean"]]] if enough else None
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
