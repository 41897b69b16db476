"""Which runs did not train: nothing is concluded from a model that is no better than none.

A run is untrained if it kept the model that it began with (round 0), if it ended no better than at
its first evaluation, or no better than a constant: than the majority class on the clients' own
tests and than chance on those of all classes. So is what stands on such a run. Of first stages that
train for one round only, as audits of a message do, nothing is expected.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd

from companion.claims import BARELY, BASELINE, UNTESTED, UNTRAINED, Claim
from companion.sections import Run
from fedlib import data
from fedlib.algorithms import MajorityClass
from fedrun import Experiment, Result, find_result

KEPT, FIRST = "kept round 0", "no better than its first evaluation"
CONSTANT = "no better than a constant"
OWN, OTHERS = "test_accuracy", ("balanced_accuracy", "global_accuracy")
COLUMNS = ("method", "seed", "why")


def untrained(runs: Iterable[tuple[Run, Sequence[Result]]]) -> pd.DataFrame:
    """Return the runs that did not train: method, seed, where they stand, and why."""
    given = [(run, result) for run, results in runs for result in results]
    known = {result.experiment.key: result for _, result in given}
    floors = {
        (r.experiment.task, r.experiment.seed): r.final(OWN)
        for _, r in given
        if isinstance(r.experiment.algorithm, MajorityClass)
    }

    @cache
    def why(stage: Experiment) -> str:
        one = known.get(stage.key) or find_result(stage)
        return why_untrained(one, floors.get((stage.task, stage.seed), nan)) if one else ""

    rows = [
        {"method": run.method, "seed": result.experiment.seed, **run.where, "why": reason}
        for run, result in given
        if (reason := next(filter(None, map(why, result.experiment.stages)), ""))
    ]
    return pd.DataFrame(rows, columns=[*{**dict.fromkeys(COLUMNS), **(rows or [{}])[0]}])


def why_untrained(result: Result, floor: float = nan) -> str:
    """Return why a run counts as untrained, by its own stored metrics; "" if it does not.

    ``floor`` is the accuracy of the majority class on the same clients' own tests, NaN if unknown.
    """
    one, logged = result.experiment, result.logged
    if "kept_round" in logged and [*result.curve("kept_round").values()][-1] == 0:
        return KEPT
    if one.first_stage or one.rounds <= 1 or isinstance(one.algorithm, MajorityClass):
        return ""
    curves = {metric: result.curve(metric) for metric in (OWN, *OTHERS) if metric in logged}
    ends = dict[str, float]()
    for metric in curves:
        with suppress(ValueError):  # not logged of the round that was kept
            ends[metric] = result.final(metric)
    ends = {metric: value for metric, value in ends.items() if not np.isnan(value)}
    if ends and all(value <= curves[metric].get(0, -inf) for metric, value in ends.items()):
        return FIRST
    chance = 1 / data.form(one.task.dataset)[1] + BARELY
    others = [value <= chance for metric, value in ends.items() if metric != OWN]
    own = [ends[OWN] <= floor + BARELY] if OWN in ends and not np.isnan(floor) else []
    return CONSTANT if [*others, *own] and all([*others, *own]) else ""


def of(rows: pd.DataFrame, runs: pd.DataFrame, *, anybody: bool = False) -> pd.Series:
    """Return which rows are of some ``runs``; or of ``anybody`` at their seeds and places.

    A row that has no such place, as training alone has no clusters, stands at all of them.
    """
    found = pd.Series(False, rows.index)
    for run, place in zip(runs.to_dict("records"), _places(rows, runs), strict=True):
        mine = rows["method"].eq(run["method"]) | anybody
        found |= rows["seed"].eq(run["seed"]) & mine & _stands(rows, place, anybody)
    return found


def _places(rows: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return where runs stand, by columns that the ``rows`` have."""
    names = [c for c in runs.columns if c in rows and c not in COLUMNS]
    every = runs[names].to_dict("records")
    return [{str(c): at for c, at in place.items() if not pd.isna(at)} for place in every]


def _stands(rows: pd.DataFrame, place: Mapping[str, Any], anywhere: bool = True) -> pd.Series:
    """Return which rows stand at a place; those that stand nowhere do too if they do ``anywhere``.

    Training alone has no clusters, for one.
    """
    here = pd.Series(True, rows.index)
    for name, at in place.items():
        here &= rows[name].eq(at) | (rows[name].isna() & anywhere)
    return here


