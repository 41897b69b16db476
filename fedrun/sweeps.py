"""``sweep``: train many experiments on local processes or a Ray cluster."""

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
GUARD = 'if __name__ == "__main__":'  # workers import the script and must not sweep again
Worker = tuple[ProcessPoolExecutor, Connection]  # a pool of one process, and its progress pipe
_tell: Watcher  # in a worker: sends progress through the pipe


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; the finished ones are stored."""


class WorkerDied(RuntimeError):
    """The process of a worker ended without returning a result or an error."""


class Workers:
    """Workers that train runs and report progress.

    This base class trains one run after another in the current process; ``Processes`` and
    ``fedrun.ray.Cluster`` override its methods.

    Args:
        options: keyword arguments of ``run``.
        tally: receives the progress of the runs.
    """

    def __init__(self, options: dict[str, Any], tally: SweepProgress) -> None:
        self.options, self.tally = options, tally
        self._ends: list[Ended] = []

    def slots(self) -> int:
        """Return how many runs can be trained at once."""
        return 1

    def give(self, experiment: Experiment) -> None:
        """Start to train a run."""
        tell = partial(self.tally.round, experiment.key)
        self._ends.append((experiment, trained(experiment, tell, self.options)))

    def ended(self) -> list[Ended]:
        """Return the runs that have ended, each with its error or None; wait at most a second."""
        ends, self._ends = self._ends, []
        return ends

    def stop(self) -> None:
        """Stop all workers; unfinished runs are stored up to their last checkpoint."""


def sweep(
    experiments: Iterable[Experiment],
    *,
    workers: int = 1,
    device: str = "auto",
    chunk: int | None = None,
    progress: bool = True,
    retry: bool = False,
    address: str | None = None,
) -> list[Result]:
    """Return the results of experiments, in order; train those that are not stored, in parallel.

    Earlier stages are runs of their own, and a run waits for its stages. After Ctrl-C the same call
    continues from the last checkpoints. If the results do not fit into memory, call
    ``fedrun.sweeps.train_missing`` and then ``find_result`` for one experiment at a time. With more
    than one worker, a script must call this below ``if __name__ == "__main__":``, since every
    worker imports the script first.

    Args:
        experiments: the experiments to run.
        workers: number of processes. One worker trains in this process; more are spawned with one
            torch thread each, which on a CPU is faster than one process with many threads.
            Default: 1.
        device: as for ``run``. On a cluster, every run gets a GPU if this is "cuda", or "auto" and
            the cluster has GPUs. Default: "auto".
        chunk: as for ``run``. Default: None.
        progress: whether to show a progress bar. Default: True.
        retry: whether to retry runs that diverged. Default: False.
        address: address of a Ray cluster that trains the runs, "auto" or "HOST:PORT"; the results
            are copied into this store. Default: None, local processes.

    Returns:
        a result for each experiment.

    Raises:
        SweepFailed: if runs failed or their workers were killed, after all other runs have
            finished. A cluster first tries a run whose node was lost on another node.

    >>> grid = [Experiment(tiny.task, FedProx(mu=m), 2, 2, s) for m in (0.1, 1.0) for s in (0, 1)]
    >>> results = sweep(grid, workers=1, progress=False)  # workers=4 trains four runs at a time
    >>> [(result.experiment.algorithm.mu, result.experiment.seed) for result in results]
    [(0.1, 0), (0.1, 1), (1.0, 0), (1.0, 1)]
    """
    asked = [experiments] if isinstance(experiments, Experiment) else [*experiments]
    options: Any = {"device": device, "chunk": chunk, "retry": retry}
    train_missing(asked, workers=workers, progress=progress, address=address, **options)
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
    """Train those of ``experiments`` that are not stored; the arguments are those of ``sweep``."""
    options = {"device": device, "chunk": chunk, "retry": retry}
    asked = [e.pinned() for e in experiments]
    # Twice: stored runs do not match a first stage that the first pass has trained again.
    for _ in range(2):
        if not (missing := _lacking(asked)):
            return
        with SweepProgress({e.key: _name(e) for e in missing}, show=progress) as tally:
            team = _pool(min(workers, len(missing)), address, options, tally)
            failures = _train(team, missing, tally)
        if failures:
            lines = [f"{e}\n  key {e.key}: {_in_words(x)}" for e, x in failures]
            text = f"{len(failures)} of {len(missing)} runs failed; the others are stored:\n\n"
            raise SweepFailed(text + "\n\n".join(lines)) from failures[0][1]


def _lacking(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments to train: those not stored, and earlier stages without a state."""
    lacking = [e for e in experiments if find_result(e) is None]
    # A later stage needs the final state of an earlier one, which exported results do not have.
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
    """Give runs to the workers in order, later stages after earlier ones; return the failures.

    Runs that another process is training come last, as a worker would only wait for it.
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
    """Return the text of an error with its notes, which name the machine on which it happened."""
    return " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


class Processes(Workers):
    """Spawned processes, each in a pool of its own, so that a crash loses only one run."""

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
            why = "memory ran out" if _guarded() else f"the script has no {GUARD} line"
            words = f"its process ended, possibly because {why}; see its output above"
            return experiment, WorkerDied(words)
        self._idle.append(worker)
        return experiment, error

    def stop(self) -> None:
        """Terminate busy workers, and shut down idle ones so that they release their resources."""
        for _, (pool, _) in self._busy.values():
            for process in [*pool._processes.values()]:
                process.terminate()
        for pool, _ in [*self._idle, *(worker for _, worker in self._busy.values())]:
            pool.shutdown()


def _guarded() -> bool:
    """Return whether the main script mentions ``__name__``, and so can be imported by workers."""
    with suppress(OSError, UnicodeError):
        file = getattr(sys.modules["__main__"], "__file__", None)
        return file is None or "__name__" in Path(file).read_text("utf-8")
    return True


def _begin(pipe: Connection, parent: int) -> None:
    """Initialise a worker process, which sends its progress through a pipe."""
    global _tell
    end_with_parent(parent)
    # Ctrl-C reaches all processes of a terminal; the parent stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()
    _tell = lambda *progress: pipe.send(progress)  # noqa: E731


def _serve(experiment: Experiment, options: dict[str, Any]) -> Any:
    """Train a run in a worker process; return a picklable error or None."""
    error = trained(experiment, _tell, options)
    return error and picklable_error(error)


def trained(experiment: Experiment, tell: Watcher, options: dict[str, Any]) -> Exception | None:
    """Train a run, calling ``tell`` after every round; return the error or None."""
    try:
        run_with_state(experiment, progress=tell, **options)
        return None
    except Exception as error:
        return error
