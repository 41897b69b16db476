"""Published numbers against measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from companion.plotting.layout import fields, legend
from companion.plotting.style import PAGE

COLOURS = ("#1b7837", "#7fbf7b", "#b2182b", "#bdbdbd")
FORMS = "o^sD"


def agreement(
    panels: Mapping[str, pd.DataFrame], verdicts: Sequence[str], *, xlabel: str, ylabel: str
) -> tuple[Figure, pd.DataFrame]:
    """Draw what was measured, with its interval, over what is published: a dot per number.

    A panel's frame has columns value, mean, low, high, verdict; ``verdicts`` are at most four, in
    the order of the legend. On the dotted line both are the same.
    """
    wide = min(2, len(panels))
    figure, axes = fields(len(panels), wide, PAGE if wide > 1 else 4.6, 3.0)
    for ax, (name, rows) in zip(axes.flat, panels.items(), strict=False):
        for verdict, colour, form in zip(verdicts, COLOURS, FORMS, strict=False):
            some = rows[rows["verdict"] == verdict]
            x, y = some["value"], some["mean"]
            ax.vlines(x, some["low"], some["high"], color=colour, linewidth=0.7, alpha=0.6)
            ax.plot(x, y, form, color=colour, markersize=3.5, label=verdict)
        ends = rows[["value", "mean"]].to_numpy()
        ax.plot([ends.min(), ends.max()], [ends.min(), ends.max()], ":", color="black", lw=0.8)
        room = 0.05 * (ends.max() - ends.min() or 1)
        # A wide interval would squeeze all else.
        ax.set(title=name, xlabel=xlabel, ylim=(ends.min() - room, ends.max() + room))
        ax.grid(alpha=0.25)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    legend(figure, list(axes.flat))
    return figure, pd.concat([f.assign(panel=n) for n, f in panels.items()], ignore_index=True)
