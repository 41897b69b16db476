"""One table of a paper, and the section that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from companion.panels import Panel
from companion.sections import Section


@dataclass(frozen=True)
class Exhibit:
    """One table of a paper and the section that makes it.

    ``printed(dataset)`` returns its published numbers as fractions, ``measured(panel)`` what runs
    have, a row per seed; both have the columns ``keys`` and value, and the former ``row``, the
    number's place in published.csv. Numbers are ranked within a data set and what ``apart`` names:
    columns, or words.
    """

    paper: str
    section: Section
    notebook: str
    printed: Callable[[str], pd.DataFrame]
    measured: Callable[[Panel], pd.DataFrame]
    keys: tuple[str, ...]
    apart: tuple[str, ...]
