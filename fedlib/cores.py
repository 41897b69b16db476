"""All cores for one run: what can be done side by side is dealt to copies of this process.

Copies are forked when there is work for them and end with it. They see all that this process has,
data and clients' leaves too, in the same memory as long as nobody writes there. So nothing is sent
to them, and only what they find comes back. A fork is safe here, as in torch's data loaders: every
process has one torch thread, so that none asks for a pool of threads that was not copied.
"""

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
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

MIN_SECONDS = (
    0.05  # seconds of work beside the first item, below which copies take longer than they save
)

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_cores = 1
_pace: dict[str, float] = {}  # seconds per item of each kind, as it was last measured


@contextmanager
def all_cores(device: torch.device, cohort: Any) -> Iterator[None]:
    """Let ``parallel_map`` use as many processes as torch has threads, with one thread in each.

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


def end_with_parent(parent: int) -> None:
    """Have the system end this process when ``parent`` ends, in whatever way. Only on Linux."""
    if sys.platform == "linux":
        assert _libc is not None
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)


def parallel_map(
    fn: Callable[[Item], Found], items: Sequence[Item], kind: str
) -> Iterator[tuple[int, Found]]:
    """Yield the number of each item and ``fn(item)``, as they are completed.

    ``fn`` changes nothing that lasts; what it finds can be pickled, and its tensors are a CPU's.
    Items that take long come first. ``kind`` names work whose items take about as long, so that
    little work is not spread. What is spread inside an item of spread work stays in its process,
    and so does all where the system has no room for a copy. Raises what ``fn`` raised of the first
    item of which it did, as a loop over items would, and RuntimeError as soon as a copy dies.
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
        return
    try:
        queue = _memory()
    except OSError:  # no file is left to this process
        yield from map(timed, range(start, len(items)))
        return
    with queue:
        queue.write(b"".join(i.to_bytes(4, "big") for i in range(start, len(items))))
        queue.seek(0)
        yield from _parallel(lambda: _work(timed, queue), workers - 1)


def _work(fn: Callable[[int], tuple[int, Any]], queue: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Do what the numbers in a file stand for; the first that fails is everybody's last.

    Processes share their place in a file that they have inherited: who reads a number takes it.
    """
    global _cores
    while number := os.read(queue.fileno(), 4):
        i, cores = int.from_bytes(number, "big"), _cores
        try:
            _cores = 1
            found: tuple[int, Any] = fn(i)
        except Exception as error:
            os.lseek(queue.fileno(), 0, os.SEEK_END)
            found = i, error
        finally:
            _cores = cores
        yield found


def _parallel(
    work: Callable[[], Iterator[tuple[int, Any]]], workers: int
) -> Iterator[tuple[int, Any]]:
    """Yield what this process and some copies of it find, and raise the first error at the end."""
    team = _Team()
    failed: dict[int, Exception] = {}

    def found() -> Iterator[tuple[int, Any]]:
        yield from work()
        while team.files:
            yield from team.joined()

    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # only copies stay deaf
        try:
            with suppress(OSError):  # for want of memory or processes: then with fewer copies
                for _ in range(workers):
                    team.hire(work)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        results = found()
        while True:
            with team.watched():
                i, one = next(results, (-1, None))
            if i < 0:
                break
            if isinstance(one, Exception):
                failed[i] = one
            else:
                yield i, one
    except _Died as died:
        raise RuntimeError(str(died)) from None
    finally:
        team.end()
    if failed:
        raise failed[min(failed)]


class _Died(BaseException):
    """A copy has died: raised wherever this process is, and nobody's ``except Exception``."""


class _Team:
    """Copies of this process, by their numbers, each with the file that it writes to."""

    def __init__(self) -> None:
        self.files: dict[int, BinaryIO] = {}
        self._ended: set[int] = set()

    def hire(self, work: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        """Make a copy that works; OSError where the system has no room for one."""
        file = _memory()
        try:
            self.files[_forked(work, file)] = file
        except OSError:
            file.close()
            raise

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the copies first, and whenever one ends, if this thread is told of that."""
        if told := threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGCHLD, lambda *_: self.look())
        try:
            self.look()
            yield
        finally:
            if told:
                signal.signal(signal.SIGCHLD, before)

    def look(self, wait: int = os.WNOHANG) -> None:
        """Note which copies have ended, and raise _Died if one has died."""
        for pid in [p for p in self.files if p not in self._ended]:
            with suppress(ChildProcessError):  # somebody else has waited for it
                found, status = os.waitpid(pid, wait)
                if not found:
                    continue
                self._ended.add(pid)
                if status:
                    how = os.waitstatus_to_exitcode(status)
                    raise _Died(f"a copy of this process died (exit code {how}), see signal(7)")

    def joined(self) -> Iterator[tuple[int, Any]]:
        """Wait for a copy and yield what it has found."""
        self.look(wait=0)
        with self.files.pop(next(iter(self.files))) as file:
            file.seek(0)
            with suppress(EOFError):
                while True:
                    yield pickle.load(file)

    def end(self) -> None:
        """Leave no copy behind."""
        for pid, file in self.files.items():
            if pid not in self._ended:
                with suppress(OSError):  # it has ended while this was interrupted
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            file.close()


def _forked(work: Callable[[], Iterator[tuple[int, Any]]], file: BinaryIO) -> int:
    """Return the number of a copy of this process that works, writes what it finds, and ends."""
    global _cores
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside a notebook's threads
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
        """Return how a tensor is made again, of every kind of number and with its layout.

        One that is no array (sparse, quantised) is written as torch does it.
        """
        if type(obj) not in (Tensor, torch.nn.Parameter) or obj.layout != torch.strided:
            return NotImplemented
        if obj.is_quantized:
            return NotImplemented
        t = obj.detach().resolve_conj().resolve_neg()
        order = sorted(range(t.ndim), key=lambda d: (-t.stride(d), d))
        dense = t.permute(order).contiguous()
        return _tensor, (dense.reshape(-1).view(torch.uint8).numpy(), t.dtype, dense.shape, order)


def _tensor(numbers: Any, dtype: torch.dtype, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return a tensor of some bytes, whose dimensions lie in memory in a certain order."""
    lying = torch.from_numpy(numbers).view(dtype).view(shape)
    return lying.permute([order.index(d) for d in range(len(order))])


def _memory() -> BinaryIO:
    """Return a file that lies in memory and ends with who has it."""
    return open(os.memfd_create("fedlib"), "w+b")
