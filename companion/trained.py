"""Which runs did not train: nothing is concluded from a model that is no better than none.

A run is untrained if it kept the model that it began with (round 0), if it ended no better than at
its first evaluation, or no better than a constant: than the majority class on the clients' own
tests and than chance on those of all classes. So is what stands on such a run. Of first stages that
train for one round only, as audits of a message do, nothing is expected.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from fedlib.algorithms import CommonestLabel
from fedlib.runs import Experiment, Result, find

KEPT, FIRST, CONSTANT = (
    "kept round 0", "no better than its first evaluation", "no better than a constant"
)  # fmt: skip
OWN, OTHERS = "test_accuracy", ("balanced_accuracy", "global_accuracy")
COLUMNS = ("method", "seed", "why")


def untrained(runs: Iterable[tuple[Run, Sequence[Result]]]) -> pd.DataFrame:
    """Return the runs that did not train: method, seed, where they stand, and why."""
    given = [(run, result) for run, results in runs for result in results]
    known = {result.experiment.key: result for _, result in given}
    floors = {
        (r.experiment.task, r.experiment.seed): r.ended(OWN)
        for _, r in given
        if isinstance(r.experiment.algorithm, CommonestLabel)
    }

    @cache
    def why(stage: Experiment) -> str:
        one = known.get(stage.key) or find(stage)
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
    one, kept = result.experiment, [*result.curve("kept_round").values()]
    if kept and kept[-1] == 0:
        return KEPT
    if one.after or one.rounds <= 1 or isinstance(one.algorithm, CommonestLabel):
        return ""
    curves = {metric: result.curve(metric) for metric in (OWN, *OTHERS)}
    ends = dict[str, float]()
    for metric in curves:
        with suppress(ValueError):  # not logged, or not of the round that was kept
            ends[metric] = result.ended(metric)
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
    places = [c for c in runs.columns if c in rows and c not in COLUMNS]
    for run in runs.to_dict("records"):
        here = rows["seed"].eq(run["seed"]) & (rows["method"].eq(run["method"]) | anybody)
        for place in places:
            if not pd.isna(run[place]):
                here &= rows[place].eq(run[place]) | (rows[place].isna() & anybody)
        found |= here
    return found


def sound(
    judge: Callable[[pd.DataFrame], Sequence[Claim]], frame: pd.DataFrame, runs: pd.DataFrame
) -> list[Claim]:
    """Return what ``judge`` says of a frame's runs, without those that are untrained (``runs``).

    A claim that hangs on one of them is judged on the seeds and places at which everybody trained:
    a mean over places or seeds leaves the others out on both of its sides, and tells so. Where
    nothing is left, or too few seeds, it is `UNTRAINED`.
    """
    every = [*judge(frame)]
    if not len(runs):
        return every
    left = (frame[~of(frame, runs, anybody=anybody)] for anybody in (False, True))
    less, cut = (_by_text(judge, rows) for rows in left)
    return [_sound(claim, less.get(_key(claim)), cut.get(_key(claim)), runs) for claim in every]


def _sound(claim: Claim, less: Claim | None, cut: Claim | None, runs: pd.DataFrame) -> Claim:
    if claim.verdict == UNTESTED and not claim.seeds:
        return claim
    if less and (less.values, less.measured) == (claim.values, claim.measured):
        return claim
    who = ", ".join(dict.fromkeys(runs["method"]))
    # What is claimed of every place does not hold where it was not tried.
    if cut is None or cut.verdict == UNTESTED or claim.place == BASELINE:
        blank: dict[str, Any] = dict.fromkeys(("effect", "low", "high", "detects", "p"), nan)
        left = f"without runs that trained: of {who} some did not"
        return replace(
            claim, verdict=UNTRAINED, measured=left, needed=0, values="", clear=True, **blank
        )
    seeds = f", {cut.seeds} of {claim.seeds} seeds" if cut.seeds < claim.seeds else ""
    left = f"runs of {who} that did not train are left out{seeds}"
    return replace(cut, measured=f"{cut.measured}; {left}")


def _key(claim: Claim) -> tuple[str, str]:
    return claim.text, claim.place


def _by_text(
    judge: Callable[[pd.DataFrame], Sequence[Claim]], frame: pd.DataFrame
) -> Mapping[tuple[str, str], Claim]:
    """Return the claims of a part of a frame, none where it lacks what they speak of."""
    with suppress(LookupError, ValueError):
        return {_key(claim): claim for claim in judge(frame)}
    return {}
