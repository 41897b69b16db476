"""Every published number and every claim beside what was measured: `make report`."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from companion.claims import FAILS, HOLDS
from companion.inference import LEAST_SEEDS, interval
from companion.panels import Panel, stored
from companion.sections import SCALES, Book, Exhibit, Run
from fedlib import paths
from fedlib.algorithms import CommonestLabel
from fedlib.data import DatasetError
from fedlib.metrics import majority_floor
from fedlib.runs import Result, find
from fedlib.runs.exported import path_of

LARGEST_FIRST = SCALES[::-1]
# The quick scale has data of its own, which no paper has numbers for.
WITH_NUMBERS = [scale for scale in LARGEST_FIRST if scale != "quick"]
TEXTS = ("group", "scale", "notebook", "key", "device", "commit", "file")
MEASURED = ("mean", "low", "high", "seeds", *TEXTS)
CLAIMS = ("notebook", "tested on", "claim", "source", "measured", "seeds", "verdict", "clear")
AGREES = 0.75
INSIDE, ORDER, NOT = "inside the interval", "same order", "not reproduced"
TOO_FEW, NEVER, NO = "too few seeds", "not yet run", "not comparable"
ABSENT = "data not at hand"
VERDICTS = {
    INSIDE: "the published value lies in the 95% interval of the mean over seeds",
    ORDER: "it does not, but three quarters or more of the other numbers of its group lie on the "
    "same side of it as in the paper",
    NOT: "neither",
    TOO_FEW: f"fewer than {LEAST_SEEDS} seeds: the interval would hold almost any number",
    NEVER: "no run is stored",
    ABSENT: "no run is stored, and of the data set the standard scale has a sample at most",
    NO: "there is nothing to compare it with, for the reason that is given",
}
COLOURS = {
    **dict.fromkeys((HOLDS, INSIDE), "#1b7837"),
    ORDER: "#5aae61",
    **dict.fromkeys((FAILS, NOT), "#b2182b"),
}


def write(book: Book) -> tuple[list[Path], pd.DataFrame, pd.DataFrame]:
    """Write scorecard.html, .parquet and scorecard_claims.parquet; return them.

    Also the tables that are in them: published numbers and claims.
    """
    home = paths.figures()
    home.mkdir(parents=True, exist_ok=True)
    table, claims = numbers(book), collected()
    written = [home / f"scorecard{end}" for end in (".html", ".parquet", "_claims.parquet")]
    written[0].write_text(page(table, claims))
    table.to_parquet(written[1], index=False)
    claims.astype({"measured": str, "seeds": str}).to_parquet(written[2], index=False)
    return written, table, claims


def main(book: Book) -> None:
    """Write page, tables and numbers; say where, and how verdicts are spread."""
    written, numbers, claims = write(book)
    for name, table in (("published numbers", numbers), ("claims", claims)):
        said = ", ".join(f"{n} {v}" for v, n in table["verdict"].value_counts().items())
        print(f"{len(table)} {name}: {said or 'none tested yet, run make figures'}")
    for file in written:
        print(file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file)


def collected(folder: Path | None = None) -> pd.DataFrame:
    """Return every claim that some notebook has tested: ``CLAIMS``.

    A claim that was tested on the same data at the same scale by runs of several scales' notebooks
    is taken from the largest. No rows where no notebook has been run.
    """
    home = folder or paths.figures()
    found = [f for scale in LARGEST_FIRST for f in sorted((home / scale).glob("*_claims.csv"))]
    parts = [pd.read_csv(f, keep_default_na=False).assign(notebook=_name(f)) for f in found]
    if not parts:
        return pd.DataFrame(columns=list(CLAIMS))
    rows = pd.concat(parts, ignore_index=True)
    unique = rows.drop_duplicates(["notebook", "tested on", "claim"])
    order = ["notebook", "tested on"]
    return unique.sort_values(order, kind="stable")[list(CLAIMS)].reset_index(drop=True)


def _name(file: Path) -> str:
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
                counts = run.experiment.task.counts(0)
            except DatasetError:
                break
            tested = counts[own.part]
            floor, sizes = majority_floor(counts["train"], tested), tested.sum(1)
            there = sizes > 0
            mean = np.average(floor[there], weights=sizes[there] if own.weighted else None)
            yield paper, dataset, float(run.where[own.by]), float(mean)


def of_rows(book: Book) -> pd.Series:
    """Return the floor in percent by the row of a published number; none for one of all classes."""
    known = floors(book).set_index(["paper", "dataset", "at"])["floor"]
    found: dict[Any, float] = {}
    for exhibit in (e for e in book.exhibits if e.paper in book.floored):
        own = book.floored[exhibit.paper]
        for dataset in known.loc[exhibit.paper].index.unique("dataset"):
            rows = exhibit.printed(dataset)
            rows = rows[rows["metric"] != own.but] if "metric" in rows else rows
            at = rows.set_index("row")[own.by].map(known[exhibit.paper, dataset])
            found |= at.dropna().to_dict()
    return pd.Series(found, dtype=float) * 100


# The scorecard as one page that needs nothing else.


def page(numbers: pd.DataFrame, claims: pd.DataFrame) -> str:
    """Return the scorecard as HTML: how verdicts are spread, every claim, every published number.

    Columns sort by a click and a box filters rows; links go to the notebook that shows a number and
    to the stored run behind it.
    """
    rules = "".join(
        f"<li><b>{_verdict(v)}</b>: {escape(text)}</li>" for v, text in VERDICTS.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fedlib: scorecard</title>
<style>{_asset("page.css")}</style></head><body>
<h1>Scorecard</h1>
<p>Every number that the five papers publish, beside what stored runs have at the largest scale at
which there are any, and every claim that the notebooks test. Nothing here is typed by hand:
<code>make report</code> writes this page. Smaller scales have fewer rounds, examples and clients
than the papers, so that accuracies are often lower and an order says more.</p>
<h2>Published numbers</h2><ul>{rules}</ul>
{_counts(numbers, "paper")}
<h2>Claims</h2>
{_counts(claims, "notebook")}
{_claims(claims)}
<h2>Every published number</h2><p>In the units of the paper, mostly percent. The floor of a number
on clients' own tests is what always saying a client's commonest label has on the paper's own
partition: what lies below it has learned less than one look at the labels tells.</p>
{_numbers(numbers)}
<script>{_asset("page.js")}</script></body></html>
"""


