"""Which runs did not train: nothing is concluded from a model that is no better than none.

A run did not train if no evaluation after round 0 is better than round 0, in accuracy on the same
examples; neither did what stands on such a run. Of second stages, which begin with a trained model,
and of first stages of one round, as audits of a message have, nothing is expected.

A run that keeps the state with the least validation loss may have kept the initial model although
it trained: at high rates a model of three times the accuracy can have a larger loss. Such runs
count like all others, and what is said of them tells that their kept model is the initial one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import isnan, nan
from typing import Any

import pandas as pd

from companion.claims import BASELINE, UNTESTED, UNTRAINED, Claim
from companion.sections import Run
from fedlib.algorithms import MajorityClass
from fedrun import Experiment, Result, find_result

ACCURACIES = ("test", "validation", "balanced", "balanced_validation", "global")
COLUMNS = ("method", "seed")
INITIAL = "the kept model is the initial one in {} of {} seeds, selected by NLL"
Runs = Iterable[tuple[Run, Sequence[Result]]]


def trained(result: Result) -> bool:
    """Return whether a run is better after some round than before its first, by any accuracy."""
    one, pairs = result.experiment, list[tuple[float, float]]()
    for metric in {f"{of}_accuracy" for of in ACCURACIES} & {*result.logged}:
        curve = result.curve(metric)
        first = curve.pop(0, nan)
        pairs += [(first, value) for value in curve.values() if not isnan(value - first)]
    exempt = one.first_stage or one.rounds <= 1 or isinstance(one.algorithm, MajorityClass)
    return bool(exempt) or not pairs or any(value > first for first, value in pairs)


def keeps_trained(result: Result) -> bool:
    """Return whether the state that a run kept is another one than the initial model."""
    kept = result.curve("kept_round").values() if "kept_round" in result.logged else ()
    return bool(result.experiment.first_stage) or 0 not in kept


def untrained(runs: Runs) -> pd.DataFrame:
    """Return the runs that did not train, or stand on one: method, seed, and where they stand."""
    return _without(trained, runs)


def initial(runs: Runs) -> pd.DataFrame:
    """Return in the same form the runs whose kept model is the initial one, or that stand on it."""
    return _without(keeps_trained, runs)


def _without(fine: Callable[[Result], bool], runs: Runs) -> pd.DataFrame:
    """Return the runs of which some stage is not ``fine``."""
    given = [(run, result) for run, results in runs for result in results]
    known = {result.experiment.key: result for _, result in given}

    @cache
    def whole(stage: Experiment) -> bool:
        one = known.get(stage.key) or find_result(stage)
        return one is None or fine(one)

    rows = [
        {"method": run.method, "seed": result.experiment.seed, **run.where}
        for run, result in given
        if not all(map(whole, result.experiment.stages))
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*COLUMNS])


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
    judge: Callable[[pd.DataFrame], Sequence[Claim]],
    frame: pd.DataFrame,
    runs: pd.DataFrame,
    initial: pd.DataFrame,
) -> list[Claim]:
    """Return what ``judge`` says of a frame's runs, without those that are untrained (``runs``).

    A claim that hangs on some of them is judged without their seeds; or, where fewer than half of
    the seeds would be left, without the places at which most did not train, as p = 1. So a mean
    over places is one over the same places in every seed, on both of its sides. It tells what is
    left out, and what all runs give. Where nothing is left, or too few seeds, it is `UNTRAINED`.

    A claim that hangs on runs whose kept model is the ``initial`` one tells of how many seeds. If
    these make both of its sides the same in every seed, it is not tested.
    """
    every = [*judge(frame)]
    cut, kept = (_Cut(judge, frame, some) if len(some) else None for some in (runs, initial))
    whole = [cut.sound(claim) for claim in every] if cut else every
    if not kept:
        return whole
    return [kept.noted(claim, was) for claim, was in zip(whole, every, strict=True)]


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
        key, hangs = _key(claim), self.hangs(claim)
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

    def hangs(self, claim: Claim) -> list[int]:
        """Return on which groups of the runs a claim hangs: it is another one without them."""
        key = _key(claim)
        return [i for i, less in enumerate(self.less) if not _same(claim, less.get(key))]

    def noted(self, claim: Claim, was: Claim) -> Claim:
        """Return a claim with how many seeds kept the initial model; as it ``was`` of all runs."""
        seeds = {seed for i in self.hangs(was) for seed in self.runs[i]["seed"]}
        if not seeds or not was.seeds:
            return claim
        told = f"{claim.measured}; {INITIAL.format(len(seeds), was.seeds)}"
        same = claim.seeds and claim.low == claim.high in (claim.least, claim.most)
        return replace(claim, measured=told, verdict=UNTESTED if same else claim.verdict)

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
