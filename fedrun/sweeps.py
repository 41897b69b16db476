"""Many runs: a list of experiments over local processes, or over a Ray cluster."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedlib.parallel import end_with_parent, picklable_error
from fedlib.processor import keep_freed_memory
from fedlib.progress import SweepProgress, Watcher
from fedrun import Experiment, Result, find_result, run, run_with_state
from fedrun.store import RunFolder

Ended = tuple[Experiment, BaseException | None]
GUARD = 'if __name__ == "__main__":'  # in a script, around what its workers are not to do again
Worker = tuple[ProcessPoolExecutor, Connection]  # a process, and where it tells of its rounds
_tell: Watcher  # ... in that process


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; what finished is stored."""


class WorkerDied(RuntimeError):
    """A worker's process ended without a word."""


class Workers:
    """Who trains, and tells a ``SweepProgress`` how far; this one: this process, run after run."""

    def __init__(self, options: dict[str, Any], tally: SweepProgress) -> None:
        self.options, self.tally = options, tally
        self._ends: list[Ended] = []

    def slots(self) -> int:
        """Return how many runs it takes at once."""
        return 1

    def give(self, experiment: Experiment) -> None:
        """Let it train a run."""
        tell = partial(self.tally.round, experiment.key)
        self._ends.append((experiment, trained(experiment, tell, self.options)))

    def ended(self) -> list[Ended]:
        """Return the runs that have ended, and what went wrong; after a second at most nothing."""
        ends, self._ends = self._ends, []
        return ends

    def stop(self) -> None:
        """End it; runs under way are stored up to their last checkpoint."""


def sweep(experiments: Iterable[Experiment], *, device: str = "auto", **how: Any) -> list[Result]:
    """Return the results of experiments in order; train those that are not stored, side by side.

    Thousands of results may be more than the memory holds: then train, and find them one by one.
    With more than one worker a script does so below ``if __name__ == "__main__":``, as each of
    these processes imports the script first.

    Args:
        experiments: what to train.
        device: as for ``run``.
        how: other options of ``fedrun.sweeps.train_missing``: ``workers`` is how many processes
            train at once, ``address`` a Ray cluster's.

    Raises:
        SweepFailed: when a run failed, after all others; what finished is stored.

    >>> [result.experiment.seed for result in sweep([tiny], progress=False)]
    [0]
    """
    asked = [*experiments]  # a generator can be read once
    train_missing(asked, device=device, **how)
    return [run(e, device=device, progress=False) for e in asked]


def train_missing(
    experiments: Iterable[Experiment],
    *,
    workers: int = 1,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool = True,
    retry: bool = False,
    address: str | None = None,
) -> None:
    """Train those of ``experiments`` that are not stored.

    A run that builds on another waits for it, and stages before a run are runs of their own. One
    worker trains in this process; more are spawned processes with one torch thread
    each, which on a CPU is faster than one process with many threads. With the ``address`` of a Ray
    cluster ("auto", "HOST:PORT") the cluster trains, and the results come into this store: with one
    GPU per run if ``device`` is "cuda", or "auto" and the cluster has GPUs. ``progress`` shows a
    bar; ``retry`` trains runs again that diverged before.

    Failures, a killed worker among them, are collected and raised together as SweepFailed after
    everything else has finished; on a cluster a run that was lost is first tried elsewhere.
    After Ctrl-C the same call continues from the last checkpoints.
    """
    options = {"device": device, "chunk": chunk, "retry": retry}
    asked = [e.pinned() for e in experiments]
    # Twice, as what was stored after a first stage that is trained again is to follow that one.
    for _ in range(2):
        if not (missing := _lacking(asked)):
            return
        with SweepProgress({e.key: _name(e) for e in missing}, show=progress) as tally:
            team = _pool(min(workers, len(missing)), address, options, tally)
            failures = _train(team, missing, tally)
        if failures:
            lines = [f"{e}\n  key {e.key}: {_in_words(x)}" for e, x in failures]
            text = f"{len(failures)} of {len(missing)} runs failed, what finished is stored:\n\n"
            raise SweepFailed(text + "\n\n".join(lines)) from failures[0][1]


