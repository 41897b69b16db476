"""Which runs did not train, kept their initial model, or were still improving at their end.

A run did not train if no evaluation after round 0 is better than that at round 0, in accuracy on
the same examples. A later stage of such a run counts as untrained, too. Two kinds of stages are
exempt: later stages, which begin with a trained model, and first stages of a single round, which
audits of a message have.

A run that keeps the state with the least validation loss may keep the initial model although it
trained: at high learning rates, a model of three times the accuracy can have a larger loss. Such
runs count like all others, because no seed is left out for its outcome. Claims about them state
that they did not train, or that their kept model is the initial one.

A claim about the end of training is judged only if all curves that it compares have stopped rising.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import isnan, nan
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from companion.claims import UNTESTED, Claim
from companion.sections import Run
from fedlib.algorithms import MajorityClass
from fedrun import Experiment, Result, find_result

ACCURACIES = ("test", "validation", "balanced", "balanced_validation", "global")
COLUMNS = ("method", "seed")
INITIAL_NOTE = "the kept model is the initial one in {} of {} seeds, selected by NLL"
UNTRAINED_NOTE = "did not train in {} of {} seeds"
CURVES = [*(f"{name}_accuracy" for name in ACCURACIES), "kept_round"]
Runs = Iterable[tuple[Run, Sequence[Result]]]


class Facts(NamedTuple):
    """What is known of one stage.

    Attributes:
        trained: whether any of its accuracies is better after some round than at round 0.
        keeps_trained: whether the state that it kept is another one than the initial model.
        rise: how much its accuracy still rises: the mean over the last quarter of the rounds minus
            the mean over the quarter before; NaN without such a curve.
    """

    trained: bool
    keeps_trained: bool
    rise: float


def facts(result: Result) -> Facts:
    """Return what is known of a run."""
    courses, one = _courses(result), result.experiment
    kept = courses.pop("kept_round", {})
    pairs = list[tuple[float, float]]()
    for curve in courses.values():
        first, *later = (curve.get(0, nan), *(v for t, v in curve.items() if t))
        pairs += [(first, value) for value in later if not isnan(value - first)]
    exempt = one.first_stage or one.rounds <= 1 or isinstance(one.algorithm, MajorityClass)
    better = not pairs or any(value > first for first, value in pairs)
    chosen = next((courses[name] for name in CURVES if name in courses), {})
    keeps_trained = bool(one.first_stage) or 0 not in kept.values()
    return Facts(bool(exempt) or better, keeps_trained, _rise(chosen))


def _courses(result: Result) -> dict[str, dict[int, float]]:
    """Return the accuracies of a run by round (means over clients), and the round that it kept."""
    rows = result.metrics.filter(pc.is_in(pc.field("metric"), pa.array(CURVES)))
    means = rows.group_by(["metric", "round"]).aggregate([("value", "mean")]).sort_by("round")
    found = dict[str, dict[int, float]]()
    columns = (means[name].to_pylist() for name in ("metric", "round", "value_mean"))
    for metric, round, value in zip(*columns, strict=True):
        found.setdefault(metric, {})[round] = nan if value is None else value
    return found


def _rise(course: Mapping[int, float]) -> float:
    """Return how much a curve rises from the third to the last quarter of the rounds; else NaN."""
    last = max(course, default=0)
    late = [v for t, v in course.items() if t > 0.75 * last]
    before = [v for t, v in course.items() if 0.5 * last < t <= 0.75 * last]
    return sum(late) / len(late) - sum(before) / len(before) if before else nan


class Survey(NamedTuple):
    """What is known of several runs.

    Attributes:
        untrained: the runs that did not train, or stand on a stage that did not: method, seed,
            place.
        initial: the runs whose kept model is the initial one, or that stand on such a stage.
        rising: how much the accuracy of each method still rises: the mean over its runs of the
            largest rise among the stages of a run. A method without such a curve is left out.
    """

    untrained: pd.DataFrame
    initial: pd.DataFrame
    rising: dict[str, float]


def no_runs() -> pd.DataFrame:
    """Return a table of runs without rows."""
    return pd.DataFrame(columns=[*COLUMNS])


def survey(runs: Runs) -> Survey:
    """Return what is known of several runs; each of their stages is read once."""
    given = [(run, result) for run, results in runs for result in results]
    known = {result.experiment.key: result for _, result in given}

    @cache
    def of_stage(stage: Experiment) -> Facts:
        one = known.get(stage.key) or find_result(stage)
        return facts(one) if one else Facts(True, True, nan)

    stages = [[*map(of_stage, result.experiment.stages)] for _, result in given]
    rises = defaultdict[str, list[float]](list)
    for (run, _), every in zip(given, stages, strict=True):
        if there := [one.rise for one in every if not isnan(one.rise)]:
            rises[run.method].append(max(there))
    rows = [{"method": r.method, "seed": one.experiment.seed, **r.where} for r, one in given]

    def without(fine: Callable[[Facts], bool]) -> pd.DataFrame:
        bad = [row for row, every in zip(rows, stages, strict=True) if not all(map(fine, every))]
        return pd.DataFrame(bad) if bad else no_runs()

    rising = {method: sum(of) / len(of) for method, of in rises.items()}
    return Survey(without(lambda f: f.trained), without(lambda f: f.keeps_trained), rising)


def belongs_to(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Return which ``rows`` belong to one of some ``runs``: same method, seed and place."""
    found = pd.Series(False, rows.index)
    for run, place in zip(runs.to_dict("records"), _places(rows, runs), strict=True):
        whose = {"method": run["method"], "seed": run["seed"], **place}
        found |= rows[[*whose]].eq(pd.Series(whose)).all(axis=1)
    return found


