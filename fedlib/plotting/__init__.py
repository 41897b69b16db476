"""One style, one function per kind of figure. Draws tidy frames and never trains.

Every function returns the figure and the frame behind it; ``save`` writes both.
"""

from fedlib.plotting.agreement import agreement
from fedlib.plotting.bars import grouped, label_bars
from fedlib.plotting.counts import label_counts, partitions
from fedlib.plotting.curves import Cell, curves, grid
from fedlib.plotting.frontier import frontier
from fedlib.plotting.heatmaps import heatmaps, images, label_sets
from fedlib.plotting.lines import cumulative, over
from fedlib.plotting.numbers import dots, points, ranked, standings
from fedlib.plotting.planes import cloud, embedding, plane, versus
from fedlib.plotting.published import against_floor
from fedlib.plotting.style import (
    COLUMN,
    METHODS,
    PAGE,
    TITLES,
    look_of,
    ordered,
    save,
    save_table,
    title,
    use_style,
)
from fedlib.plotting.trials import trials

__all__ = [
    "COLUMN",
    "METHODS",
    "PAGE",
    "TITLES",
    "Cell",
    "against_floor",
    "agreement",
    "cloud",
    "cumulative",
    "curves",
    "dots",
    "embedding",
    "frontier",
    "grid",
    "grouped",
    "heatmaps",
    "images",
    "label_bars",
    "label_counts",
    "label_sets",
    "look_of",
    "ordered",
    "over",
    "partitions",
    "plane",
    "points",
    "ranked",
    "save",
    "save_table",
    "standings",
    "title",
    "trials",
    "use_style",
    "versus",
]
