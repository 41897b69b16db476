"""What always saying the commonest label is worth on the papers' own partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from companion import frames
from companion.scorecard.exhibits import EXHIBITS, Exhibit
from fedlib.data import DatasetError
from fedlib.metrics import majority_floor
from fedlib.tasks import Task
from papers.published import floors
from papers.recipes import ADAPTIVE, FIRST_VERSION, FOURTEEN, MAJORITY, SPECIALISTS, Section
from papers.specialists.analysis import GLOBAL

FILE = Path(__file__).parents[1] / "floors.csv"
# By paper: the section with its partitions, what they are told by, the part that is scored, and
# whether clients count by their tests (004) or alike.
_OWN: dict[str, tuple[Section, str, str, bool]] = {
    "001": (SPECIALISTS, "p", "test", False),
    "002": (FIRST_VERSION, "p", "validation", False),
    "003": (ADAPTIVE, "p", "test", False),
    "004": (FOURTEEN, "S", "test", True),
}


def write_floors() -> pd.DataFrame:
    """Compute every floor from labels, as far as data sets are at hand, and store them.

    Those of other data sets stay as they were stored.
    """
    rows = [row for paper in _OWN for row in computed(paper)]
    new = pd.DataFrame(rows, columns=["paper", "dataset", "at", "floor"])
    both = pd.concat([new, floors()])
    table = both.drop_duplicates(["paper", "dataset", "at"]).astype({"at": float, "floor": float})
    table = table.sort_values(["paper", "dataset", "at"], ignore_index=True)
    table.to_csv(FILE, index=False, float_format="%.6f", lineterminator="\n")
    return table


def computed(paper: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield paper, data set, p or S, and the floor, for the data sets that can be opened.

    Of the first seed; who is tested is what the recipe of the paper's scale says.
    """
    section, by, part, weighted = _OWN[paper]
    printed = [e.printed for e in EXHIBITS if e.paper == paper]
    for dataset in section.settings("paper"):
        if not any(len(numbers(dataset)) for numbers in printed):
            continue
        names = [m for m in section.methods("paper", dataset) if m.startswith(MAJORITY)]
        at = frames.apart(pd.DataFrame({"method": names}))[by]
        for name, value in zip(names, at, strict=True):
            task = section.experiments("paper", dataset, name, seeds=1)[0].task
            try:
                yield paper, dataset, float(value), floor_of(task, part, weighted)
            except DatasetError:
                break


def floor_of(task: Task, part: str = "test", weighted: bool = False, seed: int = 0) -> float:
    """Return the mean floor over clients, or over all examples of a ``part``, from labels alone."""
    counts = task.counts(seed)
    floor, sizes = majority_floor(counts["train"], counts[part]), counts[part].sum(1)
    there = sizes > 0
    return float(np.average(floor[there], weights=sizes[there] if weighted else None))


def of_rows() -> pd.Series:
    """Return the floor in percent by the row of a published number; none for one of all classes."""
    known = floors().set_index(["paper", "dataset", "at"])["floor"]
    found: dict[int, float] = {}
    for exhibit in EXHIBITS:
        if exhibit.paper in _OWN:
            found |= dict(_of_exhibit(exhibit, known))
    return pd.Series(found, dtype=float) * 100


def _of_exhibit(exhibit: Exhibit, known: pd.Series) -> Iterator[tuple[int, float]]:
    by = _OWN[exhibit.paper][1]
    for dataset in known.loc[exhibit.paper].index.unique("dataset"):
        rows = exhibit.printed(dataset)
        rows = rows[rows["metric"] != GLOBAL] if "metric" in rows else rows
        for row, at in zip(rows["row"], rows[by], strict=True):
            if (exhibit.paper, dataset, at) in known.index:
                yield int(row), float(known[exhibit.paper, dataset, at])
