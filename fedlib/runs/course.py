"""A run in memory: where it starts, what it logs, and what is stored of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedlib.engine import (
    Report,
    State,
    TrainingDiverged,
    encode,
    evaluate,
    evaluate_everywhere,
    evaluate_global,
    playing,
    predicting,
    select,
)
from fedlib.federation import Federation
from fedlib.privacy import audit
from fedlib.runs import store
from fedlib.runs.atomic import StoreError
from fedlib.runs.health import RunDiverged, check_finite
from fedlib.runs.log import Log
from fedlib.runs.provenance import commit, segment, stages_of
from fedlib.runs.result import Result
from fedlib.runs.spec import Experiment

BEST_OF = ("round", "client", "value")


class Course:
    """A run in memory: its log, and the state after the last round that is logged to the end.

    A round updates local leaves in place. So the rows of the next round's cohort are kept: whatever
    happens in it, ``last`` puts them back. A run that keeps its best state has a copy of that.
    """

    def __init__(self, experiment: Experiment, fed: Federation, chunk: int | None) -> None:
        self.experiment, self.fed, self.chunk = experiment, fed.at_home(), chunk
        self.seen = playing(experiment.algorithm, fed)
        self.log, self.start = Log(), 0
        self._began, self._earlier = time.monotonic(), list[dict[str, Any]]()
        self._state, self._completed = State({}, {}), -1
        self._best: State | None = None
        self._stages: dict[str, list[str]] = {}
        self._rows, self._held = torch.zeros(0, dtype=torch.int64), dict[str, torch.Tensor]()

    def begin(self, earlier: Callable[[], Sequence[tuple[Result, State]]]) -> State:
        """Return the state to start from: a checkpoint's, or a fresh one.

        ``earlier`` returns the results and final states of the stages before, if any.
        """
        kept = store.restore(self.experiment)
        if kept is not None:
            self._refuse_other_data(kept.data)
        if kept is not None and kept.completed > 0:
            self.log, self.start, self._earlier = Log(kept.metrics), kept.completed, kept.segments
            state = _moved(kept.state, self.fed)
            if kept.best is not None:
                self._best = _moved(kept.best, self.fed)
            self._hold(state, kept.completed)
            return state
        made = earlier()
        self._stages = stages_of((r.experiment.key, r.provenance) for r, _ in made)
        state = begun(self.experiment, self.fed, [state for _, state in made])
        self.log.sizes(self.fed)
        return state

    def log_round(self, state: State, completed: int, report: Report | None) -> float:
        """Log a round and keep its state; return its training loss."""
        loss = float("nan")
        if report is not None:
            check_finite(self.fed, state, report, completed - 1)
            loss = self.log.report(completed, report, self.fed.ids)
            if self.fed.taking_part() is not self.fed:
                self.log.ledger(completed, report, self.fed.ids)
            if self.experiment.audit and self.experiment.evaluates(completed):
                found = audit(self.seen, self.experiment.algorithm, self._state, report)
                self.log.leaks(completed, self.fed.ids[report.rows], found)
        scored = self.experiment.evaluates(completed)
        algorithm = self.experiment.algorithm
        settled = (
            algorithm.assign_models(predicting(algorithm, self.fed), state) if scored else state
        )
        observe(self.experiment, self.seen, settled, completed, self.log)
        if scored:
            assess(self.experiment, self.fed, settled, completed, self.log)
            self._choose(state, completed)
        self._hold(state, completed)
        return loss

    def last(self) -> State:
        """Return the state after the last round that is logged to the end."""
        for name, rows in self._held.items():
            self._state.local[name][self._rows] = rows
        return self._state

    def save(self) -> None:
        """Store the last whole round; at the end the state that the run is to end with."""
        state, best = self.last(), self._best
        if best is not None and self._completed == self.experiment.rounds:
            state, best = best, None
        store.checkpoint(
            self.experiment,
            state,
            self._completed,
            self.log.table(self._completed),
            self.fed.source,
            self.segments(),
            best,
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
        now = segment(self.fed, self.start, self._completed, seconds, self.chunk, self._state)
        if self._stages:  # only what began the run has seen them
            now["stages"] = self._stages
        return [*self._earlier, *([now] if self._completed > self.start else [])]

    def members(self) -> set[int]:
        """Return the ids of the clients that take part and have validation examples."""
        some = np.flatnonzero(self.seen.validation.sizes)
        return {int(i) for i in self.seen.ids[some]}

    def _choose(self, state: State, completed: int) -> None:
        """Keep a copy of the state if it is the best so far, where that is asked for."""
        if self.experiment.keep == "best":
            at = best_of(self.log.table(), self.members())
            if at == completed:
                self._best = _copied(state)
            if completed == self.experiment.rounds:
                self.log.add(completed, "kept_round", at)

    def _hold(self, state: State, completed: int) -> None:
        self._state, self._completed, self._held = state, completed, {}
        if state.local and completed < self.experiment.rounds:
            seed, cohort = self.experiment.seed, self.experiment.cohort
            chosen = select(self.seen, cohort, seed, completed)
            self._rows = torch.as_tensor(chosen, device=self.fed.device)
            self._held = {n: t[self._rows] for n, t in state.local.items()}

    def _refuse_other_data(self, data: str) -> None:
        if data and _fingerprint(data) != _fingerprint(self.fed.source):
            raise StoreError(
                f"run {self.experiment.key} was begun on other data: its checkpoint is of "
                f"{data!r}, here are {self.fed.source!r}. Bring the first data back, or move "
                f"{store.folder(self.experiment)} away to begin anew."
            )


def begun(experiment: Experiment, fed: Federation, earlier: Sequence[State]) -> State:
    """Return the state before round 0, given the final states of ``experiment.before``.

    Where a stage has stood beside the first, its clients' own leaves replace those of the first.
    """
    first, algorithm = None, experiment.algorithm
    if earlier:
        state, *beside = (_moved(each, fed) for each in earlier)
        first = replace(state, local=beside[0].local) if beside else state
        of = experiment.after.algorithm
        first = of.assign_models(predicting(of, fed), first)
    return algorithm.init(playing(algorithm, fed), experiment.seed, first)


def best_of(metrics: pa.Table, members: set[int]) -> int:
    """Return the first round with the least mean validation nll over some clients."""
    rows = metrics.filter(pc.field("metric") == "validation_nll")
    by_round: dict[int, list[float]] = {}
    for at, client, nll in zip(*(rows[n].to_pylist() for n in BEST_OF), strict=True):
        if client in members and nll is not None:
            by_round.setdefault(at, []).append(nll)
    if not by_round:
        raise ValueError("no validation examples: the best round cannot be told; use keep='last'")
    return min(by_round, key=lambda t: (math.fsum(by_round[t]) / len(by_round[t]), t))


def assess(experiment: Experiment, fed: Federation, state: State, completed: int, log: Log) -> None:
    """Score every client on validation and test data, and the whole federation on all test data.

    In the end every client on all test data, too.
    """
    algorithm = experiment.algorithm
    judged = algorithm.assign_models(predicting(algorithm, fed), state, judging=True)
    held = evaluate(fed, algorithm, judged, fed.validation)
    log.scores(completed, "validation", fed.ids, held)
    test = encode(fed, algorithm, state, fed.test, everything=True)
    log.scores(completed, "test", fed.ids, evaluate(fed, algorithm, state, fed.test, test))
    log.add(completed, "global_accuracy", evaluate_global(fed, algorithm, state, test))
    if completed == experiment.rounds:
        everywhere = evaluate_everywhere(fed, algorithm, state, test)
        log.clients(completed, "everywhere_accuracy", fed.ids, everywhere)
    if fed.balanced is not None:
        on_test = experiment.task.balanced_on == "test"
        name = "balanced" if on_test else "balanced_validation"
        log.scores(completed, name, fed.ids, evaluate(fed, algorithm, state, fed.balanced))


def observe(
    experiment: Experiment, fed: Federation, state: State, completed: int, log: Log
) -> None:
    """Log what the algorithm observes: scalars every round, arrays where clients are scored."""
    for metric, values in experiment.algorithm.observe(fed, state).items():
        if values.ndim == 0 or experiment.evaluates(completed):
            log.array(completed, metric, values)


def _copied(state: State) -> State:
    """Return a state that no later round changes."""
    return State.from_flat({n: t.clone() for n, t in state.flat().items()})


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
