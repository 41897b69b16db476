"""Every published number joined with the runs that measured it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from companion import frames
from companion.book import Book, Exhibit
from companion.panels import Panel, stored
from companion.scorecard.collected import LARGEST_FIRST
from companion.scorecard.floors import of_rows
from companion.scorecard.judge import judged
from companion.sections import Run
from fedlib.runs import Result, find
from fedlib.runs.exported import path_of

# The quick scale has data of its own, which no paper has numbers for.
WITH_NUMBERS = [scale for scale in LARGEST_FIRST if scale != "quick"]
TEXTS = ("group", "scale", "notebook", "key", "device", "commit", "file")
MEASURED = ("mean", "low", "high", "seeds", *TEXTS)


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
    mean, low, high = frames.interval(measured["value"])
    group = (exhibit.paper, panel.dataset, *(str(row.get(k, k)) for k in exhibit.apart))
    result = _run_of(exhibit, panel, measured)
    made = result.provenance if result is not None else {}
    file = path_of(result.experiment) if result is not None else None
    return {
        "row": row["row"],
        "mean": mean,
        "low": low,
        "high": high,
        "seeds": len(measured),
        "scale": panel.scale,
        "group": ", ".join(group),
        "notebook": exhibit.notebook,
        "key": result.experiment.key if result is not None else "",
        "device": made.get("device", ""),
        "commit": made.get("commit", ""),
        "file": file.name if file is not None else "",
    }


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