def _asset(name: str) -> str:
    return files("companion.scorecard").joinpath(name).read_text()


def _counts(table: pd.DataFrame, by: str) -> str:
    if not len(table):
        return "<p>None yet: run <code>make figures</code>.</p>"
    verdicts = table["verdict"].map(_verdict)
    counts = pd.crosstab(table[by], verdicts, margins=True, margins_name="all")
    return _table(counts.rename_axis(columns=None).reset_index())


def _claims(claims: pd.DataFrame) -> str:
    told = claims.astype(str)
    shown = told.drop(columns="clear").map(escape)
    close = told["clear"].map({"True": ""}).fillna(" (a close call)")
    shown["verdict"] = told["verdict"].map(_verdict) + close
    shown["notebook"] = told["notebook"].map(_notebook)
    return _table(shown, "claims")


def _numbers(numbers: pd.DataFrame) -> str:
    names = ["paper", "table_or_figure", "dataset", "setting", "method", "metric"]
    texts = numbers[names].map(escape).set_axis(["paper", "item", "data", *names[3:]], axis=1)
    texts["paper"] = texts["paper"].str[:3]
    for name, column in (("published", "value"), ("floor", "floor"), ("measured", "mean")):
        texts[name] = numbers[column].map("{:.4g}".format, na_action="ignore")
    ends = zip(numbers["low"], numbers["high"], strict=True)
    texts["95% interval"] = ["" if pd.isna(a) else f"{a:.3g} to {b:.3g}" for a, b in ends]
    texts["seeds"] = numbers["seeds"].astype(int).astype(str).replace("0", "")
    texts["scale"] = numbers["scale"]
    texts["run"] = [_run(*run) for run in numbers[["key", "file", "device", "commit"]].to_numpy()]
    texts["notebook"] = numbers["notebook"].map(_notebook)
    why = numbers["why_not"].map(lambda text: f": {escape(text)}" if text else "")
    return _table(texts.assign(verdict=numbers["verdict"].map(_verdict) + why), "numbers")


def _table(shown: pd.DataFrame, name: str = "") -> str:
    """Return a table of HTML; one that has a name can be sorted, and filtered by a box above it."""
    how: Any = {"index": False, "escape": False, "border": 0, "justify": "left", "na_rep": ""}
    with pd.option_context("display.max_colwidth", None):
        table = shown.to_html(table_id=name or None, classes="sortable" if name else None, **how)
    box = f'<input type="search" data-for="{name}" placeholder="show rows with all these words">'
    return box + table if name else table


def _verdict(verdict: str) -> str:
    return f'<span style="color:{COLOURS.get(verdict, "inherit")}">{escape(verdict)}</span>'


def _notebook(name: str) -> str:
    return f'<a href="../notebooks/{escape(name)}.ipynb">{escape(name)}</a>' if name else ""


def _run(key: str, file: str, device: str, commit: str) -> str:
    """Return the key of a run, with where and from which code it comes; a link to its file."""
    said = f'title="{escape(f"{device}, commit {commit}")}">{escape(key[:8])}'
    if not file:
        return f"<span {said}</span>" if key else ""
    return f'<a href="../results/{escape(file)}" {said}</a>'