def _places(rows: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the place of each run by those of its columns that the ``rows`` have."""
    names = [c for c in runs.columns if c in rows and c not in COLUMNS]
    every = runs[names].to_dict("records")
    return [{str(c): at for c, at in place.items() if not pd.isna(at)} for place in every]


def noted(
    judge: Callable[[pd.DataFrame], Sequence[Claim]],
    frame: pd.DataFrame,
    marked: Mapping[str, pd.DataFrame],
) -> list[Claim]:
    """Return the claims of ``judge`` on a frame, with notes where they depend on marked runs.

    All seeds count. A claim depends on the runs at a place if it is another one without them. If
    both of its sides are the same model in every seed, it is not tested.

    Args:
        judge: returns claims, given a frame.
        frame: the metrics of all runs.
        marked: runs by the words that describe them, with two places for the number of seeds that
            are marked and of all seeds.
    """
    every = [*judge(frame)]
    for words, runs in marked.items():
        places = pd.Series([tuple(p.items()) for p in _places(frame, runs)], runs.index)
        hangs: list[set[int]] = [set() for _ in every]
        for _, some in runs.groupby(places, sort=False):
            less = _claims(judge, frame[~belongs_to(frame, some)])
            for claim, seeds in zip(every, hangs, strict=True):
                other = less.get((claim.text, claim.place))
                if other is None or other.values != claim.values:
                    seeds |= {*some["seed"]}
        every = [_note(c, words, len(s)) if s else c for c, s in zip(every, hangs, strict=True)]
    return every


def _note(claim: Claim, words: str, seeds: int) -> Claim:
    """Return a claim with a note on how many of its seeds are marked."""
    if not claim.seeds:
        return claim
    told = f"{claim.measured}; {words.format(seeds, claim.seeds)}"
    same = claim.low == claim.high in (claim.least, claim.most)
    return replace(claim, measured=told, verdict=UNTESTED if same else claim.verdict)


def _claims(
    judge: Callable[[pd.DataFrame], Sequence[Claim]], frame: pd.DataFrame
) -> dict[tuple[str, str], Claim]:
    """Return the claims made of a part of a frame; none if it lacks what they compare."""
    with suppress(LookupError, ValueError):
        return {(claim.text, claim.place): claim for claim in judge(frame)}
    return {}
