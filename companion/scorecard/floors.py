"""What always saying the commonest label is worth on the papers' own partitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from companion.book import Book, Exhibit, Floored
from fedlib.algorithms import CommonestLabel
from fedlib.data import DatasetError
from fedlib.metrics import majority_floor
from fedlib.tasks import Task


def floors(book: Book) -> pd.DataFrame:
    """Return the stored floors: paper, dataset, at (the place of the partition), floor."""
    return pd.read_csv(book.floors, dtype={"paper": str})


def write_floors(book: Book) -> pd.DataFrame:
    """Compute every floor from labels, as far as data sets are at hand, and store them.

    Those of other data sets stay as they were stored.
    """
    rows = [row for paper in book.floored for row in computed(book, paper)]
    new = pd.DataFrame(rows, columns=["paper", "dataset", "at", "floor"])
    both = pd.concat([new, floors(book)])
    table = both.drop_duplicates(["paper", "dataset", "at"]).astype({"at": float, "floor": float})
    table = table.sort_values(["paper", "dataset", "at"], ignore_index=True)
    table.to_csv(book.floors, index=False, float_format="%.6f", lineterminator="\n")
    return table


def computed(book: Book, paper: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield paper, data set, place and floor, for the data sets that can be opened.

    Of the first seed; who is tested is what the section of the paper's scale says.
    """
    own = book.floored[paper]
    printed = [e.printed for e in book.exhibits if e.paper == paper]
    for dataset in own.section.settings("paper"):
        if not any(len(numbers(dataset)) for numbers in printed):
            continue
        for run in own.section.runs("paper", dataset):
            if not isinstance(run.experiment.algorithm, CommonestLabel):
                continue
            try:
                floor = floor_of(run.experiment.task, own.part, own.weighted)
            except DatasetError:
                break
            yield paper, dataset, float(run.where[own.by]), floor


def floor_of(task: Task, part: str = "test", weighted: bool = False, seed: int = 0) -> float:
    """Return the mean floor over clients, or over all examples of a ``part``, from labels alone."""
    counts = task.counts(seed)
    floor, sizes = majority_floor(counts["train"], counts[part]), counts[part].sum(1)
    there = sizes > 0
    return float(np.average(floor[there], weights=sizes[there] if weighted else None))


def of_rows(book: Book) -> pd.Series:
    """Return the floor in percent by the row of a published number; none for one of all classes."""
    known = floors(book).set_index(["paper", "dataset", "at"])["floor"]
    found: dict[int, float] = {}
    for exhibit in book.exhibits:
        if exhibit.paper in book.floored:
            found |= dict(_of_exhibit(exhibit, book.floored[exhibit.paper], known))
    return pd.Series(found, dtype=float) * 100


def _of_exhibit(exhibit: Exhibit, own: Floored, known: pd.Series) -> Iterator[tuple[int, float]]:
    for dataset in known.loc[exhibit.paper].index.unique("dataset"):
        rows = exhibit.printed(dataset)
        rows = rows[rows["metric"] != own.but] if "metric" in rows else rows
        for row, at in zip(rows["row"], rows[own.by], strict=True):
            if (exhibit.paper, dataset, at) in known.index:
                yield int(row), float(known[exhibit.paper, dataset, at])
