"""What is reproduced, as one value: the companion is handed it and knows no paper by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from companion.panels import Panel
from companion.sections import Section


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One table of a paper and the section that makes it.

    ``printed(dataset)`` returns its published numbers as fractions, ``measured(panel)`` what runs
    have, a row per seed; both have the columns ``keys`` and value, the former ``row``, the number's
    place among all published ones, and the latter as many columns of its runs as it can keep.
    Numbers are ranked within a data set and what ``apart`` names: columns, or words.
    """

    paper: str
    section: Section
    notebook: str
    printed: Callable[[str], pd.DataFrame]
    measured: Callable[[Panel], pd.DataFrame]
    keys: tuple[str, ...]
    apart: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Floored:
    """The section whose partitions a paper's numbers on clients' own tests have floors on.

    ``by`` is the place that tells its partitions apart, ``part`` what is scored; clients count by
    their examples if ``weighted``. Numbers of the metric ``but`` are not on own tests.
    """

    section: Section
    by: str
    part: str = "test"
    weighted: bool = False
    but: str = ""


@dataclass(frozen=True, eq=False)
class Book:
    """Everything that the companion plans, trains, keeps and judges.

    ``sections`` by name; ``order``, the parts of a campaign as `plan.planned` takes them;
    ``published()``, every published number with its ``row``; ``why_not()``, by row why a number is
    compared with no run ("" where it is); ``floored`` by paper, and the file of the ``floors``.
    """

    sections: Mapping[str, Section]
    order: tuple[str, ...]
    exhibits: tuple[Exhibit, ...]
    published: Callable[[], pd.DataFrame]
    why_not: Callable[[], pd.Series]
    floored: Mapping[str, Floored]
    floors: Path
