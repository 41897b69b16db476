"""Who holds which labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from companion.plotting.layout import fields
from companion.plotting.picture import counts_picture
from companion.plotting.style import PAGE


def label_counts(
    counts: np.ndarray, names: Sequence[str], heading: str = "", most: int | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw who holds which labels, ``counts [clients, classes]``, one row per label.

    ``most`` is the count of the largest dot, the largest of ``counts`` by default.
    """
    figure, ax = plt.subplots(figsize=(PAGE, 0.22 * counts.shape[1] + 1.0))
    counts_picture(counts, ax, names, most)
    ax.set(ylabel="label", title=heading)
    return figure, _cells(counts)


def partitions(counts: Mapping[str, np.ndarray], columns: int = 2) -> tuple[Figure, pd.DataFrame]:
    """Draw several partitions, ``counts [clients, classes]`` by title, each with dots of its own.

    In every panel the largest dot is its largest count.
    """
    figure, axes = fields(len(counts), columns, PAGE, 1.75, room=0.0)
    for ax, (name, each) in zip(axes.flat, counts.items(), strict=False):
        counts_picture(each, ax, bar=False)
        least, most = each.sum(1).min(), each.sum(1).max()
        size = f"{least:,} each" if least == most else f"{least:,} to {most:,}"
        ax.set_title(f"{name}: {len(each)} clients, {size}")
        ax.set(xlabel="", ylabel="")
    figure.supxlabel("client", fontsize="medium")
    figure.supylabel("label", fontsize="medium")
    frames = [_cells(each).assign(panel=name) for name, each in counts.items()]
    return figure, pd.concat(frames, ignore_index=True)


def _cells(counts: np.ndarray) -> pd.DataFrame:
    client, label = np.indices(counts.shape)
    cells = {"client": client.ravel(), "label": label.ravel(), "examples": counts.ravel()}
    return pd.DataFrame(cells)
