"""One style, one function per kind of figure. Draws tidy frames and never trains.

Every function returns the figure and the frame behind it; ``save`` writes both.
"""

from fedlib.plotting.counts import label_counts, partitions
from fedlib.plotting.curves import curves, points
from fedlib.plotting.heatmaps import heatmaps
from fedlib.plotting.style import COLUMN, METHODS, PAGE, TITLES, look_of, save, title, use_style

__all__ = [
    "COLUMN",
    "METHODS",
    "PAGE",
    "TITLES",
    "curves",
    "heatmaps",
    "label_counts",
    "look_of",
    "partitions",
    "points",
    "save",
    "title",
    "use_style",
]
