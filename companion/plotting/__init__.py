"""Figures: one function per kind of figure, which draws tidy frames in one style.

Every function returns the figure and the frame behind it; ``save`` writes both. Nothing is trained
here.
"""

from .curves import Cell, cumulative, curves, gaps, grid, over, slopes
from .matrices import heatmaps, images, label_bars, label_sets, partitions
from .numbers import (
    JUDGED,
    against_floor,
    dots,
    dumbbells,
    forest,
    grouped,
    points,
    standings,
)
from .planes import frontier, scattered, tradeoff, versus
from .style import (
    CALLED,
    INITIAL,
    PAGE,
    UNTRAINED,
    Title,
    findings,
    ordered,
    save,
    save_picture,
    save_table,
    title,
    use_style,
)
