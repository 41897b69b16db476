"""How methods and data sets look in every figure of the papers.

`papers/theme.csv` has a method's place in the colour-blind palette and its dash, in the order of
legends, and at its end what is no method, or drawn with its like; `papers/titles.csv` how people
write what code calls otherwise.
"""

from companion.theme import Dash, Theme
from papers.published import words
from papers.scaled import MAJORITY


def _dash(written: str) -> Dash:
    """Return a dash, "--" or the lengths of strokes and gaps: "5 1"."""
    return (0, (*map(int, written.split()),)) if written[0].isdigit() else written


_ROWS = words("theme.csv", "method").items()
METHODS = {method: (int(row["place"]), _dash(row["dash"])) for method, row in _ROWS}
TITLES = {name: row["title"] for name, row in words("titles.csv", "name").items()}
THEME = Theme(METHODS, TITLES, floor=MAJORITY)
