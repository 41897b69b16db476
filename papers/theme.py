"""How methods and data sets look in every figure of the papers.

`papers/theme.csv` has a method's place in the colour-blind palette and its dash, in the order of
legends; `papers/titles.csv` how people write what code calls otherwise.
"""

from companion.theme import Dash, Theme
from papers import fedmix, pm_moe
from papers.adaptive import experiments as adaptive
from papers.published import words
from papers.scaled import MAJORITY, TUNED
from papers.specialists import analysis


def _dash(written: str) -> Dash:
    """Return a dash, "--" or the lengths of strokes and gaps: "5 1"."""
    return (0, (*map(int, written.split()),)) if written[0].isdigit() else written


_ROWS = words("theme.csv", "method").items()
METHODS = {method: (int(row["place"]), _dash(row["dash"])) for method, row in _ROWS}
METHODS |= {f"{m} {pm_moe.WITH_MOE}": METHODS[m] for m in pm_moe.NINE}
_EXPLORING = (adaptive.MOE, adaptive.EAGER, adaptive.ALL_EQUAL, adaptive.BEST, TUNED)
METHODS |= {f"{m}, no exploration": (METHODS[m][0], (0, (2, 1))) for m in _EXPLORING}
METHODS |= {"K = 3": (0, "-"), "K = 4": (1, "--"), "K = 5": (4, "-.")}
# What is no method, and drawn beside its like.
METHODS |= {fedmix.SHARED: (1, "-"), fedmix.BETWEEN: (0, "-")}
METHODS |= {
    f"{skew}, {of}": (i, dash)
    for i, skew in enumerate(analysis.SKEWS)
    for of, dash in zip(analysis.LOSSES, (":", "-"), strict=True)
}
TITLES = {name: row["title"] for name, row in words("titles.csv", "name").items()}
THEME = Theme(METHODS, TITLES, floor=MAJORITY)
