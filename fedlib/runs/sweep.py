"""Many runs: a list of experiments over local processes, or over a Ray cluster."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from fedlib.progress import Table, Watcher
from fedlib.runs import Experiment, Result, find, run, run_with_state, store

__all__ = ["SweepFailed", "sweep", "train"]

SECONDS_BETWEEN_MESSAGES = 0.1
SECONDS_TO_STOP = 20.0
Ended = tuple[Experiment, BaseException | None]


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; what finished is stored."""


class WorkerDied(RuntimeError):
    """A worker's process ended without a word."""


class UnknownClass(RuntimeError):
    """An experiment is made of classes that a worker cannot import."""


class Pool:
    """Who trains, and tells a ``Table`` how far; this one: this process, one run after the other."""

    def __init__(self, options: dict[str, Any], table: Table) -> None:
        self.options, self.table = options, table
        self._ends: list[Ended] = []

    def slots(self) -> int:
        """Return how many runs it takes at once."""
        return 1

    def give(self, experiment: Experiment) -> None:
        """Let it train a run."""
        self.table.start(experiment.key, experiment.rounds)
        tell = partial(self.table.round, experiment.key)
        error = trained(experiment, tell, SECONDS_BETWEEN_MESSAGES, self.options)
        self._ends.append((experiment, error))

    def ended(self) -> list[Ended]:
        """Return the runs that have ended, and what went wrong; after a second at most nothing."""
        ends, self._ends = self._ends, []
        return ends

    def stop(self) -> None:
        """End it; runs under way are stored up to their last round."""


def sweep(experiments: Sequence[Experiment], *, device: str = "auto", **how: Any) -> list[Result]:
    """Return the results of ``experiments`` in order, after ``train``, which says what is what.

    Thousands of results may be more than the memory holds: then train, and find them one by one.
    """
    train(experiments, device=device, **how)
    return [run(e, device=device, progress=False) for e in experiments]


