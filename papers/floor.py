"""What papers compare with: methods under one name, the floor, and claims on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from companion import frames
from companion.claims import POINT, Claim, above, alike, below, differences, equal, greater, on_par
from fedlib.algorithms import CommonestLabel
from fedlib.runs import Experiment
from fedlib.tasks import Task

FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"
MAJORITY = "Commonest label"
ONCE: dict[str, Any] = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}  # what trains at home
NOT_THEIRS = "not in the paper (floor)"
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


def floor(task: Task) -> Experiment:
    """Return what always saying its commonest label is worth to a client: nothing is trained."""
    return Experiment(task, CommonestLabel(), **ONCE)


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
    claims = []
    for method, rows in without_floor(table).groupby("method", sort=False):
        both = rows.join(floor, on=keys).dropna(subset=["value", "floor"]).reset_index(drop=True)
        margin = both["value"] - both["floor"]
        least = both.loc[margin.groupby(both["seed"]).idxmin()]
        text = f"{method} beats always the commonest label{where}{ending}"
        sides = frames.by_seed(least), frames.by_seed(least, "floor")
        claims.append(greater(text, NOT_THEIRS, *sides))
    return claims


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


def comparing(table: pd.DataFrame, column: str = "value", **always: Any) -> Callable[..., Claim]:
    """Return a function that tests a claim about method ``a`` and method ``b`` of a table.

    It is given the claim's text and source, the methods, and where they stand: at most two mappings
    of a column to a value or several, for both, or for ``a`` and for ``b``. They add to ``always``.
    A method that has no such place counts wherever it is. Scores are means of ``column`` by seed,
    over all else; ``rule`` judges them.
    """

    def claim(
        text: str, source: str, a: str, b: str, *where: Mapping[str, Any], rule: Any = greater
    ) -> Claim:
        first, second = where if len(where) == 2 else (where or ({},)) * 2
        sides = ({"method": m, **always, **at} for m, at in ((a, first), (b, second)))
        return rule(text, source, *(scored(table, column, **side) for side in sides))

    return claim


def judged(*rows: tuple[str, str, Any, str, Any]) -> list[Claim]:
    """Test rows of (claim, source, a, rule, b), of which ``RULES`` says what the rules are.

    Sides are numbers by seed, or a bound.
    """
    return [RULES[rule](text, source, a, b) for text, source, a, rule, b in rows]
