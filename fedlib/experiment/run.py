"""Running an experiment: look it up, else train it, resumably."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedlib import paths
from fedlib.engine import Report, State, encode, evaluate, evaluate_global, play_round
from fedlib.experiment import store
from fedlib.experiment.log import Log
from fedlib.experiment.spec import Experiment
from fedlib.experiment.store import Result
from fedlib.federation import Federation
from fedlib.memory import peak_mib
from fedlib.progress import bar

CHECKPOINT_SECONDS = 60.0


def run(
    experiment: Experiment,
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool | str = True,
) -> Result:
    """Return the result of an experiment, training it only if it is not stored.

    ``progress`` shows a bar; a string is its text.

    A run that was interrupted continues from its last checkpoint and ends with the same bits. Two
    processes asked for the same experiment train it once.
    """
    stored = store.find(experiment)
    if stored is not None:
        return stored
    return _claim_and_train(experiment, device, chunk, progress)


def run_with_state(
    experiment: Experiment,
    *,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool | str = True,
) -> tuple[Result, State]:
    """Return a result and its final state, retraining if only the exported metrics are there."""
    stored = store.find(experiment)
    if stored is None or store.restore(experiment) is None:
        stored = _claim_and_train(experiment, device, chunk, progress)
    kept = store.restore(experiment)
    assert kept is not None
    return stored, kept[0]


def _claim_and_train(
    experiment: Experiment, device: str, chunk: int | None, progress: bool | str
) -> Result:
    with store.claimed(experiment):
        if not store.complete(experiment):
            _train(experiment, device, chunk, progress)
    found = store.find(experiment)
    assert found is not None
    return found


def _train(experiment: Experiment, device: str, chunk: int | None, progress: bool | str) -> None:
    started, saved = time.monotonic(), time.monotonic()
    _commit()
    fed = experiment.task.build(experiment.seed, device)
    start, done, log = _begin(experiment, fed, device, chunk, progress)
    text = progress if isinstance(progress, str) else type(experiment.algorithm).__name__
    ticks = bar(experiment.rounds, text, done=done, show=bool(progress))
    state, completed = start, done
    for state, completed, report in rounds(experiment, fed, start, done, chunk):
        if report is not None:
            log.report(completed, report)
            ticks.update()
        observe(experiment, fed, state, completed, log)
        if experiment.evaluates(completed):
            assess(experiment, fed, state, completed, log)
        due = time.monotonic() - saved > CHECKPOINT_SECONDS
        if due and 0 < completed < experiment.rounds:
            store.checkpoint(experiment, state, completed, log.frame())
            saved = time.monotonic()
    ticks.close()
    store.checkpoint(experiment, state, completed, log.frame())
    store.finish(experiment, provenance(fed, time.monotonic() - started))


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


def provenance(fed: Federation, seconds: float) -> dict[str, Any]:
    """Return where and with what a run was made: commit, versions, device, time, peak memory.

    The peak is the process's: of several runs in one process, the largest so far.
    """
    cuda = fed.device.type == "cuda"
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "fedlib": _version(),
        "device": torch.cuda.get_device_name(fed.device) if cuda else platform.machine(),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "peak_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20 if cuda else peak_mib()),
        "data": fed.source,
        "clients": fed.clients,
        "parameters": fed.net.parameters(),
    }


def _begin(
    experiment: Experiment, fed: Federation, device: str, chunk: int | None, progress: bool | str
) -> tuple[State, int, Log]:
    kept = store.restore(experiment)
    if kept is not None:
        state, completed, metrics = kept
        # torch.optim keeps its step counts on the CPU, whatever the device of what it moves.
        flat = state.flat()
        moved = {n: t if n.endswith("/step") else t.to(fed.device) for n, t in flat.items()}
        return State.from_flat(moved), completed, Log(metrics)
    first = None
    if experiment.after is not None:
        _, first = run_with_state(experiment.after, device=device, chunk=chunk, progress=progress)
    log = Log()
    log.sizes(fed)
    return experiment.algorithm.init(fed, experiment.seed, first), 0, log


@cache
def _commit() -> str:
    """Return the commit as it was when this process first trained: the code that it runs."""
    call = ["git", "-C", str(paths.ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        said = subprocess.run(call, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def _version() -> str:
    try:
        return version("fedlib")
    except PackageNotFoundError:
        return "not installed"
