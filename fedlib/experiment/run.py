"""Running an experiment: look it up, else train it, resumably."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from fedlib.engine import (
    Report,
    State,
    TrainingDiverged,
    encode,
    evaluate,
    evaluate_global,
    play_round,
    select,
)
from fedlib.experiment import store
from fedlib.experiment.disk import Damaged, StoreError
from fedlib.experiment.health import RunDiverged, check_finite
from fedlib.experiment.log import Log
from fedlib.experiment.provenance import commit, provenance, segment
from fedlib.experiment.result import Result
from fedlib.experiment.spec import Experiment
from fedlib.federation import Federation
from fedlib.memory import keep_freed
from fedlib.privacy import audit
from fedlib.progress import Rounds, Watcher, note

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
    $FEDLIB_CHECKPOINT_SECONDS) and ends with the same bits. Two processes asked for the same
    experiment train it once. A run whose numbers stopped being finite raises RunDiverged, and again
    when asked again, unless ``retry``. StoreError when nothing can be stored, or when the
    checkpoint is of other data.
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
    course = _Course(experiment, fed, chunk)
    first = course.begin(device, progress, retry)
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
    store.finish(experiment, provenance(fed, course.segments()))


class _Course:
    """A run in memory: its log, and the state after the last round that is logged to the end.

    A round updates local leaves in place. So the rows of the next round's cohort are kept: whatever
    happens in it, ``last`` puts them back.
    """

    def __init__(self, experiment: Experiment, fed: Federation, chunk: int | None) -> None:
        self.experiment, self.fed, self.chunk = experiment, fed, chunk
        self.log, self.start = Log(), 0
        self._began, self._earlier = time.monotonic(), list[dict[str, Any]]()
        self._state, self._completed = State({}, {}, {}), -1
        self._rows, self._held = torch.zeros(0, dtype=torch.int64), dict[str, torch.Tensor]()

    def begin(self, device: str, progress: Progress, retry: bool) -> State:
        """Return the state to start from, a checkpoint's or a fresh one."""
        kept = store.restore(self.experiment)
        if kept is not None:
            self._refuse_other_data(kept.data)
        if kept is not None and kept.completed > 0:
            self.log, self.start, self._earlier = Log(kept.metrics), kept.completed, kept.segments
            state = _moved(kept.state, self.fed)
            self._hold(state, kept.completed)
            return state
        first = None
        if self.experiment.after is not None:
            _, first = run_with_state(
                self.experiment.after,
                device=device,
                chunk=self.chunk,
                progress=progress,
                retry=retry,
            )
            first = _moved(first, self.fed)
        self.log.sizes(self.fed)
        return self.experiment.algorithm.init(self.fed, self.experiment.seed, first)

    def log_round(self, state: State, completed: int, report: Report | None) -> float:
        """Log a round and keep its state; return its training loss."""
        loss = float("nan")
        if report is not None:
            check_finite(self.fed, state, report, completed - 1)
            loss = self.log.report(completed, report, self.fed.ids)
            if self.experiment.audit and self.experiment.evaluates(completed):
                found = audit(self.fed, self.experiment.algorithm, self._state, report)
                self.log.leaks(completed, self.fed.ids[report.rows], found)
        observe(self.experiment, self.fed, state, completed, self.log)
        if self.experiment.evaluates(completed):
            assess(self.experiment, self.fed, state, completed, self.log)
        self._hold(state, completed)
        return loss

    def last(self) -> State:
        """Return the state after the last round that is logged to the end."""
        for name, rows in self._held.items():
            self._state.local[name][self._rows] = rows
        return self._state

    def save(self) -> None:
        """Store the last whole round."""
        store.checkpoint(
            self.experiment,
            self.last(),
            self._completed,
            self.log.frame(self._completed),
            self.fed.source,
            self.segments(),
        )

    def save_unless_empty(self) -> None:
        """Store the last whole round if this process has played one."""
        if self._completed > self.start:
            self.save()

    def diverged(self, error: TrainingDiverged) -> RunDiverged:
        """Store the last whole round and the failure after it; return the error to raise."""
        self.save()
        failure = {
            "round": self._completed,
            "clients": list(error.clients),
            "message": str(error),
            "metrics": self.log.last_finite("train_loss", "validation_accuracy"),
            "commit": commit(),
            "data": self.fed.source,
        }
        store.failed(self.experiment, failure)
        return RunDiverged.of(failure, str(store.folder(self.experiment)))

    def segments(self) -> list[dict[str, Any]]:
        """Return the stretches of rounds that processes have trained, this one's last."""
        seconds = time.monotonic() - self._began
        now = segment(self.fed, self.start, self._completed, seconds, self.chunk)
        return [*self._earlier, *([now] if self._completed > self.start else [])]

    def _hold(self, state: State, completed: int) -> None:
        self._state, self._completed, self._held = state, completed, {}
        if state.local and completed < self.experiment.rounds:
            seed, cohort = self.experiment.seed, self.experiment.cohort
            chosen = select(self.fed, cohort, seed, completed)
            self._rows = torch.as_tensor(chosen, device=self.fed.device)
            self._held = {n: t[self._rows] for n, t in state.local.items()}

    def _refuse_other_data(self, data: str) -> None:
        if data and _fingerprint(data) != _fingerprint(self.fed.source):
            raise StoreError(
                f"run {self.experiment.key} was begun on other data: its checkpoint is of "
                f"{data!r}, here are {self.fed.source!r}. Bring the first data back, or move "
                f"{store.folder(self.experiment)} away to begin anew."
            )


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


def assess(experiment: Experiment, fed: Federation, state: State, completed: int, log: Log) -> None:
    """Score every client on validation and test data, and the whole federation on all test data."""
    algorithm = experiment.algorithm
    log.scores(completed, "validation", fed.ids, evaluate(fed, algorithm, state, fed.validation))
    test = encode(fed, algorithm, state, fed.test, everything=True)
    log.scores(completed, "test", fed.ids, evaluate(fed, algorithm, state, fed.test, test))
    log.add(completed, "global_accuracy", evaluate_global(fed, algorithm, state, test))


def observe(
    experiment: Experiment, fed: Federation, state: State, completed: int, log: Log
) -> None:
    """Log what the algorithm observes: scalars every round, arrays where clients are scored."""
    for metric, values in experiment.algorithm.observe(fed, state).items():
        if values.ndim == 0 or experiment.evaluates(completed):
            log.array(completed, metric, values)


def _moved(state: State, fed: Federation) -> State:
    """Return a stored state on the federation's device."""
    # torch.optim keeps its step counts on the CPU, whatever the device of what it moves.
    flat = state.flat()
    return State.from_flat(
        {n: t if n.endswith("/step") else t.to(fed.device) for n, t in flat.items()}
    )


def _fingerprint(source: str) -> str:
    """Return the fingerprint of the data: where they came from may differ between machines."""
    return source.rpartition(" ")[2]


def _interval() -> float:
    text = os.environ.get("FEDLIB_CHECKPOINT_SECONDS", "")
    try:
        return float(text) if text else CHECKPOINT_SECONDS
    except ValueError:
        raise ValueError(f"FEDLIB_CHECKPOINT_SECONDS must be a number, got {text!r}") from None
