"""All cores for one run: what can be done side by side is dealt to copies of this process.

Copies are forked when there is work for them and end with it. They see all that this process has,
data and clients' leaves too, in the same memory as long as nobody writes there. So nothing is sent
to them, and only what they find comes back. A fork is safe here, as in torch's data loaders: every
process has one torch thread, so that none asks for a pool of threads that was not copied.
"""

import gc
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any, BinaryIO, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Found = TypeVar("Found")

WORTH = 0.05  # seconds of work beside the first item, below which copies take longer than they save

_cores = 1
_pace: dict[str, float] = {}  # seconds per item of each kind, as it was last measured


@contextmanager
def all_cores(device: torch.device, cohort: Any) -> Iterator[None]:
    """Let ``spread`` use as many processes as torch has threads, with one thread in each.

    Nothing changes on a GPU and beside one (whose threads no copy would have), for one client, or
    where processes cannot be forked safely: not on Linux.
    """
    global _cores
    threads = torch.get_num_threads()
    able = sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()
    if threads == 1 or (isinstance(cohort, int) and cohort == 1) or not able:
        yield
        return
    torch.set_num_threads(1)
    _cores = threads
    try:
        yield
    finally:
        _cores = 1
        torch.set_num_threads(threads)


def spread(
    fn: Callable[[Item], Found], items: Sequence[Item], kind: str
) -> Iterator[tuple[int, Found]]:
    """Yield the number of each item and ``fn(item)``, as they are completed.

    ``fn`` changes nothing that lasts; what it finds can be pickled, and its tensors are a CPU's.
    Items that take long come first. ``kind`` names work whose items take about as long, so that
    little work is not spread. Raises what ``fn`` raised of the first item of which it did, as a
    loop over items would, and RuntimeError for a process that died.
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
    if workers < 2 or _pace[kind] * (len(items) - start - 1) < WORTH:
        yield from map(timed, range(start, len(items)))
        return
    with _memory() as queue:
        queue.write(b"".join(i.to_bytes(4, "big") for i in range(start, len(items))))
        queue.seek(0)
        yield from _dealt(lambda: _work(timed, queue), workers - 1)


def _work(fn: Callable[[int], tuple[int, Any]], queue: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Do what the numbers in a file stand for; the first that fails is everybody's last.

    Processes share their place in a file that they have inherited: who reads a number takes it.
    """
    while number := os.read(queue.fileno(), 4):
        i = int.from_bytes(number, "big")
        try:
            yield fn(i)
        except Exception as error:
            os.lseek(queue.fileno(), 0, os.SEEK_END)
            yield i, error


def _dealt(work: Callable[[], Iterator[tuple[int, Any]]], copies: int) -> Iterator[tuple[int, Any]]:
    """Yield what this process and some copies of it find, and raise the first error at the end."""
    team: dict[int, BinaryIO] = {}
    failed: dict[int, Exception] = {}

    def found() -> Iterator[tuple[int, Any]]:
        yield from work()
        for pid in [*team]:
            status = os.waitpid(pid, 0)[1]
            with team.pop(pid) as file:
                if status:
                    how = os.waitstatus_to_exitcode(status)
                    raise RuntimeError(
                        f"a copy of this process died (exit code {how}), see signal(7)"
                    )
                file.seek(0)
                with suppress(EOFError):
                    while True:
                        yield pickle.load(file)

    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # only copies stay deaf
        try:
            for _ in range(copies):
                file = _memory()
                team[_forked(work, file)] = file
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for i, one in found():
            if isinstance(one, Exception):
                failed[i] = one
            else:
                yield i, one
    finally:
        for pid, file in team.items():
            with suppress(OSError):  # it has ended while this was interrupted
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            file.close()
    if failed:
        raise failed[min(failed)]


def _forked(work: Callable[[], Iterator[tuple[int, Any]]], file: BinaryIO) -> int:
    """Return the number of a copy of this process that works, writes what it finds, and ends."""
    global _cores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside a notebook's threads
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        gc.freeze()  # what is garbage here is cleared up there
        _cores = 1
        for i, found in work():
            one = sendable(found) if isinstance(found, Exception) else found
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((i, one))
        file.flush()
        code = 0
    finally:
        os._exit(code)


def sendable(error: Exception) -> Any:
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


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays, which go to a file as they lie in memory."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how a tensor is made again."""
        if isinstance(obj, Tensor):
            return torch.from_numpy, (obj.detach().numpy(),)
        return NotImplemented


def _memory() -> BinaryIO:
    """Return a file that lies in memory and ends with who has it."""
    return open(os.memfd_create("fedlib"), "w+b")
