"""Figures with several fields: their sizes, legends and headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from companion.plotting.floor import CALLED, line_of_floor


def side_by_side(
    panels: Mapping[str, pd.DataFrame],
    wide: float,
    high: float,
    least: float = 4.2,
    *,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of panels, each ``wide`` and ``high`` inches.

    The whole is at least ``least`` wide, for the legend's sake.
    """
    size = (max(wide * len(panels), least), high)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=sharey)
    return figure, list(axes[0])


def fields(
    count: int, wide: int, width: float, tall: float, room: float = 0.5, **more: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure with ``count`` fields in rows of ``wide``, axes ``[rows, wide]``.

    ``width`` inches in all; each row is ``tall``, with ``room`` below them. Axes beyond the last
    field are hidden.
    """
    high = -(-count // wide)
    size = (width, tall * high + room)
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False, **more)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return figure, axes


def legend(figure: Figure, axes: Sequence[Axes], heading: str = "") -> None:
    """Explain the first field's curves below the figure, and put ``heading`` above it.

    The floor, wherever it is drawn, comes last.
    """
    handles, labels = axes[0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    found = [floor for ax in axes if (floor := line_of_floor(ax)) is not None]
    known.pop(CALLED, None)
    known |= {CALLED: found[0]} if found else {}
    handles, labels = [*known.values()], [*known]
    # The floor's name is long: beside others of one row in four it would be cut off.
    across = 2 if figure.get_figwidth() < 6 else 3 if found and len(known) > 4 else 4
    figure.legend(handles, labels, loc="outside lower center", ncols=min(across, len(labels)))
    head(figure, heading)


def head(figure: Figure, heading: str) -> None:
    """Put a heading above all fields, if there is one."""
    if heading:
        figure.suptitle(heading, fontsize="medium")


def finished(
    figure: Figure, axes: list[Axes], drawn: list[pd.DataFrame], ylabel: str, heading: str
) -> tuple[Figure, pd.DataFrame]:
    """Return a row of panels with its legend, and what was drawn in all of them."""
    axes[0].set_ylabel(ylabel)
    legend(figure, axes, heading)
    return figure, pd.concat(drawn, ignore_index=True)
