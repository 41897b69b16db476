"""How claims of the papers are judged: what they say, numbers by seed, rules, and the floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from companion import frames
from companion.claims import (
    POINT,
    BySeed,
    Claim,
    above,
    alike,
    below,
    differences,
    equal,
    greater,
    on_par,
)
from papers.scaled import MAJORITY

# What a claim says of two sides, or of numbers and a bound: above another method's, or a bound;
# below a bound; at most a point below, or above; within a point; the same.
RULES: dict[str, Callable[..., Claim]] = {
    ">": lambda text, source, a, b: (greater if isinstance(b, Mapping) else above)(
        text, source, a, b
    ),
    "<": below,
    ">=": on_par,
    "<=": lambda text, source, a, b: below(text, source, differences(a, b), POINT),
    "~": alike,
    "==": equal,
}


@cache
def statements() -> dict[tuple[str, str], tuple[str, str]]:
    """Return what is claimed, by paper and name: claim and place, with the words left open."""
    with files("papers").joinpath("claims.csv").open("rb") as file:
        rows = pd.read_csv(file, dtype=str).to_numpy()
    return {(paper, name): (claim, place) for paper, name, claim, place in rows}


def judged(paper: str, rows: Iterable[tuple[Any, ...]], /, **words: object) -> list[Claim]:
    """Test rows of (name, a, rule, b), of which ``RULES`` says what the rules are.

    A name is one of ``statements`` of a paper, whose open ``words`` are given for all rows, or as
    the row's last entry. Sides are numbers by seed, or a bound.
    """
    return [_judged(paper, *row[:4], **{**words, **dict(*row[4:])}) for row in rows]


def _judged(paper: str, name: str, a: Any, rule: str, b: Any, /, **words: object) -> Claim:
    claim, place = (text.format(**words) for text in statements()[paper, name])
    return RULES[rule](claim, place, a, b)


def floor_claims(table: pd.DataFrame, over: str = "", ending: str = "") -> list[Claim]:
    """Test that each method beats the floor on clients' own tests, one claim per method.

    ``table`` has columns method, seed, value and ``over``, at each of whose values there is a floor
    of its own: then a method is judged where its margin is least, seed by seed, so that it has to
    beat the floor everywhere. ``ending`` is what follows a claim's text. None where the floor was
    not run.
    """
    keys = ["seed", *([over] if over else [])]
    floor = table[table["method"] == MAJORITY].groupby(keys)["value"].mean().rename("floor")
    if not len(floor):
        return []
    where = f" at every {over}" if over and table[over].nunique() > 1 else ""
    rows = []
    for method, runs in without_floor(table).groupby("method", sort=False):
        both = runs.join(floor, on=keys).dropna(subset=["value", "floor"]).reset_index(drop=True)
        margin = both["value"] - both["floor"]
        least = both.loc[margin.groupby(both["seed"]).idxmin()]
        sides = frames.by_seed(least), ">", frames.by_seed(least, "floor")
        rows.append(("floor", *sides, {"method": method}))
    return judged("all", rows, where=where, ending=ending)


def without_floor(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the floor's rows, for what is said of methods only."""
    return table[table["method"] != MAJORITY]


def scored(table: pd.DataFrame, column: str = "value", /, **where: Any) -> dict[int, float]:
    """Return a column's mean by seed over the rows at a place: what claims compare.

    ``where`` has a value or several of a column of the table. A row that has no such place, as
    training alone has no clusters, counts wherever it is.
    """
    for name, at in where.items():
        several = isinstance(at, list | tuple | range)
        table = table[table[name].isin(at if several else [at]) | table[name].isna()]
    return frames.by_seed(table, column)


def by(table: pd.DataFrame, column: str = "value", **always: Any) -> Callable[..., BySeed]:
    """Return a function of a method and of where it stands: ``scored`` there, and ``always``."""
    return lambda method, **where: scored(table, column, method=method, **{**always, **where})
