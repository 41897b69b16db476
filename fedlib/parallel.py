"""Use all cores for one run by mapping a function over items in forked child processes.

On two cores a round of a small network is 1.1 to 1.3 times as fast as on one, and that of a network
of 64 channels 1.7 times (``benchmarks/measured.txt``). Child processes are forked for some work and
end with it. They share the memory of this process (copy on write), with data and parameters, so
only results are sent back. Forking is safe here, as in torch's data loaders, since every process
has one torch thread, and so none needs a thread pool, which a fork does not copy.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Found = TypeVar("Found")

MIN_SECONDS = 0.05  # work of fewer seconds is not distributed, as a fork takes 5 to 10 ms

_THREADS = "/proc/self/task"

_cores = 1
_pace: dict[str, float] = {}  # last measured seconds per item, by kind of work


@contextmanager
def all_cores(device: torch.device, cohort: Any) -> Iterator[None]:
    """Let ``map_chunks`` use as many processes as torch has threads, with one thread in each.

    This has no effect on a machine with a GPU (a fork does not copy its driver's threads), for a
    cohort of one client, and if processes cannot be forked safely: on other systems than Linux, and
    in daemonic processes.

    Args:
        device: the device of the run.
        cohort: the cohort of the experiment.
    """
    global _cores
    threads = torch.get_num_threads()
    able = sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()
    able = able and not multiprocessing.current_process().daemon
    if threads == 1 or (isinstance(cohort, int) and cohort == 1) or not able:
        yield
        return
    torch.set_num_threads(1)
    _let_threads_end()
    _cores = threads
    try:
        yield
    finally:
        _cores = 1
        torch.set_num_threads(threads)


def _let_threads_end() -> None:
    """Wait until the other threads of this process sleep, for at most a second.

    After the number of torch's threads was reduced, some threads of OpenMP are ending. They hold
    locks of MKL's memory, for which a process that is forked meanwhile would wait forever.
    """
    until, this = time.monotonic() + 1, {str(threading.get_native_id())}
    while time.monotonic() < until and any(map(_busy, {*os.listdir(_THREADS)} - this)):
        time.sleep(0.001)


def _busy(thread: str) -> bool:
    with suppress(OSError):  # the thread has ended
        fields = Path(_THREADS, thread, "stat").read_text("utf-8")
        return fields.rpartition(")")[2].split()[0] in "RD"
    return False


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its ``parent`` ends for any reason. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent has already ended
            os._exit(1)


def map_chunks(
    fn: Callable[[Item], Found], items: Sequence[Item], kind: str
) -> Iterator[tuple[int, Found]]:
    """Yield ``(index, fn(item))`` for each item, in the order of completion.

    Items are distributed over the processes of ``all_cores``; nested calls, and all calls if no
    process can be forked, run in the calling process.

    Args:
        fn: a function without side effects, whose results can be pickled and have CPU tensors.
        items: the items; those that take longest should come first.
        kind: name of the kind of work. The time per item is measured for each kind, and work of
            less than ``MIN_SECONDS`` is not distributed.

    Raises:
        RuntimeError: if a child process dies. An error of ``fn`` is raised as in a loop: that of
            the first item that failed.
    """

    def timed(i: int) -> tuple[int, Found]:
        begin = time.perf_counter()
        found = fn(items[i])
        _pace[kind] = time.perf_counter() - begin
        return i, found

    start = 0
    if _cores > 1 and items and kind not in _pace:
        yield timed(0)
        start = 1
    workers = min(_cores, len(items) - start)
    if workers < 2 or _pace[kind] * (len(items) - start - 1) < MIN_SECONDS:
        yield from map(timed, range(start, len(items)))
    else:
        yield from _fork_map(timed, start, len(items), workers - 1)


def map_ordered(fn: Callable[[Item], Found], items: Sequence[Item], kind: str) -> list[Found]:
    """Return ``fn(item)`` for each item, in the order of items; arguments as for ``map_chunks``."""
    found = dict(map_chunks(fn, items, kind))
    return [found[i] for i in range(len(items))]


def _fork_map(
    fn: Callable[[int], tuple[int, Any]], start: int, end: int, copies: int
) -> Iterator[tuple[int, Any]]:
    """Yield the results of this process and its children; raise the first error at the end."""
    fork, team = multiprocessing.get_context("fork"), list[tuple[Any, Connection]]()
    failed: dict[int, Exception] = {}
    try:
        work = partial(_work, fn, fork.Value("q", start), end)
    except OSError:  # too many open files
        yield from map(fn, range(start, end))
        return
    try:
        with suppress(OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork in a notebook, with threads
            for _ in range(copies):
                pipe, far = fork.Pipe(duplex=False)
                process = fork.Process(target=_child_main, args=(work, far, os.getpid()))
                process.start()
                far.close()
                team.append((process, pipe))
        for i, found in chain(work(), *(_receive(*one) for one in team)):
            if isinstance(found, Exception):
                failed[i] = found
            else:
                yield i, found
    finally:
        for process, _ in team:
            process.kill()
            process.join()
    if failed:
        raise failed[min(failed)]


def _work(fn: Callable[[int], tuple[int, Any]], begun: Any, end: int) -> Iterator[tuple[int, Any]]:
    """Take the next index and yield its result or error; after an error no process continues."""
    global _cores
    while True:
        with begun.get_lock():
            i, begun.value = begun.value, begun.value + 1
        if i >= end:
            return
        cores, _cores = _cores, 1
        try:
            found = fn(i)
        except Exception as error:
            begun.value, found = end, (i, error)
        finally:
            _cores = cores
        yield found


def _child_main(
    work: Callable[[], Iterator[tuple[int, Any]]], pipe: Connection, parent: int
) -> None:
    """Child process: do the work, send the results, and exit without cleanup handlers."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    gc.freeze()  # objects of the parent are collected by the parent only
    for i, found in [*work()]:
        one = picklable_error(found) if isinstance(found, Exception) else found
        pipe.send_bytes(pickle.dumps((i, one), pickle.HIGHEST_PROTOCOL))
    os._exit(0)


def _receive(process: Any, pipe: Connection) -> Iterator[tuple[int, Any]]:
    """Yield the results that a child process sends; raise RuntimeError if it dies."""
    with suppress(EOFError):
        while True:
            yield pickle.loads(pipe.recv_bytes())
    process.join()
    if code := process.exitcode:
        raise RuntimeError(f"a child process died (exit code {code}), see signal(7)")


def picklable_error(error: Exception) -> Any:
    """Return a picklable form of an error, whose cause after unpickling has the traceback of here.

    An error that cannot be pickled, or whose class is defined in a script, becomes a RuntimeError.
    """
    place, known = error.__traceback__, False
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        known = type(error).__module__ != "__mp_main__"
    if not known:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return ExceptionWithTraceback(error, place)


@contextmanager
def delay_keyboard_interrupt(asked: bool) -> Iterator[Callable[[], bool]]:
    """Delay a first Ctrl-C within the context; a second one raises KeyboardInterrupt at once.

    Nothing changes in other threads than the main one, or with another signal handler.

    Args:
        asked: whether to delay it.

    Yields:
        a function that returns whether Ctrl-C was pressed.
    """
    came, usual = list[int](), signal.default_int_handler

    def wait(number: int, frame: Any) -> None:
        if number in came:  # a worker gets SIGINT from the terminal and SIGTERM from its parent
            usual(number, frame)
        came.append(number)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is usual
    if asked and ours:
        signal.signal(signal.SIGINT, wait)
    try:
        yield lambda: bool(came)
    finally:
        if asked and ours:
            signal.signal(signal.SIGINT, usual)
