"""Running an experiment: look it up, else train it, resumably."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from fedlib.engine import (
    Report,
    State,
    TrainingDiverged,
    play_round,
)
from fedlib.federation import Federation
from fedlib.memory import keep_freed
from fedlib.progress import Rounds, Watcher, note
from fedlib.runs import store
from fedlib.runs.course import Course
from fedlib.runs.atomic import Damaged
from fedlib.runs.health import RunDiverged
from fedlib.runs.provenance import commit, provenance
from fedlib.runs.result import Result
from fedlib.runs.spec import Experiment

CHECKPOINT_SECONDS = 60.0
Progress = bool | str | Watcher


def run(
    experiment: Experiment,
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: Progress = True,
    retry: bool = False,
) -> Result:
    """Return the result of an experiment, training it only if it is not stored.

    ``progress`` shows a bar; a string is its text; a function is called after every round with the
    rounds completed, the rounds in all and the training loss, also those of a first stage.

    A run that was interrupted continues from its last checkpoint (one a minute, or every
    $FEDLIB_CHECKPOINT_SECONDS) and ends with the same bits, if on a CPU of the same kind with the
    same chunk and number of threads. Two processes asked for the same experiment train it once. A
    run whose numbers stopped being finite raises RunDiverged, and again when asked again, unless
    ``retry``. StoreError when nothing can be stored, or when the checkpoint is of other data.
    """
    stored = store.find(experiment)
    return stored or _claim_and_train(experiment, device, chunk, progress, retry)


def run_with_state(
    experiment: Experiment,
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: Progress = True,
    retry: bool = False,
) -> tuple[Result, State]:
    """Return a result and its final state, retraining if only the exported metrics are there."""
    stored, kept = store.find(experiment), None
    with suppress(Damaged):
        kept = store.restore(experiment)
    if stored is None or kept is None or kept.completed < experiment.rounds:
        stored = _claim_and_train(experiment, device, chunk, progress, retry)
        kept = store.restore(experiment)
    assert kept is not None
    return stored, kept.state


def _claim_and_train(
    experiment: Experiment, device: str, chunk: int | None, progress: Progress, retry: bool
) -> Result:
    shown = bool(progress) and not callable(progress)  # a watcher has its own way of telling
    with store.claimed(experiment, lambda text: note(text, show=shown)):
        if not store.complete(experiment):
            if retry:
                store.forget_failure(experiment)
            failure = store.failure(experiment)
            if failure is not None:
                raise RunDiverged.of(failure, str(store.folder(experiment)))
            _train(experiment, device, chunk, progress, retry)
    found = store.find(experiment)
    assert found is not None
    return found


def _train(
    experiment: Experiment, device: str, chunk: int | None, progress: Progress, retry: bool
) -> None:
    interval = _interval()
    keep_freed()
    commit()  # remembered now: the checkout may move on while this process runs what it has loaded
    fed = experiment.task.build(experiment.seed, device)
    course = Course(experiment, fed, chunk)
    how: dict[str, Any] = {"device": device, "chunk": chunk, "progress": progress, "retry": retry}
    first = course.begin(lambda: [run_with_state(e, **how) for e in experiment.before])
    ticks = Rounds(progress, type(experiment.algorithm).__name__, experiment.rounds, course.start)
    saved = time.monotonic()
    try:
        for state, completed, report in rounds(experiment, fed, first, course.start, chunk):
            loss = course.log_round(state, completed, report)
            if report is not None:
                ticks.played(loss)
            if 0 < completed < experiment.rounds and time.monotonic() - saved > interval:
                course.save()
                saved = time.monotonic()
        course.save()
    except TrainingDiverged as error:
        raise course.diverged(error) from error
    except (KeyboardInterrupt, SystemExit):
        course.save_unless_empty()
        raise
    finally:
        ticks.close()
    store.finish(experiment, provenance(fed, course.segments(), course.last()))


def rounds(
    experiment: Experiment,
    fed: Federation,
    state: State,
    completed: int = 0,
    chunk: int | None = None,
) -> Iterator[tuple[State, int, Report | None]]:
    """Yield (state, completed rounds, report) after every round; first the given state itself."""
    if completed == 0:
        yield state, 0, None
    for t in range(completed, experiment.rounds):
        state, report = play_round(
            experiment.algorithm,
            fed,
            state,
            round=t,
            seed=experiment.seed,
            cohort=experiment.cohort,
            chunk=chunk,
            score=experiment.evaluates(t + 1),
        )
        yield state, t + 1, report


def _interval() -> float:
    text = os.environ.get("FEDLIB_CHECKPOINT_SECONDS", "")
    try:
        return float(text) if text else CHECKPOINT_SECONDS
    except ValueError:
        raise ValueError(f"FEDLIB_CHECKPOINT_SECONDS must be a number, got {text!r}") from None
