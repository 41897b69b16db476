"""Runs over the processes of this machine: spawned, with one torch thread each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from fedlib.runs import Experiment, run
from fedlib.runs.table import Failures, Table

SECONDS_BETWEEN_MESSAGES = 0.1
SECONDS_TO_STOP = 20.0


class WorkerDied(RuntimeError):
    """A worker's process ended without a word."""


class UnknownClass(RuntimeError):
    """An experiment is made of classes that a worker cannot import."""


def here(experiments: Sequence[Experiment], options: dict[str, Any], table: Table) -> Failures:
    """Train one after the other in this process."""
    failures: Failures = []
    for experiment in experiments:
        table.start(experiment)
        try:
            run(experiment, progress=partial(table.round, experiment), **options)
            table.done(experiment)
        except Exception as error:
            failures.append((experiment, error))
            table.fail(experiment, error)
    return failures


def in_processes(
    experiments: Sequence[Experiment], workers: int, options: dict[str, Any], table: Table
) -> Failures:
    """Train over some processes. Each has a pipe of its own: who dies takes only its own run."""
    waiting, failures = deque(experiments), Failures()
    team: list[_Worker] = []
    try:
        while waiting or team:
            while waiting and len(team) < workers:
                with _deaf_to_ctrl_c():
                    team.append(_Worker(options))
                team[-1].give(waiting.popleft(), table)
            for worker in _heard(team):
                if worker.listen(table, failures):
                    if waiting and worker.alive:
                        worker.give(waiting.popleft(), table)
                    else:
                        team.remove(worker)
                        worker.dismiss()
            table.draw()
    finally:
        _stop(team)
    return failures


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Let processes that are started here never hear of Ctrl-C, not even before they listen."""
    resource_tracker.ensure_running()  # when it starts, it lets Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _heard(team: Sequence[_Worker]) -> list[_Worker]:
    """Return the workers that have something to say, or after a second nobody."""
    said = wait([w.pipe for w in team], timeout=1.0)
    return [w for w in team if w.pipe in said]


class _Worker:
    """A process that trains what it is given, and says how far it is."""

    def __init__(self, options: dict[str, Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(target=_serve, args=(far, options), daemon=True)
        self.process.start()
        far.close()
        self.alive = True
        self._experiment: Experiment | None = None

    def give(self, experiment: Experiment, table: Table) -> None:
        """Let it train an experiment."""
        self._experiment = experiment
        table.start(experiment)
        with suppress(OSError):  # one that has died is noticed when it is listened to
            self.pipe.send(experiment)

    def listen(self, table: Table, failures: Failures) -> bool:
        """Hear one message; return whether its run has ended, for better or worse."""
        experiment = self._experiment
        assert experiment is not None
        try:
            kind, said = self.pipe.recv()
        except (EOFError, OSError):
            kind, said, self.alive = "failed", self._obituary(), False
        if kind == "round":
            table.round(experiment, *said)
            return False
        if kind == "failed":
            failures.append((experiment, said))
            table.fail(experiment, said)
        else:
            table.done(experiment)
        return True

    def dismiss(self) -> None:
        """Let it go: it ends when nobody is at the other end of its pipe."""
        self.pipe.close()

    def _obituary(self) -> WorkerDied:
        self.process.join(SECONDS_TO_STOP)
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += ", perhaps for want of memory"
        if code == 1:
            how += ", its traceback is above; a script needs `if __name__ == '__main__':`"
        return WorkerDied(
            f"its process ended ({how}); what it stored before is kept, the same call continues it"
        )


def _stop(team: Sequence[_Worker]) -> None:
    """End the processes: with SIGTERM they store where they are."""
    for worker in team:
        worker.process.terminate()
    end = time.monotonic() + SECONDS_TO_STOP
    for worker in team:
        worker.process.join(max(0.0, end - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()


def _serve(pipe: Connection, options: dict[str, Any]) -> None:
    """Train what comes through the pipe until nobody is at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent says what to do
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_answer(pipe, options))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to store


def _answer(pipe: Connection, options: dict[str, Any]) -> tuple[str, Exception | None]:
    try:
        experiment = loaded(pipe.recv)
    except UnknownClass as error:
        return "failed", error
    return _trained(experiment, pipe, options)


def loaded(read: Callable[[], Experiment]) -> Experiment:
    """Return the experiment that ``read`` unpickles; UnknownClass if it is of none known here."""
    try:
        return read()
    except (AttributeError, ImportError) as error:
        text = f"{error}. A worker knows no class of a notebook: put it into a module"
        raise UnknownClass(text) from error


def _trained(
    experiment: Experiment, pipe: Connection, options: dict[str, Any]
) -> tuple[str, Exception | None]:
    last = 0.0

    def told(done: int, total: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        begins_or_ends = loss != loss or done == total
        if begins_or_ends or now - last > SECONDS_BETWEEN_MESSAGES:
            try:
                pipe.send(("round", (done, total, loss)))
            except OSError:
                sys.exit(1)  # the parent is gone: store the round and end
            last = now

    try:
        run(experiment, progress=told, **options)
        return "done", None
    except Exception as error:
        return "failed", sendable(error)


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
