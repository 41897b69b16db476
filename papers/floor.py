"""What papers compare with: methods under one name, the floor, and claims on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from companion import frames
from companion.claims import Claim, greater
from fedlib.algorithms import CommonestLabel
from fedlib.runs import Experiment
from fedlib.tasks import Task

FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"
MAJORITY = "Commonest label"
NOT_THEIRS = "not in the paper (floor)"
Compare = Callable[..., Claim]


def floor(task: Task) -> Experiment:
    """Return what always saying its commonest label is worth to a client: nothing is trained."""
    return Experiment(task, CommonestLabel(), 1, cohort=1.0, evaluate_every=1)


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


def comparing(table: pd.DataFrame, column: str = "value", **always: Any) -> Compare:
    """Return a function that tests a claim about method ``a`` and method ``b`` of a table.

    It is given the claim's text and source, the methods, and where they stand: at most two mappings
    of a column to a value or several, for both, or for ``a`` and for ``b``. They add to ``always``.
    A method that has no such place counts wherever it is. Scores are means of ``column`` by seed,
    over all else; ``rule`` judges them.
    """

    def score(method: str, where: Mapping[str, Any]) -> dict[int, float]:
        rows = table[table["method"] == method]
        for name, at in where.items():  # a value or several
            here = rows[name].isin(at if isinstance(at, list | range) else [at])
            rows = rows[here | rows[name].isna()]
        return frames.by_seed(rows, column)

    def claim(
        text: str, source: str, a: str, b: str, *where: Mapping[str, Any], rule: Any = greater
    ) -> Claim:
        first, second = where if len(where) == 2 else (where or ({},)) * 2
        sides = (score(m, {**always, **at}) for m, at in ((a, first), (b, second)))
        return rule(text, source, *sides)

    return claim
