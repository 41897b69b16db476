"""Forked processes, which start in milliseconds because torch is imported, and may be killed."""

import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

FORK = multiprocessing.get_context("fork")
SECONDS = 600.0
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock"}
"""The audit events that Python raises before operations on files."""


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: its exit code, -signal, or None if it hung.
        said: what it returned.
        error: what it raised.
    """

    code: int | None
    said: Any = None
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether it was killed before it could end by itself."""
        return self.code == -signal.SIGKILL


class Child:
    """A forked process that calls a function and sends back its result or exception."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._near, far = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=_live, args=(act, far))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's idle threads
            self._process.start()
        far.close()
        self.pid = self._process.pid or 0

    def kill(self, after: float = 0.0) -> None:
        """Kill the process after some seconds, unless it ends before."""
        self._process.join(after)
        self._process.kill()

    def over(self) -> bool:
        """Return whether the process has ended."""
        return not self._process.is_alive()

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait for the end of the process; one that hangs is killed after some seconds."""
        self._process.join(seconds)
        hung = not self.over()
        self.kill()
        self._process.join()
        with self._near:
            if hung or not self._near.poll(seconds):
                return Ended(None, error=f"hung for {seconds:.0f} s")
            try:
                return Ended(self._process.exitcode, *self._near.recv())
            except EOFError:  # it was killed
                return Ended(self._process.exitcode)


def _live(act: Callable[[], Any], far: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    try:
        far.send((act(), ""))
    except BaseException as caught:
        far.send((None, f"{type(caught).__name__}: {caught}"[:4000]))
        sys.exit(1)


def call(act: Callable[[], Any], seconds: float = SECONDS) -> Ended:
    """Call a function in a child and wait for its end."""
    return Child(act).wait(seconds)


def until(holds: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Wait until a condition holds; return whether it did within some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _observe_files(touched: Callable[[int], Any]) -> None:
    """Call a function before every file event of this process, with the number of events."""
    numbers = itertools.count(1)
    sys.addaudithook(lambda event, _: event in FILE_EVENTS and touched(next(numbers)))


def dying_at(moment: int, act: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that is killed before its n-th file event."""

    def doomed() -> Any:
        _observe_files(lambda n: n == moment and os.kill(os.getpid(), signal.SIGKILL))
        return act()

    return doomed


def touches(act: Callable[[], Any]) -> int:
    """Return the number of file events of a function, which is called in a child."""

    def counted() -> int:
        seen = list[int]()
        _observe_files(seen.append)
        act()
        return len(seen)

    ended = call(counted)
    if ended.code != 0:
        raise RuntimeError(f"undisturbed it ended with {ended.code}: {ended.error}")
    return int(ended.said)


def limit_memory(more: int = 3 << 30) -> None:
    """Limit the memory of this process to ``more`` bytes above its present use."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
