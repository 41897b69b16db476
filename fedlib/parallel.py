"""All cores for one run: what can be done side by side is dealt to copies of this process.

Copies are forked when there is work for them and end with it. They see all that this process has,
data and clients' leaves too, in the same memory as long as nobody writes there. So nothing is sent
to them, and only what they find comes back. A fork is safe here, as in torch's data loaders: every
process has one torch thread, so that none asks for a pool of threads that was not copied.
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

MIN_SECONDS = 0.05  # of work after the first item, below which copies take longer than they save

_THREADS = "/proc/self/task"

_cores = 1
_pace: dict[str, float] = {}  # seconds per item of each kind, as it was last measured


@contextmanager
def all_cores(device: torch.device, cohort: Any) -> Iterator[None]:
    """Let ``parallel_map`` use as many processes as torch has threads, with one thread in each.

    Nothing changes on a machine with a GPU (whose threads no copy would have), for one client, or
    where processes cannot be forked safely: not on Linux, or by a daemon of multiprocessing's.
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
    """Wait until the other threads of this process sleep, a second at most.

    Where torch was given fewer threads than before, some of OpenMP's are ending. These take all
    locks of MKL's memory, and a copy that is made meanwhile would wait for them for ever.
    """
    until, this = time.monotonic() + 1, {str(threading.get_native_id())}
    while time.monotonic() < until and any(map(_busy, {*os.listdir(_THREADS)} - this)):
        time.sleep(0.001)


def _busy(thread: str) -> bool:
    with suppress(OSError):  # it has ended
        told = Path(_THREADS, thread, "stat").read_text("utf-8")
        return told.rpartition(")")[2].split()[0] in "RD"
    return False


def end_with_parent(parent: int) -> None:
    """Have the system end this process when ``parent`` ends, in whatever way. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)


def map_chunks(
    fn: Callable[[Item], Found], items: Sequence[Item], kind: str
) -> Iterator[tuple[int, Found]]:
    """Yield the number of each item and ``fn(item)``, as they are completed.

    ``fn`` changes nothing that lasts; what it finds can be pickled, and its tensors are a CPU's.
    Items that take long come first. ``kind`` names work whose items take about as long, so that
    little work is not spread. What is spread inside an item of spread work stays in its process,
    and so does all where the system has no room for a copy. Raises what ``fn`` raised of the first
    item of which it did, as a loop over items would, and RuntimeError if a copy dies.
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
    """Return what ``parallel_map`` yields of each item, in their order."""
    found = dict(map_chunks(fn, items, kind))
    return [found[i] for i in range(len(items))]


def _fork_map(
    fn: Callable[[int], tuple[int, Any]], start: int, end: int, copies: int
) -> Iterator[tuple[int, Any]]:
    """Yield what this process and its copies find, and raise the first error at the end."""
    fork, team = multiprocessing.get_context("fork"), list[tuple[Any, Connection]]()
    failed: dict[int, Exception] = {}
    try:
        work = partial(_work, fn, fork.Value("q", start), end)
    except OSError:  # no file is left to this process
        yield from map(fn, range(start, end))
        return
    try:
        with suppress(OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a notebook's threads
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
    """Take one number after the other; the first that fails ends all."""
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
    """Be a copy: work, then send what was found, and end without a copy's farewells."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is its parent's business
    gc.freeze()  # what is garbage here is cleared up there
    for i, found in [*work()]:
        one = picklable_error(found) if isinstance(found, Exception) else found
        pipe.send_bytes(pickle.dumps((i, one), pickle.HIGHEST_PROTOCOL))
    os._exit(0)


def _receive(process: Any, pipe: Connection) -> Iterator[tuple[int, Any]]:
    """Yield what a copy sends until it ends; RuntimeError if it dies."""
    with suppress(EOFError):
        while True:
            yield pickle.loads(pipe.recv_bytes())
    process.join()
    if code := process.exitcode:
        raise RuntimeError(f"a copy of this process died (exit code {code}), see signal(7)")


def picklable_error(error: Exception) -> Any:
    """Return what is an error when it has been pickled, with the traceback of here as its cause.

    One that cannot be pickled, or is of a class of a spawned script, is a RuntimeError there.
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
    """Let a first Ctrl-C wait; yields what says whether it has come. A second one does not wait.

    Where it is not ``asked`` for, or Ctrl-C does no KeyboardInterrupt to this thread, all stays.
    """
    came, usual = list[int](), signal.default_int_handler

    def wait(number: int, frame: Any) -> None:
        if came:
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
