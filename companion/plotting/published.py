"""A paper's numbers beside the floor of their data."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from companion.plotting.floor import draw_upright_floor
from companion.plotting.layout import legend
from companion.plotting.style import PAGE, SHADES, title

BELOW = "#c0392b"
LOOKS = {"published": (SHADES[1], "o"), "published, below the floor": (BELOW, "D")}


def against_floor(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw published accuracies by method, a field per data set and S, with the floor as a line.

    ``table`` has columns dataset, S, method, value and floor, methods from top to bottom. What lies
    below the floor is red. Returns the table with the column below.
    """
    table = table.assign(below=table["value"] < table["floor"])
    sets, ratios, methods = (list(dict.fromkeys(table[c])) for c in ("dataset", "S", "method"))
    size = (PAGE, (0.17 * len(methods) + 0.5) * len(ratios) + 0.6)
    figure, axes = plt.subplots(
        len(ratios), len(sets), figsize=size, squeeze=False, sharey=True, sharex=True
    )
    for i, s in enumerate(ratios):
        for ax, dataset in zip(axes[i], sets, strict=True):
            here = table[(table["S"] == s) & (table["dataset"] == dataset)]
            for below, (name, (colour, form)) in zip((False, True), LOOKS.items(), strict=True):
                dots = here[here["below"] == below]
                at = [methods.index(m) for m in dots["method"]]
                ax.plot(dots["value"], at, form, color=colour, markersize=4, label=name)
            draw_upright_floor(ax, here["floor"])
            ax.set_title(f"{title(dataset)}, S = {s:g}", fontsize="small")
            ax.grid(axis="x", alpha=0.3)
        axes[i][0].set_yticks(range(len(methods)), methods, fontsize="small")
        axes[i][0].set_ylim(len(methods) - 0.5, -0.5)
    for ax in axes[-1]:
        ax.set_xlabel("accuracy")
    legend(figure, list(axes.flat))
    return figure, table
