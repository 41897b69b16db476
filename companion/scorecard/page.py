"""The scorecard as one page that needs nothing else, and as LaTeX tables."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

import pandas as pd

from companion.claims import FAILS, HOLDS
from companion.frames import LEAST_SEEDS

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


def latex(numbers: pd.DataFrame, claims: pd.DataFrame) -> str:
    """Return two tables in LaTeX: verdicts by paper and item, and of claims by notebook."""
    parts = (
        (numbers, ["paper", "table_or_figure"], "Published numbers and how they came out."),
        (claims, ["notebook"], "Claims and how they came out."),
    )
    return "\n".join(
        pd.crosstab([table[key] for key in keys], table["verdict"])
        .reset_index()
        .to_latex(index=False, caption=caption, escape=True)
        for table, keys, caption in parts
        if len(table)
    )


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
