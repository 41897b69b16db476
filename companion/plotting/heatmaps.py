"""Matrices in shades of grey: probabilities, and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.plotting.bars import GUESS, TRUTH
from companion.plotting.layout import fields, head, legend
from companion.plotting.style import PAGE

NARROWEST = 3.6  # inches: beside labels and colour bar two matrices still have room for titles
LIGHTEST = 0.25  # the shade of a share near 0, beside 1 for the largest


def heatmaps(
    matrices: Mapping[str, np.ndarray],
    *,
    rows: Sequence[str] | int,
    ylabel: str = "label y",
    xlabel: str = "expert z",
    heading: str = "",
    columns: int = 8,
    first: int = 1,
    scale: str = "probability",
    inches: float = 0.0,
    black: float = 1.0,
) -> tuple[Figure, pd.DataFrame]:
    """Draw matrices of probabilities ``[items, experts]`` side by side, white 0 to black 1.

    ``rows`` are names, or if there are too many a number, of which every fifth is told.
    ``first`` is the number of the first column, ``scale`` names what the shades mean, ``inches`` is
    the width of a matrix if not the usual one, and ``black`` the value that is drawn black.
    """
    if isinstance(rows, int):
        rows = [str(i) if i % 5 == 0 else "" for i in range(rows)]
    wide = min(columns, len(matrices))
    inches = inches or (0.95 if max(m.shape[1] for m in matrices.values()) <= 8 else 2.2)
    width, tall = max(0.5 + inches * wide, NARROWEST), 0.5 + 0.17 * len(rows)
    figure, axes = fields(len(matrices), wide, width, tall, sharey=True)
    frames = []
    for ax, (name, m) in zip(axes.flat, matrices.items(), strict=False):
        image = ax.imshow(
            m, cmap="Greys", vmin=0, vmax=black, aspect="auto", interpolation="nearest"
        )
        ax.set_title(name, fontsize="small")
        step = 1 if m.shape[1] <= 8 else 5
        ax.set_xticks(
            range(0, m.shape[1], step), [str(k + first) for k in range(0, m.shape[1], step)]
        )
        ax.set_yticks(range(len(rows)), rows)
        item, expert = np.indices(m.shape)
        cells = {
            "panel": name,
            "item": item.ravel(),
            "expert": expert.ravel() + first,
            "value": m.ravel(),
        }
        frames.append(pd.DataFrame(cells))
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    for ax in axes[-1]:
        ax.set_xlabel(xlabel, fontsize="small")
    figure.colorbar(image, ax=axes, label=scale, shrink=0.8, pad=0.02)
    head(figure, heading)
    return figure, pd.concat(frames, ignore_index=True)


def label_sets(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray]],
    names: Sequence[str],
    *,
    heading: str = "",
) -> tuple[Figure, pd.DataFrame]:
    """Draw who holds which labels, and who is thought to, a panel above the other.

    A panel has true label shares ``[clients, classes]``, shaded from white, none, to the largest
    share, and what was read, bool of the same shape: a dot, which is red where it is wrong; a label
    that was overlooked has a red cross. ``names`` are those of the classes.
    """
    clients, classes = next(iter(panels.values()))[0].shape
    tall = 0.13 * classes + 0.35
    figure, axes = fields(len(panels), 1, PAGE, tall, 0.9, sharex=True)
    size, frames = 2.2 if clients > 40 else 4.0, []
    for ax, (name, (truth, read)) in zip(axes[:, 0], panels.items(), strict=True):
        held = truth > 0
        shade = np.where(held, LIGHTEST + truth / truth.max(), 0)  # a small share is not white
        ax.imshow(shade.T, cmap="Greys", vmin=0, vmax=1.8, aspect="auto")
        marks = (
            ("read off phi, and held", read & held, "o", GUESS),
            ("read off phi, but not held", read & ~held, "o", TRUTH),
            ("held, but not read", ~read & held, "x", TRUTH),
        )
        for label, where, mark, colour in marks:
            ax.plot(*np.nonzero(where), mark, color=colour, markersize=size, label=label)
        right = int((read == held).all(1).sum())
        ax.set_title(f"{name}: {right} of {clients} label sets are right", fontsize="small")
        ax.set_yticks(range(classes), names, fontsize=6)
        ax.set_ylabel("label", fontsize="small")
        frames.append(_sets(name, truth, read))
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1, 0].set_xlabel("client (grey: its share of each label; white: it has none)")
    legend(figure, [axes[0, 0]], heading)
    return figure, pd.concat(frames, ignore_index=True)


def _sets(panel: str, truth: np.ndarray, read: np.ndarray) -> pd.DataFrame:
    client, label = np.indices(truth.shape)
    cells = {"client": client.ravel(), "label": label.ravel(), "true": truth.ravel()}
    return pd.DataFrame({"panel": panel, **cells, "read": read.ravel()})


def images(
    pictures: Mapping[str, Sequence[np.ndarray]],
    captions: Mapping[str, Sequence[str]],
    *,
    heading: str = "",
) -> tuple[Figure, pd.DataFrame]:
    """Draw grey images ``[height, width]``, a row per name, each below its caption.

    Black is an image's smallest value, white its largest. The frame holds the captions.
    """
    high, wide = len(pictures), max(len(row) for row in pictures.values())
    figure, axes = plt.subplots(
        high, wide, figsize=(0.9 + 0.68 * wide, 0.86 * high + 0.4), squeeze=False
    )
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    cells = []
    for line, (name, row) in zip(axes, pictures.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for i, (ax, image) in enumerate(zip(line, row, strict=False)):
            ax.imshow(image, cmap="gray", interpolation="nearest")
            ax.set_title(captions[name][i], fontsize="small", pad=2)
            cells.append((name, i + 1, captions[name][i]))
    head(figure, heading)
    return figure, pd.DataFrame(cells, columns=["row", "place", "caption"])
