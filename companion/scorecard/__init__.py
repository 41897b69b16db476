"""Every published number and every claim beside what was measured: `make report`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from companion.book import Book, Exhibit, Floored
from companion.frames import LEAST_SEEDS, interval
from companion.panels import Panel, stored
from companion.scorecard.page import (
    ABSENT,
    INSIDE,
    NEVER,
    NO,
    NOT,
    ORDER,
    TOO_FEW,
    VERDICTS,
    latex,
    page,
)
from companion.sections import SCALES, Run
from fedlib import paths
from fedlib.algorithms import CommonestLabel
from fedlib.data import DatasetError
from fedlib.metrics import majority_floor
from fedlib.runs import Result, find
from fedlib.runs.exported import path_of
from fedlib.tasks import Task

LARGEST_FIRST = SCALES[::-1]
# The quick scale has data of its own, which no paper has numbers for.
WITH_NUMBERS = [scale for scale in LARGEST_FIRST if scale != "quick"]
TEXTS = ("group", "scale", "notebook", "key", "device", "commit", "file")
MEASURED = ("mean", "low", "high", "seeds", *TEXTS)
CLAIMS = ("notebook", "tested on", "claim", "source", "measured", "seeds", "verdict", "clear")
AGREES = 0.75


def write(book: Book) -> tuple[list[Path], pd.DataFrame, pd.DataFrame]:
    """Write scorecard.html, .tex, .parquet and scorecard_claims.parquet; return them.

    Also the tables that are in them: published numbers and claims.
    """
    home = paths.figures()
    home.mkdir(parents=True, exist_ok=True)
    table, claims = numbers(book), collected()
    files = [home / f"scorecard{end}" for end in (".html", ".tex", ".parquet", "_claims.parquet")]
    files[0].write_text(page(table, claims))
    files[1].write_text(latex(table, claims))
    table.to_parquet(files[2], index=False)
    claims.astype({"measured": str, "seeds": str}).to_parquet(files[3], index=False)
    return files, table, claims


def main(book: Book) -> None:
    """Write page, tables and numbers; say where, and how verdicts are spread."""
    files, numbers, claims = write(book)
    for name, table in (("published numbers", numbers), ("claims", claims)):
        said = ", ".join(f"{n} {v}" for v, n in table["verdict"].value_counts().items())
        print(f"{len(table)} {name}: {said or 'none tested yet, run make figures'}")
    for file in files:
        print(file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file)


def collected(folder: Path | None = None) -> pd.DataFrame:
    """Return every claim that some notebook has tested: ``CLAIMS``.

    A claim that was tested on the same data at the same scale by runs of several scales' notebooks
    is taken from the largest. No rows where no notebook has been run.
    """
    home = folder or paths.figures()
    files = [f for scale in LARGEST_FIRST for f in sorted((home / scale).glob("*_claims.csv"))]
    parts = [pd.read_csv(f, keep_default_na=False).assign(notebook=_notebook(f)) for f in files]
    if not parts:
        return pd.DataFrame(columns=list(CLAIMS))
    rows = pd.concat(parts, ignore_index=True)
    unique = rows.drop_duplicates(["notebook", "tested on", "claim"])
    order = ["notebook", "tested on"]
    return unique.sort_values(order, kind="stable")[list(CLAIMS)].reset_index(drop=True)


def _notebook(file: Path) -> str:
    """Return the name of the notebook that wrote a file "NN_claims.csv"."""
    number = file.name[:2]
    there = sorted((paths.ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    return there[0].stem if there else number


def numbers(book: Book) -> pd.DataFrame:
    """Return a row per published number: what was measured at the largest scale, and a verdict.

    Columns of what is published, then floor (on own tests, in percent: always a client's commonest
    label on the paper's own partition; NaN elsewhere), mean, low, high (95% over seeds, in
    percent), seeds, group (of numbers that are ranked together), scale, notebook, key (of the first
    seed's run), its device and commit and the file of
    ``results/`` that holds it, why_not, at_hand, verdict.
    """
    table = book.published().set_index("row", drop=False)
    rows = [row for exhibit in book.exhibits for row in _measured(exhibit)]
    found = pd.DataFrame(rows, columns=["row", *MEASURED]).drop_duplicates("row").set_index("row")
    table = table.assign(floor=of_rows(book)).join(found)
    table = table.assign(why_not=book.why_not(), at_hand=~table.index.isin(not_at_hand(book)))
    table = table.fillna({"seeds": 0} | dict.fromkeys(TEXTS, ""))
    table["group"] = table["group"].where(table["group"].ne(""), table["table_or_figure"])
    # Published in percent; what is measured are fractions.
    ends = ["mean", "low", "high"]
    table[ends] = table[ends].astype(float) * 100
    return table.assign(verdict=judged(table)).reset_index(drop=True)


def not_at_hand(book: Book) -> list[int]:
    """Return the rows whose data set no section of the standard scale has in full.

    What is published of it can only be measured at the paper's scale.
    """
    known = [one.settings("standard") for one in book.sections.values()]
    full = {setting.task.dataset for settings in known for setting in settings.values()}
    return [
        row
        for exhibit in book.exhibits
        for name, setting in exhibit.section.settings("paper").items()
        if setting.task.dataset not in full
        for row in exhibit.printed(name)["row"]
    ]


def _measured(exhibit: Exhibit) -> Iterator[dict[str, object]]:
    """Yield what was measured for each number of an exhibit, the largest scale first."""
    for scale in WITH_NUMBERS:
        for panel in stored(exhibit.section, [], scale, partly=True):
            printed = exhibit.printed(panel.dataset).dropna(subset="value")
            runs = dict(iter(exhibit.measured(panel).groupby(list(exhibit.keys))))
            for _, row in printed.iterrows():
                measured = runs.get(tuple(row[k] for k in exhibit.keys))
                if measured is not None:
                    yield _row(exhibit, panel, row, measured)


def _row(
    exhibit: Exhibit, panel: Panel, row: pd.Series, measured: pd.DataFrame
) -> dict[str, object]:
    ends = zip(("mean", "low", "high"), interval(measured["value"]), strict=True)
    group = (exhibit.paper, panel.dataset, *(str(row.get(k, k)) for k in exhibit.apart))
    told = {"row": row["row"], **dict(ends), "seeds": len(measured), "group": ", ".join(group)}
    told |= {"scale": panel.scale, "notebook": exhibit.notebook}
    result = _run_of(exhibit, panel, measured)
    if result is not None:
        file, made = path_of(result.experiment), result.provenance
        told |= {"key": result.experiment.key, "file": file.name if file is not None else ""}
        told |= {name: made.get(name, "") for name in ("device", "commit")}
    return told


def _run_of(exhibit: Exhibit, panel: Panel, measured: pd.DataFrame) -> Result | None:
    """Return the run of the first seed behind a number, None where no method has its name.

    ``measured`` are the number's rows: the run stands where they stand. Where they keep too few
    columns to say so, it is the last of those that they can be of.
    """
    runs = exhibit.section.runs(panel.scale, panel.dataset, [*measured["method"].unique()])
    for run in reversed(runs):
        if _stands_at(run, measured):
            return find(exhibit.section.experiments(panel.scale, panel.dataset, run)[0])
    return None


def _stands_at(run: Run, rows: pd.DataFrame) -> bool:
    """Return whether the columns of some rows name a run's place, as far as both say."""
    said = {name: rows[name].unique() for name in run.where if name in rows}
    return all(run.where[name] in values for name, values in said.items())


def judged(table: pd.DataFrame) -> pd.Series:
    """Return the verdict of every number.

    ``table`` has columns value, mean, low, high, seeds (0: never run), group, at_hand (whether its
    data set is), and why_not ("" where a run is to be compared).
    """
    agreement = _agreement(table)
    said = np.select(
        [
            table["why_not"].ne(""),
            table["seeds"].eq(0) & ~table["at_hand"],
            table["seeds"].eq(0),
            table["seeds"].lt(LEAST_SEEDS),
            table["value"].between(table["low"], table["high"]),
            agreement.ge(AGREES),
        ],
        [NO, ABSENT, NEVER, TOO_FEW, INSIDE, ORDER],
        NOT,
    )
    return pd.Series(said, index=table.index)


def _agreement(table: pd.DataFrame) -> pd.Series:
    """Return the share of a number's group that lies on the same side of it as published.

    NaN for a number that is alone in its group, or was never run.
    """
    shares = pd.Series(np.nan, index=table.index)
    measured = table[table["seeds"].gt(0) & table["value"].notna()]
    for _, rows in measured.groupby("group"):
        theirs, ours = (
            np.sign(np.subtract.outer(v, v)) for v in rows[["value", "mean"]].to_numpy().T
        )
        if len(rows) > 1:
            shares[rows.index] = ((theirs == ours).sum(1) - 1) / (len(rows) - 1)
    return shares


# What always saying the commonest label is worth on the papers' own partitions.


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