def train(
    experiments: Sequence[Experiment],
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
    live table; ``retry`` trains runs again that diverged before.

    Failures, a killed worker among them, are collected and raised together as SweepFailed after
    everything else has finished; on a cluster a run that was lost is first tried elsewhere.
    Interrupted with Ctrl-C, the workers store where they are and stop, KeyboardInterrupt says how
    far they came, and the same call continues.
    """
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    lacking = [e for e in experiments if find(e) is None]
    # Stages before them with their state: nothing can follow an exported result, which lacks it.
    stages = (s for e in lacking for s in e.stages if s.key == e.key or not store.complete(s))
    missing = [*{s.key: s for s in stages}.values()]
    if not missing:
        return
    options = {"device": device, "chunk": chunk, "retry": retry}
    with Table({e.key: _name(e) for e in missing}, show=progress) as table:
        try:
            pool = _pool(min(workers, len(missing)), address, options, table)
            failures = _train(pool, missing, table)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"the sweep was interrupted: {table.finished} of {len(missing)} runs are done, "
                "those under way are stored up to their last round; the same call continues"
            ) from None
    if failures:
        said = [f"{e}\n  key {e.key}: {_in_words(x)}" for e, x in failures]
        text = f"{len(failures)} of {len(missing)} runs failed, what finished is stored:\n\n"
        raise SweepFailed(text + "\n\n".join(said)) from failures[0][1]


def _pool(workers: int, address: str | None, options: dict[str, Any], table: Table) -> Pool:
    if address is not None:
        from fedlib.runs.cluster import Cluster

        return Cluster(address, options, table)
    return Processes(workers, options, table) if workers > 1 else Pool(options, table)


def _train(
    pool: Pool, missing: Sequence[Experiment], table: Table
) -> list[tuple[Experiment, BaseException]]:
    """Hand runs out in their order, those that build on others when these have ended."""
    waiting = {e.key: e for e in missing}
    needs = {e.key: {s.key for s in e.stages[:-1]} & waiting.keys() for e in missing}
    left, failed = {*waiting}, dict[str, tuple[Experiment, BaseException]]()

    def end(experiment: Experiment, error: BaseException | None) -> None:
        left.discard(experiment.key)
        if error is not None:
            failed[experiment.key] = experiment, error
        table.end(experiment.key, error)

    def ready() -> Experiment | None:
        return next((e for key, e in waiting.items() if not needs[key] & left), None)

    try:
        while left:
            while len(left) - len(waiting) < pool.slots() and (e := ready()):
                del waiting[e.key]
                broken = needs[e.key] & failed.keys()
                if broken or (store.complete(e) and find(e)):  # by another process, meanwhile
                    end(e, failed[min(broken)][1] if broken else None)
                else:
                    pool.give(e)
            for ended in pool.ended():
                end(*ended)
            table.draw()
    finally:
        pool.stop()
    return [*failed.values()]


def _name(e: Experiment) -> str:
    return f"{e.algorithm} on {e.task.dataset}, {e.task.partition}, seed {e.seed}"


def _in_words(error: BaseException) -> str:
    """Return an error with its short notes: on which machine it happened, not its traceback."""
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    return " ".join([f"{type(error).__name__}: {error}", *notes])


class Processes(Pool):
    """Spawned processes, each with a pipe of its own: who dies takes only its own run."""

    def __init__(self, workers: int, options: dict[str, Any], table: Table) -> None:
        super().__init__(options, table)
        self._workers, self._team = workers, list[_Worker]()

    def slots(self) -> int:
        return self._workers

    def give(self, experiment: Experiment) -> None:
        worker = next((w for w in self._team if w.experiment is None), None)
        if worker is None:
            with _deaf_to_ctrl_c():
                worker = _Worker(self.options)
            self._team.append(worker)
        worker.experiment = experiment
        self.table.start(experiment.key, experiment.rounds)
        with suppress(OSError):  # one that has died is noticed when it is listened to
            worker.pipe.send(experiment)

    def ended(self) -> list[Ended]:
        ends: list[Ended] = []
        heard = wait([w.pipe for w in self._team if w.experiment], timeout=1.0)
        for worker in [w for w in self._team if w.pipe in heard]:
            kind, said = self._listen(worker)
            assert worker.experiment is not None
            if kind == "round":
                self.table.round(worker.experiment.key, *said)
            else:
                ends.append((worker.experiment, said))
                worker.experiment = None
        return ends

    def _listen(self, worker: _Worker) -> tuple[str, Any]:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError):
            self._team.remove(worker)
            return "ended", WorkerDied(
                f"its process ended ({worker.obituary()}); what it stored before is kept, the same "
                "call continues it"
            )

    def stop(self) -> None:
        """End the processes: with SIGTERM they store where they are."""
        for worker in self._team:
            worker.process.terminate()
        end = time.monotonic() + SECONDS_TO_STOP
        for worker in self._team:
            worker.process.join(max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Let processes that are started here never hear of Ctrl-C, not even before they listen."""
    resource_tracker.ensure_running()  # when it starts, it lets Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process that trains what it is given, and says how far it is."""

    def __init__(self, options: dict[str, Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(target=_serve, args=(far, options), daemon=True)
        self.process.start()
        far.close()
        self.experiment: Experiment | None = None

    def obituary(self) -> str:
        """Return how it ended."""
        self.process.join(SECONDS_TO_STOP)
        code = self.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hints = {
            -signal.SIGKILL: ", perhaps for want of memory",
            1: ", its traceback is above; a script needs `if __name__ == '__main__':`",
        }
        return how + hints.get(code, "")


def _serve(pipe: Connection, options: dict[str, Any]) -> None:
    """Train what comes through the pipe until nobody is at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent says what to do
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(("ended", _answer(pipe, options)))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to store


def _answer(pipe: Connection, options: dict[str, Any]) -> Exception | None:
    def tell(*said: Any) -> None:
        try:
            pipe.send(("round", said))
        except OSError:
            sys.exit(1)  # the parent is gone: store the round and end

    try:
        experiment = pipe.recv()
    except (AttributeError, ImportError) as error:
        return UnknownClass(f"{error}. A worker knows no class of a notebook: put it into a module")
    return trained(experiment, tell, SECONDS_BETWEEN_MESSAGES, options)


def trained(
    experiment: Experiment, tell: Watcher, seconds: float, options: dict[str, Any]
) -> Exception | None:
    """Train a run, telling of it every few seconds and where a stage begins or ends.

    Returns what went wrong, such that it can be sent to another process.
    """
    last = 0.0

    def seldom(done: int, total: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        if loss != loss or done == total or now - last > seconds:
            tell(done, total, loss)
            last = now

    try:
        run_with_state(experiment, progress=seldom, **options)
        return None
    except Exception as error:
        return sendable(error)


def sendable(error: Exception) -> Exception:
    """Return the error if it survives the way to another process, else one that says the same.

    Where it came from goes along as a note.
    """
    place = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
        known = type(error).__module__ not in ("__main__", "__mp_main__")
    except Exception:
        known = False
    if not known:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the process that trained it:\n{place}")
    return error
