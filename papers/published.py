"""The data of the papers in tables: published numbers, claims, texts, and the campaign."""

import re
import tomllib
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


@cache
def words(name: str, *index: str) -> dict[Any, dict[str, str]]:
    """Return a table of texts in this folder: rows by the ``index`` columns, or by number.

    Args:
        name: the name of the CSV file.
        index: the columns that identify a row.
    """
    rows = pd.read_csv(HERE / name, dtype=str, keep_default_na=False)
    by = rows.set_index([*index], drop=False) if index else rows
    return by.to_dict("index")  # type: ignore[return-value]


def tables(*name: str) -> dict[str, Any]:
    """Return the tables of a TOML file in this folder, given the parts of its path."""
    return tomllib.loads(HERE.joinpath(*name).read_text("utf-8"))


@cache
def _all_published() -> pd.DataFrame:
    rows = pd.read_csv(HERE / "published.csv").fillna({"why_not": ""}).assign(row=lambda t: t.index)
    runs = rows["setting"].str.extract(r"(?:trials=|mean over )(\d+)")[0].astype(float)
    rows["se"] = rows["std"] / np.sqrt(runs)
    at = rows["setting"].str.extract(r"(S=\d+)")[0].fillna(rows["setting"])
    numbers = rows[["paper", "dataset", "method", "metric", "value"]].assign(at=at).astype(str)
    first = rows["row"].groupby([numbers[c] for c in numbers]).transform("first")
    rows["repeats"] = first.where(rows["value"].notna() & first.ne(rows["row"]), -1)
    return rows


def published(paper: str = "", item: str = "") -> pd.DataFrame:
    """Return published numbers, one per row: paper, table_or_figure, dataset, setting, ..., value.

    Args:
        paper: the number of a paper ("000"); "" for all.
        item: the beginning of a table or figure ("Table 1"); "" for all.

    Returns:
        The rows of ``papers/published.csv``, with NaN for values that the paper's text does not
        give. ``why_not`` says why a number is compared with no run, "" if it is compared. ``row``
        is the number's position in the file, which identifies it. ``repeats`` is the row of the
        same number in an earlier table (004's Tables 1 and 2 share their baselines), -1 for none.
        ``se`` is the standard error of a number that is printed with a deviation over runs.
    """
    rows = _all_published()
    chosen = rows["paper"].str.startswith(paper) & rows["table_or_figure"].str.startswith(item)
    return rows[chosen].reset_index(drop=True)


def floors(paper: str = "") -> pd.DataFrame:
    """Return the accuracy of the majority-class baseline on the papers' partitions.

    It follows from labels alone, as ``tests/papers/test_floor.py`` counts.

    Args:
        paper: the number of a paper; "" for all.

    Returns:
        Columns paper, dataset, at (the p or S of the partition) and floor, a fraction.
    """
    rows = pd.read_csv(HERE / "floors.csv", dtype={"paper": str})
    return rows[rows["paper"].str.startswith(paper)].reset_index(drop=True)


@cache
def _values() -> tuple[dict[str, float], dict[str, float]]:
    """Return the published numbers and their squared standard errors, by "r" and their row."""
    rows = published().set_index("row")
    errors = rows["se"] ** 2
    return {f"r{i}": v for i, v in rows["value"].items()}, {f"r{i}": v for i, v in errors.items()}


@cache
def _sizes() -> dict[tuple[str, str, str, str], str]:
    rows = pd.read_csv(HERE / "sizes.csv", dtype=str, keep_default_na=False)
    keys = rows[["paper", "name", "part", "data"]].itertuples(index=False, name=None)
    return dict(zip(keys, rows["rows"], strict=True))


def size(paper: str, name: str, part: str = "", dataset: str = "") -> tuple[float, float]:
    """Return the effect of a claim according to the paper's numbers, and its standard error.

    Both are NaN if the paper gives no such numbers. ``papers/sizes.csv`` has the formulas: in "mean
    of r15-r14, r19-r18", r15 is row 15 of ``papers/published.csv``. The standard error is that of a
    mean of differences of independent numbers; it is NaN unless all have a deviation over runs.
    """
    known = _sizes()
    formula = known.get((paper, name, part, dataset)) or known.get((paper, name, part, ""), "")
    if not formula:
        return nan, nan
    values, errors = _values()
    terms = formula.removeprefix("mean of ").split(", ")
    found: list[Any] = [pd.eval(term, local_dict=values, engine="python") for term in terms]
    total = sum(map(float, found))
    variance = sum(errors[row] for row in re.findall(r"r\d+", formula))
    return total / len(terms), float(np.sqrt(variance)) / len(terms)


def claims() -> pd.DataFrame:
    """Return the claims of the papers that have a verdict: rows of ``papers/claims.csv``.

    Our own claims, audits, and exploratory claims are left out.
    """
    rows = pd.read_csv(HERE / "claims.csv", dtype=str, keep_default_na=False)
    theirs = rows["kind"].eq("paper") & rows["exploratory"].eq("")
    return rows.loc[theirs, ["paper", "name", "claim", "place", "quote", "data"]]
