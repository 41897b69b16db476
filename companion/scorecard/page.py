"""The scorecard as one page that needs nothing else, and as LaTeX tables."""

from __future__ import annotations

from html import escape
from importlib.resources import files

import pandas as pd

from companion.claims import FAILS, HOLDS
from companion.scorecard.judge import INSIDE, NOT, ORDER, VERDICTS

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
{_filter("claims")}{_claims(claims)}
<h2>Every published number</h2><p>In the units of the paper, mostly percent. The floor of a number
on clients' own tests is what always saying a client's commonest label has on the paper's own
partition: what lies below it has learned less than one look at the labels tells.</p>
{_filter("numbers")}{_numbers(numbers)}
<script>{_asset("page.js")}</script></body></html>
"""


def latex(numbers: pd.DataFrame, claims: pd.DataFrame) -> str:
    """Return two tables in LaTeX: verdicts by paper and item, and of claims by notebook."""
    parts = (
        (numbers, ["paper", "table_or_figure"], "Published numbers and how they came out."),
        (claims, ["notebook"], "Claims and how they came out."),
    )
    return "\n".join(
        table.groupby([*keys, "verdict"])
        .size()
        .unstack(fill_value=0)
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
    counts = table.groupby([by, "verdict"]).size().unstack(fill_value=0)
    counts.loc["all"] = counts.sum()
    head = "".join(f"<th>{_verdict(v)}</th>" for v in counts.columns)
    rows = "".join(
        f"<tr><td>{escape(str(name))}</td>"
        + "".join(f'<td class="number">{count}</td>' for count in row)
        + "</tr>"
        for name, row in zip(counts.index, counts.to_numpy(), strict=True)
    )
    return f"<table><thead><tr><th>{by}</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _claims(claims: pd.DataFrame) -> str:
    rows = [
        [
            _notebook(row["notebook"]),
            escape(str(row["tested on"])),
            escape(str(row["claim"])),
            escape(str(row["source"])),
            escape(str(row["measured"])),
            str(row["seeds"]),
            _verdict(str(row["verdict"])) + ("" if _clear(row["clear"]) else " (a close call)"),
        ]
        for _, row in claims.iterrows()
    ]
    heads = ["notebook", "tested on", "claim", "source", "measured", "seeds", "verdict"]
    return _table("claims", heads, rows, {"seeds"})


def _clear(value: object) -> bool:
    return str(value) == "True"


def _numbers(numbers: pd.DataFrame) -> str:
    rows = [
        [
            escape(row["paper"][:3]),
            escape(row["table_or_figure"]),
            escape(row["dataset"]),
            escape(row["setting"]),
            escape(row["method"]),
            escape(row["metric"]),
            _number(row["value"]),
            _number(row["floor"]),
            _number(row["mean"]),
            _interval(row["low"], row["high"]),
            str(int(row["seeds"])) if row["seeds"] else "",
            escape(row["scale"]),
            _run(row["key"], row["file"], row["device"], row["commit"]),
            _notebook(row["notebook"]),
            _verdict(row["verdict"]) + (f": {escape(row['why_not'])}" if row["why_not"] else ""),
        ]
        for _, row in numbers.iterrows()
    ]
    heads = ["paper", "item", "data", "setting", "method", "metric", "published", "floor"]
    heads += ["measured", "95% interval", "seeds", "scale", "run", "notebook", "verdict"]
    return _table("numbers", heads, rows, {"published", "floor", "measured", "seeds"})


def _table(name: str, heads: list[str], rows: list[list[str]], numeric: set[str]) -> str:
    kinds = ["number" if h in numeric else "text" for h in heads]
    head = "".join(f'<th data-kind="{k}">{h}</th>' for h, k in zip(heads, kinds, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f'<td class="{k}">{cell}</td>' for cell, k in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<table class="sortable" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _filter(name: str) -> str:
    return f'<input type="search" data-for="{name}" placeholder="show rows with all these words">'


def _verdict(verdict: str) -> str:
    return f'<span style="color:{COLOURS.get(verdict, "inherit")}">{escape(verdict)}</span>'


def _notebook(name: str) -> str:
    return f'<a href="../notebooks/{escape(name)}.ipynb">{escape(name)}</a>' if name else ""


def _run(key: str, file: str, device: str, commit: str) -> str:
    """Return the key of a run, with where and from which code it comes; a link to its file."""
    if not key:
        return ""
    said = escape(f"{device}, commit {commit}")
    if not file:
        return f'<span title="{said}">{escape(key[:8])}</span>'
    return f'<a href="../results/{escape(file)}" title="{said}">{escape(key[:8])}</a>'


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.4g}"


def _interval(low: float, high: float) -> str:
    return "" if pd.isna(low) else f"{low:.3g} to {high:.3g}"
