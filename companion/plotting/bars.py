"""Shares of classes side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.plotting.layout import legend
from companion.plotting.style import PAGE, SHADES

TRUTH, GUESS = "#c0392b", "#2a6fbb"  # red and blue, as in Fig. 9 and 10 of 000


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


def grouped(
    groups: Mapping[str, np.ndarray], names: Sequence[str], *, ylabel: str, heading: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draw several numbers of each class side by side, ``[classes]`` by group, the first in red."""
    figure, ax = plt.subplots(figsize=(PAGE, 2.6))
    thick = 0.8 / len(groups)
    colours = (TRUTH, GUESS, *SHADES[:1], SHADES[4], SHADES[3], "black")
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
