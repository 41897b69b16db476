"""How the papers' claims are judged: their texts, numbers by seed, rules, and the baseline."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from companion import frames
from companion.claims import BySeed, Claim, judge, judged_dataset
from papers.published import size
from papers.published import words as table_of
from papers.scaled import MAJORITY


class Numbers(dict[int, float]):
    """Numbers by seed, with those of the baseline at the same place as ``floor``; {} for none."""

    def __init__(self, numbers: BySeed, floor: BySeed) -> None:
        super().__init__(numbers)
        self.floor = floor


def said(
    paper: str, name: str, /, part: str = "", **words: object
) -> tuple[str, str, dict[str, Any]]:
    """Return the text and place of a claim, or of a part of it, and the fields of its `Claim`.

    ``papers/claims.csv`` has the claims: kind, quote, data sets, whether numbers were seen before,
    and whether the claim is about the end of training. The effect according to the paper's numbers
    on the data set that is being judged is `papers.published.size`.

    Args:
        paper, name: of the claim.
        part: the part that is tested.
        words: the words that fill the braces of its text.
    """
    row = table_of("claims.csv", "paper", "name")[paper, name]
    part = part.format(**words)
    about: dict[str, Any] = {field: row[field] for field in ("kind", "quote", "data")}
    about |= {"exploratory": bool(row["exploratory"]), "paper": paper, "name": name, "part": part}
    value, error = size(paper, name, part, judged_dataset())
    about |= {"published": value, "published_se": error}
    text = row["claim"].format(**words) + f": {part}" * bool(part)
    return text, row["place"].format(**words), about


def judged(paper: str, rows: Iterable[tuple[Any, ...]], /, **words: object) -> list[Claim]:
    """Test claims of a paper, given as rows.

    Args:
        paper: the number of the paper.
        rows: (name, a, rule, b) or (name, a, rule, b, words): the name of a claim, both sides
            (numbers by seed, or a bound), and a rule of `companion.claims.RULES`.
        words: fill the braces of all texts, together with those of a row. Some of them are options:
            ``part`` is the part of the claim that is tested; ``methods`` are those that are
            compared; ``here`` is False if the setting cannot show what is claimed; ``floor`` is ""
            if the claim is about methods that are no better than the baseline; ``looks`` and
            ``unit`` are those of `companion.claims.judge`.
    """
    return [_judged(paper, *row[:4], **{**words, **dict(*row[4:])}) for row in rows]


def _judged(
    paper: str, name: str, a: Any, rule: str, b: Any, /, here: bool = True, looks: Any = None,
    unit: str | None = None, methods: Iterable[str] = (), floor: str | None = None, **words: Any,
) -> Claim:  # fmt: skip
    """Test a row of `judged`."""
    claim, place, about = said(paper, name, **words)
    below = None if floor == "" else getattr(a, "floor", None) or None
    about |= {} if unit is None else {"unit": unit}  # an index in [0, 1] has no points
    if table_of("claims.csv", "paper", "name")[paper, name]["ends"]:
        about["methods"] = "; ".join(methods)
    return judge(claim, place, a, b, rule, here=here, floor=below, looks=looks, **about)


def asked(paper: str, of: str) -> list[dict[str, str]]:
    """Return the comparisons of a figure, or of some runs: rows of ``papers/compared.csv``."""
    every = table_of("compared.csv").values()
    return [row for row in every if (row["paper"], row["of"]) == (paper, of)]


def compared(
    paper: str, rows: Iterable[Mapping[str, str]], at: Mapping[str, Callable[..., Any]], /,
    **words: Any,
) -> list[Claim]:  # fmt: skip
    """Test rows of ``papers/compared.csv``: comparisons of a method with another, or with a bound.

    A side is a method and its place, "IFCA; p=high; eps=0", or a bound. A value of a place is a
    number, or one of the ``words``. A row whose sides are the same is left out: both ends of a
    range may be the same number.

    Args:
        paper: the number of the paper.
        rows: the rows.
        at: by what is compared, a function of a method and its place that returns numbers by seed.
        words: fill the braces of claims, together with those of the row and both methods.
    """

    def place(side: str) -> tuple[str, dict[str, Any]]:
        method, *places = side.split("; ")
        where = (place.split("=") for place in places)
        return method, {key: words[of] if of in words else float(of) for key, of in where}

    def numbers(row: Mapping[str, str], method: str, stands: dict[str, Any]) -> Any:
        with suppress(ValueError):
            return float(method)
        return at[row["what"]](method, **stands)

    def filled(row: Mapping[str, str]) -> dict[str, str]:
        return dict(word.split("=", 1) for word in row["words"].split("; ") if word)

    tested = []
    for row in rows:
        a, b = map(place, (row["a"], row["b"]))
        given = {"methods": (a[0], b[0]), **words, **filled(row)}
        if a != b:
            sides = numbers(row, *a), row["rule"], numbers(row, *b)
            tested.append((row["name"].format(**given), *sides, given))
    return judged(paper, tested)


def floor_claims(table: pd.DataFrame, over: str = "", ending: str = "") -> list[Claim]:
    """Test that each method beats the majority-class baseline on clients' own tests.

    There are no claims if the baseline was not run.

    Args:
        table: columns method, seed, value and ``over``.
        over: a column, each of whose values has a baseline of its own. A method is judged where its
            margin is least, by seed, so that it must beat the baseline everywhere; "" for none.
        ending: follows the text of each claim.
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


def whole(
    methods: Collection[str], table: pd.DataFrame, diverged: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the methods whose mean is judged: none as long as one of them is missing.

    Methods that ``diverged`` are not waited for, and are not in the mean.
    """
    found = {*table["method"].unique()}
    there = tuple(m for m in methods if m in found)
    return there if {*methods} <= {*there, *diverged} else ()


def without_floor(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the rows of the majority-class baseline."""
    return table[table["method"] != MAJORITY]


def scored(table: pd.DataFrame, column: str = "value", /, **where: Any) -> dict[int, float]:
    """Return the mean of a column by seed over the rows at a place, which claims compare.

    A row without a value of a column of the place, such as training alone, which has no clusters,
    counts at every place.

    Args:
        table: the scores.
        column: the column.
        where: the value, or several values, of columns of the table.
    """
    for name, at in where.items():
        several = isinstance(at, list | tuple | range)
        table = table[table[name].isin(at if several else [at]) | table[name].isna()]
    return frames.by_seed(table, column)


def by(table: pd.DataFrame, column: str = "value", **always: Any) -> Callable[..., Numbers]:
    """Return a function of a method and its place: `scored` there, given also ``always``."""

    def at(method: str, **where: Any) -> Numbers:
        place = {**always, **where}
        floor = scored(table, method=MAJORITY, **place) if column == "value" else {}
        return Numbers(scored(table, column, method=method, **place), floor)

    return at
