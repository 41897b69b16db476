"""The scorecard as one page that needs nothing else, and its words."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from companion import plotting
from companion.claims import (
    CONTRADICTED,
    EQUAL,
    HOLDS,
    MARKS,
    OPEN,
    TRAINING,
    UNTESTED,
    headlines,
    shown,
)
from companion.inference import DISCOVERY, LEAST_SEEDS
from companion.trained import INITIAL

POINTS = 2.0  # percentage points: the margin of agreement
AGREES, DIFFERS, IMPRECISE, OTHER = "agrees", "differs", "too imprecise", "other scale"
OWN = (AGREES, DIFFERS, IMPRECISE)  # what can be told of a run at the paper's own scale
NEVER, ABSENT, NO, DIVERGED = "not run", "data not at hand", "not comparable", "diverged"
_LIMITS = {"points": POINTS, "seeds": LEAST_SEEDS}
_WORDS = pd.read_csv(Path(__file__).with_name("verdicts.csv")).to_numpy()
VERDICTS = {verdict: text.format(**_LIMITS) for verdict, text in _WORDS}
CLASSES = dict.fromkeys((HOLDS, AGREES), "good")
CLASSES |= dict.fromkeys((CONTRADICTED, DIFFERS, DIVERGED), "bad")


def page(
    numbers: pd.DataFrame,
    orders: pd.DataFrame,
    own: pd.DataFrame,
    answers: pd.DataFrame,
    tests: pd.DataFrame,
) -> str:
    """Return the scorecard as HTML: what came out, every claim and test, every published number.

    Columns sort by a click and a box filters rows; links go to the notebook that shows a number.
    `python -m fedrun show KEY` shows the stored run behind it.
    """
    once = numbers[~numbers["repeats"] & numbers["why_not"].eq("")]
    page = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    return page.substitute(
        summary=_summary(once, answers),
        rules=_list({_verdict(verdict): text for verdict, text in VERDICTS.items()}),
        by_paper=_counts(titled(once), "paper"),
        orders=_orders(orders),
        own=_table(titled(own).round(1)),
        discovery=f"{DISCOVERY:g}",
        answers=_answers(answers),
        marks=_list(MARKS),
        claims=_claims(tests),
        numbers=_numbers(numbers),
    )


def titled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with titles in the place of what code calls papers, sections and data sets."""
    known = {name: rows[name].map(plotting.title) for name in ("section", "data") if name in rows}
    return rows.assign(paper=rows["paper"].str[:3].map(plotting.title), **known)