def _lacking(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return those that are not stored, after stages that are stored without their state."""
    lacking = [e for e in experiments if find_result(e) is None]
    # Nothing can follow an exported result, which lacks it.
    stages = (s for e in lacking for s in e.stages if s.key == e.key or not RunFolder(s).complete)
    return [*{s.key: s for s in stages}.values()]


def _pool(
    workers: int, address: str | None, options: dict[str, Any], tally: SweepProgress
) -> Workers:
    if address is not None:
        from fedrun.ray import Cluster

        return Cluster(address, options, tally)
    return Processes(workers, options, tally) if workers > 1 else Workers(options, tally)


def _train(
    team: Workers, missing: Sequence[Experiment], tally: SweepProgress
) -> list[tuple[Experiment, BaseException]]:
    """Hand runs out in their order, those that build on others when these have ended.

    Those that somebody else trains come last: who has them would have to wait.
    """
    waiting = {e.key: e for e in missing}
    needs = {e.key: {s.key for s in e.stages[:-1]} & waiting.keys() for e in missing}
    left, failed = {*waiting}, dict[str, tuple[Experiment, BaseException]]()

    def end(experiment: Experiment, error: BaseException | None) -> None:
        left.discard(experiment.key)
        if error is not None:
            failed[experiment.key] = experiment, error
        tally.end(experiment.key, error)

    def ready() -> Experiment | None:
        able = [e for key, e in waiting.items() if not needs[key] & left]
        return next((e for e in able if not RunFolder(e).in_use), able[0] if able else None)

    try:
        while left:
            while len(left) - len(waiting) < team.slots() and (e := ready()):
                del waiting[e.key]
                if broken := needs[e.key] & failed.keys():
                    end(e, failed[min(broken)][1])
                else:
                    team.give(e)
            for ended in team.ended():
                end(*ended)
    finally:
        team.stop()
    return [*failed.values()]


def _name(e: Experiment) -> str:
    return f"{e.algorithm} on {e.task.dataset}, {e.task.partition}, seed {e.seed}"


def _in_words(error: BaseException) -> str:
    """Return an error with its notes: on which machine it happened."""
    return " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


class Processes(Workers):
    """Spawned processes, each the one of a pool of its own: who dies takes only its own run."""

    def __init__(self, workers: int, options: dict[str, Any], tally: SweepProgress) -> None:
        super().__init__(options, tally)
        self._workers, self._spawn = workers, multiprocessing.get_context("spawn")
        self._idle = list[Worker]()
        self._busy = dict[Future[Any], tuple[Experiment, Worker]]()

    def slots(self) -> int:
        return self._workers

    def give(self, experiment: Experiment) -> None:
        worker = self._idle.pop() if self._idle else self._hired()
        self._busy[worker[0].submit(_serve, experiment, self.options)] = experiment, worker

    def _hired(self) -> Worker:
        pipe, far = self._spawn.Pipe(duplex=False)
        return ProcessPoolExecutor(1, self._spawn, _begin, (far, os.getpid())), pipe

    def ended(self) -> list[Ended]:
        done, _ = wait(self._busy, 1.0, FIRST_COMPLETED)
        for experiment, (_, pipe) in self._busy.values():
            while pipe.poll():
                self.tally.round(experiment.key, *pipe.recv())
        return [self._end(future) for future in done]

    def _end(self, future: Future[Any]) -> Ended:
        experiment, worker = self._busy.pop(future)
        try:
            error = future.result()
        except BrokenProcessPool:
            why = "for want of memory" if _guarded() else f"as the script has no {GUARD} line"
            words = f"its process ended, maybe {why}; see its last words above"
            return experiment, WorkerDied(words)
        self._idle.append(worker)
        return experiment, error

    def stop(self) -> None:
        """End busy workers at once, and idle ones in order: these give back what they hold."""
        for _, (pool, _) in self._busy.values():
            for process in [*pool._processes.values()]:
                process.terminate()
        for pool, _ in [*self._idle, *(worker for _, worker in self._busy.values())]:
            pool.shutdown()


def _guarded() -> bool:
    """Return whether this process may be imported by its workers without doing all again.

    A worker imports the script that has started this process, before anything else.
    """
    with suppress(OSError, UnicodeError):
        file = getattr(sys.modules["__main__"], "__file__", None)
        return file is None or "__name__" in Path(file).read_text("utf-8")
    return True


def _begin(pipe: Connection, parent: int) -> None:
    """Make this process a worker, which tells of its rounds through a pipe."""
    global _tell
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    torch.set_num_threads(1)
    keep_freed_memory()
    _tell = lambda *progress: pipe.send(progress)  # noqa: E731


def _serve(experiment: Experiment, options: dict[str, Any]) -> Any:
    """Train a run in a worker; return what went wrong."""
    error = trained(experiment, _tell, options)
    return error and picklable_error(error)


def trained(experiment: Experiment, tell: Watcher, options: dict[str, Any]) -> Exception | None:
    """Train a run, telling of its rounds; return what went wrong."""
    try:
        run_with_state(experiment, progress=tell, **options)
        return None
    except Exception as error:
        return error
