"""Which runs did not train, which kept their initial model, and which were still training.

A run did not train if no evaluation after round 0 is better than round 0, in accuracy on the same
examples; neither did what stands on such a run. Of second stages, which begin with a trained model,
and of first stages of one round, as audits of a message have, nothing is expected.

A run that keeps the state with the least validation loss may have kept the initial model although
it trained: at high rates a model of three times the accuracy can have a larger loss. Such runs
count like all others: no seed is left out for its outcome. What is said of them tells that they did
not train, or that their kept model is the initial one.

A claim about where training ends is judged where all curves that it compares have stopped rising.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import isnan, nan
from typing import Any

import pandas as pd

from companion.claims import UNTESTED, Claim
from companion.sections import Run
from fedlib.algorithms import MajorityClass
from fedrun import Experiment, Result, find_result

ACCURACIES = ("test", "validation", "balanced", "balanced_validation", "global")
COLUMNS = ("method", "seed")
INITIAL = "the kept model is the initial one in {} of {} seeds, selected by NLL"
UNTRAINED = "did not train in {} of {} seeds"
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


def noted(
    judge: Callable[[pd.DataFrame], Sequence[Claim]],
    frame: pd.DataFrame,
    marked: Mapping[str, pd.DataFrame],
) -> list[Claim]:
    """Return what ``judge`` says of a frame, with a note where a claim hangs on ``marked`` runs.

    All seeds count. ``marked`` are runs by the words that say what they are, with places for how
    many seeds of how many. A claim hangs on the runs at a place if it is another one without them;
    one of two sides that are the same model in every seed is not tested.
    """
    every = [*judge(frame)]
    for words, runs in marked.items():
        places = pd.Series([tuple(p.items()) for p in _places(frame, runs)], runs.index)
        hangs: list[set[int]] = [set() for _ in every]
        for _, some in runs.groupby(places, sort=False):
            less = _claims(judge, frame[~of(frame, some)])
            for claim, seeds in zip(every, hangs, strict=True):
                other = less.get((claim.text, claim.place))
                if other is None or other.values != claim.values:
                    seeds |= {*some["seed"]}
        every = [_note(c, words, len(s)) if s else c for c, s in zip(every, hangs, strict=True)]
    return every


def _note(claim: Claim, words: str, seeds: int) -> Claim:
    if not claim.seeds:
        return claim
    told = f"{claim.measured}; {words.format(seeds, claim.seeds)}"
    same = claim.low == claim.high in (claim.least, claim.most)
    return replace(claim, measured=told, verdict=UNTESTED if same else claim.verdict)


def _claims(
    judge: Callable[[pd.DataFrame], Sequence[Claim]], frame: pd.DataFrame
) -> dict[tuple[str, str], Claim]:
    """Return the claims of a part of a frame, none where it lacks what they speak of."""
    with suppress(LookupError, ValueError):
        return {(claim.text, claim.place): claim for claim in judge(frame)}
    return {}


def rising(runs: Runs) -> dict[str, float]:
    """Return by how much the accuracy of each method still rises, mean over its runs.

    That is the mean over the last quarter of the rounds minus the mean over the quarter before, of
    the stage of a run of which it is most. A method without such a curve is left out.
    """
    given = [(run, result) for run, results in runs for result in results]
    known = {result.experiment.key: result for _, result in given}
    found, rises = dict[str, list[float]](), dict[str, float]()
    for run, result in given:
        for stage in result.experiment.stages:
            one = known.get(stage.key) or find_result(stage)
            if stage.key not in rises and one is not None:
                rises[stage.key] = _rise(one)
        there = [rises[s.key] for s in result.experiment.stages if not isnan(rises.get(s.key, nan))]
        if there:
            found.setdefault(run.method, []).append(max(there))
    return {method: sum(of) / len(of) for method, of in found.items()}


def _rise(result: Result) -> float:
    """Return how much the accuracy of a run rises from the third to the last quarter; or NaN."""
    known = [f"{name}_accuracy" for name in ACCURACIES if f"{name}_accuracy" in result.logged]
    course = result.curve(known[0]) if known else {}
    last = max(course, default=0)
    late = [v for t, v in course.items() if t > 0.75 * last]
    before = [v for t, v in course.items() if 0.5 * last < t <= 0.75 * last]
    return sum(late) / len(late) - sum(before) / len(before) if before else nan