def by_table(numbers: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Return the measured numbers of each item as `plotting.dumbbells` draws them."""
    measured = numbers[numbers["seeds"].gt(0) & numbers["value"].notna() & ~numbers["repeats"]]
    found = {}
    for (paper, item), rows in measured.groupby(["paper", "table_or_figure"], sort=False):
        places = rows["group"].str.split(", ", expand=True)
        differing = places.loc[:, places.nunique().gt(1)].fillna("")
        names = [", ".join(of) for of in differing.assign(method=rows["method"]).to_numpy()]
        found[f"{plotting.title(str(paper)[:3])}, {item}"] = rows.assign(name=names)
    return found


def _summary(numbers: pd.DataFrame, claims: pd.DataFrame) -> str:
    """Return in a few lines what was reproduced, what was not, and what nobody can tell yet."""
    rows = (
        ("Reproduced", (AGREES,), (HOLDS,)),
        ("Not reproduced", (DIFFERS, DIVERGED), (CONTRADICTED,)),
        ("No difference of a point", (), (EQUAL,)),
        ("Nobody can tell yet", (IMPRECISE, OTHER, NEVER, ABSENT), (OPEN, TRAINING, UNTESTED)),
    )
    parts = []
    for head, of_numbers, of_claims in rows:
        some = claims[claims["verdict"].isin(of_claims)]
        count = int(numbers["verdict"].isin(of_numbers).sum())
        kinds = ", ".join(of_numbers)
        told = f", {count} of {len(numbers)} published numbers ({kinds})" if kinds else ""
        items = "".join(
            f"<li>{escape(str(of['claim']))} <i>({escape(str(of['place']))})</i></li>"
            for of in some.to_dict("records")
        )
        parts.append(
            f"<details><summary><b>{head}</b>: {len(some)} of {len(claims)} claims of the papers"
            f"{told}</summary><ul>{items}</ul></details>"
        )
    return "".join(parts)


def _list(texts: Mapping[str, str]) -> str:
    """Return what words mean as the entries of a list."""
    return "".join(f"<li><b>{word}</b>: {escape(text)}</li>" for word, text in texts.items())


def _counts(rows: pd.DataFrame, by: str) -> str:
    if not len(rows):
        return "<p>None yet: run <code>make figures SCALE=standard</code>.</p>"
    counts = pd.crosstab(rows[by], rows["verdict"].map(_verdict), margins=True, margins_name="all")
    return _table(counts.rename_axis(columns=None).reset_index())


def _orders(orders: pd.DataFrame) -> str:
    return _table(titled(orders).round(3).astype(str).map(escape), "orders") if len(orders) else ""


def _answers(answers: pd.DataFrame) -> str:
    """Return the claims of the papers, one verdict each, with the sentence that is tested."""
    columns = headlines(answers).astype(str).map(escape)
    columns["verdict"] = columns["verdict"].map(_verdict)
    columns.insert(0, "paper", answers["paper"].map(plotting.title).map(escape))
    columns["the paper's words"] = (answers["quote"] + " (" + answers["place"] + ")").map(escape)
    columns["notebook"] = answers["notebook"].fillna("").map(_notebook)
    return _table(columns, "answers")


def _claims(claims: pd.DataFrame) -> str:
    columns = shown(claims).astype(str).map(escape)
    columns["verdict"] = columns["verdict"].map(_verdict)
    columns.insert(0, "notebook", claims["notebook"].map(_notebook))  # rows by their index
    return _table(columns, "claims")


def _numbers(numbers: pd.DataFrame) -> str:
    names = ["paper", "table_or_figure", "dataset", "setting", "method", "metric"]
    texts = numbers[names].map(escape).set_axis(["paper", "item", "data", *names[3:]], axis=1)
    texts = titled(texts)
    columns = {"published": "value", "floor": "floor", "measured": "mean", "gap": "gap"}
    for name, column in columns.items():
        texts[name] = numbers[column].map("{:.4g}".format, na_action="ignore")
    ends = zip(numbers["low"], numbers["high"], strict=True)
    texts["95% interval"] = ["" if pd.isna(a) else f"{a:.3g} to {b:.3g}" for a, b in ends]
    texts["seeds"] = numbers["seeds"].astype(int).astype(str).replace("0", "")
    texts["scale"] = numbers["scale"]
    texts["run"] = [_run(*run) for run in numbers[["key", "device", "commit"]].to_numpy()]
    texts["notebook"] = numbers["notebook"].map(_notebook)
    why = numbers["why_not"].map(lambda text: f": {escape(text)}" if text else "")
    again = numbers["repeats"].map({True: " (printed before)", False: ""})
    counts = numbers[["initial", "seeds"]].astype(int).to_numpy()
    initial = [f"; {INITIAL.format(*of)}" if of[0] else "" for of in counts]
    verdicts = numbers["verdict"].map(_verdict) + why + again + initial
    return _table(texts.assign(verdict=verdicts), "numbers")


def _table(shown: pd.DataFrame, name: str = "") -> str:
    """Return a table of HTML; one that has a name can be sorted, and filtered by a box above it."""
    how: Any = {"index": False, "escape": False, "border": 0, "justify": "left", "na_rep": ""}
    with pd.option_context("display.max_colwidth", None):
        table = f'<div class="wide">{shown.to_html(table_id=name or None, **how)}</div>'
    box = f'<input type="search" data-for="{name}" placeholder="show rows with all these words">'
    return box + table if name else table


def _verdict(verdict: str) -> str:
    return f'<span class="{CLASSES.get(verdict, "open")}">{escape(verdict)}</span>'


def _notebook(name: str) -> str:
    return f'<a href="../notebooks/{escape(name)}.ipynb">{escape(name)}</a>' if name else ""


def _run(key: str, device: str, commit: str) -> str:
    """Return the key of a run, which tells where and by which code it was trained."""
    made = escape(f"{device}, commit {commit}")
    return f'<span title="{made}">{escape(key)}</span>' if key else ""
