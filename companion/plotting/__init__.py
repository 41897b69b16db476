"""One style, one function per kind of figure. Draws tidy frames and never trains.

Every function returns the figure and the frame behind it; ``save`` writes both.
"""

from companion.plotting.agreement import agreement
from companion.plotting.bars import grouped, label_bars
from companion.plotting.counts import label_counts, partitions
from companion.plotting.curves import Cell, curves, grid
from companion.plotting.frontier import frontier
from companion.plotting.heatmaps import heatmaps, images, label_sets
from companion.plotting.lines import cumulative, over
from companion.plotting.numbers import dots, points, ranked, standings
from companion.plotting.planes import cloud, embedding, plane, versus
from companion.plotting.published import against_floor
from companion.plotting.style import (
    COLUMN,
    PAGE,
    look_of,
    ordered,
    save,
    save_table,
    title,
    use_style,
)
from companion.plotting.trials import trials

__all__ = [
    "COLUMN",
    "PAGE",
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
