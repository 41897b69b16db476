"""What is kept as data: the papers' numbers, words, settings, and the campaign."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent


@cache
def words(name: str, *index: str) -> dict[Any, dict[str, str]]:
    """Return a table of words that lies next to this file: its rows by columns, or by number."""
    rows = pd.read_csv(HERE / name, dtype=str, keep_default_na=False)
    by = rows.set_index([*index], drop=False) if index else rows
    return by.to_dict("index")  # type: ignore[return-value]


def tables(*name: str) -> dict[str, Any]:
    """Return the tables of a TOML file in this folder, by the parts of its name."""
    return tomllib.loads(HERE.joinpath(*name).read_text("utf-8"))


def published(paper: str = "", item: str = "") -> pd.DataFrame:
    """Return published numbers, one per row: paper, table_or_figure, dataset, setting, ..., value.

    ``why_not`` says why a number is compared with no run, "" where it is. The last columns are
    ``row``, a number's place in the file, which names it, and ``repeats``, the row of the same
    number in an earlier table, as 004's Tables 1 and 2 share their baselines; -1 of a number that
    is printed for the first time.

    ``paper`` is the number of a seed ("000") and ``item`` the beginning of a table or figure
    ("Table 1"); empty is all. Values that the paper's text does not give are missing (NaN).
    """
    rows = pd.read_csv(HERE / "published.csv").fillna({"why_not": ""}).assign(row=lambda t: t.index)
    at = rows["setting"].str.extract(r"(S=\d+)")[0].fillna(rows["setting"])
    numbers = rows[["paper", "dataset", "method", "metric", "value"]].assign(at=at).astype(str)
    first = rows["row"].groupby([numbers[c] for c in numbers]).transform("first")
    rows["repeats"] = first.where(rows["value"].notna() & first.ne(rows["row"]), -1)
    chosen = rows["paper"].str.startswith(paper) & rows["table_or_figure"].str.startswith(item)
    return rows[chosen].reset_index(drop=True)


def floors(paper: str = "") -> pd.DataFrame:
    """Return the accuracy of always saying a client's commonest label, on the papers' partitions.

    Columns paper, dataset, at (the p or S of the partition) and floor, a fraction. They follow
    from labels alone, as ``tests/papers/test_floor.py`` counts; ``paper`` "" is all.
    """
    rows = pd.read_csv(HERE / "floors.csv", dtype={"paper": str})
    return rows[rows["paper"].str.startswith(paper)].reset_index(drop=True)