def sound(
    judge: Callable[[pd.DataFrame], Sequence[Claim]], frame: pd.DataFrame, runs: pd.DataFrame
) -> list[Claim]:
    """Return what ``judge`` says of a frame's runs, without those that are untrained (``runs``).

    A claim that hangs on some of them is judged without their seeds; or, where fewer than half of
    the seeds would be left, without the places at which most did not train, as p = 1. So a mean
    over places is one over the same places in every seed, on both of its sides. It tells what is
    left out, and what all runs give. Where nothing is left, or too few seeds, it is `UNTRAINED`.
    """
    every = [*judge(frame)]
    if not len(runs):
        return every
    cut = _Cut(judge, frame, runs)
    return [cut.sound(claim) for claim in every]


class _Cut:
    """The claims of a frame without some of its runs, each judged once."""

    def __init__(
        self,
        judge: Callable[[pd.DataFrame], Sequence[Claim]],
        frame: pd.DataFrame,
        runs: pd.DataFrame,
    ) -> None:
        self.judge, self.frame, self.seeds = judge, frame, {*frame["seed"]}
        places = pd.Series([tuple(p.items()) for p in _places(frame, runs)], runs.index)
        # Those at which most seeds failed first: they are left out first.
        groups = [some for _, some in runs.groupby(places, sort=False)]
        self.runs = sorted(groups, key=lambda some: -some["seed"].nunique())
        self.less = [self._claims(~of(frame, some)) for some in self.runs]
        self.judged = cache(self._without)

    def sound(self, claim: Claim) -> Claim:
        """Return a claim as it is without the runs on which it hangs; itself if there are none."""
        key = _key(claim)
        hangs = [i for i, less in enumerate(self.less) if not _same(claim, less.get(key))]
        if not hangs or (claim.verdict == UNTESTED and not claim.seeds):
            return claim
        who = ", ".join(dict.fromkeys(m for i in hangs for m in self.runs[i]["method"]))
        # What is claimed of every place does not hold where it was not tried.
        plans = [] if claim.place == BASELINE else self._plans(hangs)
        for gone, seeds in plans:
            cut = self.judged(tuple(gone), seeds).get(key)
            if cut is not None and cut.verdict != UNTESTED:
                words = [_in_words(self._place(i)) for i in gone]
                words += [f"{len(seeds)} of {claim.seeds} seeds"] * bool(seeds)
                left = f"left out, as {who} did not train there: {', '.join(words)}"
                return replace(cut, measured=f"{cut.measured}; {left}; all runs: {_number(claim)}")
        blank: dict[str, Any] = dict.fromkeys(("effect", "low", "high", "detects", "p"), nan)
        blank |= {"needed": 0, "values": "", "clear": True}
        left = f"without runs that trained: of {who} some did not"
        return replace(claim, verdict=UNTRAINED, measured=left, **blank)

    def _plans(self, hangs: Sequence[int]) -> list[tuple[list[int], frozenset[int]]]:
        """Return which places to leave out, and which seeds: the best way first."""
        plans = [
            ([*hangs[:k]], frozenset(int(s) for i in hangs[k:] for s in self.runs[i]["seed"]))
            for k in range(len(hangs) + 1)
        ]
        return sorted(plans, key=lambda plan: 2 * len(self.seeds - plan[1]) < len(self.seeds))

    def _without(self, places: Sequence[int], seeds: Collection[int]) -> Mapping[Any, Claim]:
        kept = ~self.frame["seed"].isin(seeds)
        for i in places:
            kept &= ~_stands(self.frame, self._place(i))
        return self._claims(kept)

    def _place(self, i: int) -> dict[str, Any]:
        return _places(self.frame, self.runs[i].head(1))[0]

    def _claims(self, kept: pd.Series) -> Mapping[tuple[str, str], Claim]:
        """Return the claims of a part of the frame, none where it lacks what they speak of."""
        with suppress(LookupError, ValueError):
            return {_key(claim): claim for claim in self.judge(self.frame[kept])}
        return {}


def _key(claim: Claim) -> tuple[str, str]:
    return claim.text, claim.place


def _same(one: Claim, other: Claim | None) -> bool:
    return other is not None and (one.values, one.measured) == (other.values, other.measured)


def _in_words(place: Mapping[str, Any]) -> str:
    """Return a place as "p = 1", what follows the first of its names in brackets."""
    first, *rest = (f"{name} = {at:g}" for name, at in place.items())
    return f"{first} ({', '.join(rest)})" if rest else first


def _number(claim: Claim) -> str:
    """Return what a claim tests, with its interval."""
    numbers = (claim.effect, claim.low, claim.high)
    mean, low, high = (f"{v:+.1f}" if claim.unit else f"{v:.3f}" for v in numbers)
    return f"{mean} [{low}, {high}]"
