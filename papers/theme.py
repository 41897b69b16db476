"""The colours of methods and the titles of data sets in all figures of the papers.

`papers/theme.csv` has the position of each method in the colour-blind palette and its line style,
in the order of legends. At its end are entries that are no methods, or that are drawn in place of
one. `papers/titles.csv` has the names that readers know.
"""

from companion.theme import Dash, Theme
from papers.published import words
from papers.scaled import MAJORITY


def _dash(written: str) -> Dash:
    """Return a line style: "--", or the lengths of strokes and gaps, "5 1"."""
    return (0, (*map(int, written.split()),)) if written[0].isdigit() else written


_ROWS = words("theme.csv", "method").items()
METHODS = {method: (int(row["place"]), _dash(row["dash"])) for method, row in _ROWS}
TITLES = {name: row["title"] for name, row in words("titles.csv", "name").items()}
THEME = Theme(METHODS, TITLES, floor=MAJORITY)
