"""Workers that train the runs of a sweep: this process, or processes of their own."""

import multiprocessing
import os
import signal
import sys
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
from fedrun import Experiment, run_with_state

Ended = tuple[Experiment, BaseException | None]
GUARD = 'if __name__ == "__main__":'  # workers import the script and must not sweep again
Worker = tuple[ProcessPoolExecutor, Connection]  # a pool of one process, and its progress pipe
_tell: Watcher  # in a worker: sends progress through the pipe


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

    stored = "their last round"  # what is kept of runs that Ctrl-C interrupts

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
        """Shut down all workers, which releases their resources; busy ones end their round."""
        for _, (pool, pipe) in self._busy.values():
            pipe.close()  # else a worker might wait until it is read
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
    # Ctrl-C reaches all processes of a terminal. Only the parent stops its workers: SIGTERM does
    # what Ctrl-C does to a single run, which ends its round and stores it.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _interrupt)
    else:  # on Windows
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()

    def _tell(*progress: Any) -> None:
        with suppress(OSError):  # the parent has stopped to listen
            pipe.send(progress)


def _interrupt(number: int, frame: Any) -> None:
    handler: Any = signal.getsignal(signal.SIGINT)
    handler(number, frame)


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
