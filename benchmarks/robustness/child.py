"""Forked processes: torch is loaded already, so that one costs milliseconds and may be killed."""

import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 600.0
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock"}
"""What Python says before it touches a file."""


class Ended(NamedTuple):
    """How a process ended: its code, -signal, or None if it hung; what it returned or raised."""

    code: int | None
    said: Any = None
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether it was killed, and did not end by itself before that."""
        return self.code == -signal.SIGKILL


class Child:
    """A forked process that does something and says what came of it, as JSON."""

    def __init__(self, act: Callable[[], Any], *, own_group: bool = False) -> None:
        self._near, far = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's idle threads
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._near)
            if own_group:
                os.setpgrp()
            _live(act, far)
        os.close(far)

    def kill(self, after: float = 0.0) -> None:
        """Kill it after some seconds, unless it ends before."""
        end = time.monotonic() + after
        while time.monotonic() < end and not self.over():
            time.sleep(min(0.005, max(0.0, end - time.monotonic())))
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def over(self) -> bool:
        """Return whether it has ended; it stays to be waited for."""
        how = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return how is not None

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait until it ends; one that has not after some seconds hangs, and is killed."""
        end = time.monotonic() + seconds
        while not self.over():
            if time.monotonic() > end:
                self.kill()
                os.waitpid(self.pid, 0)
                os.close(self._near)
                return Ended(None, error=f"hung for {seconds:.0f} s")
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with os.fdopen(self._near, "rb") as pipe:
            data = pipe.read()
        said, error = json.loads(data) if data else (None, "")
        return Ended(code, said, error)


def _live(act: Callable[[], Any], far: int) -> None:
    code, said, error = 1, None, ""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        said, code = act(), 0
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"[:4000]
    finally:
        try:
            os.write(far, json.dumps((said, error), default=repr).encode())
        finally:
            os._exit(code)  # whatever happens: a child that went on would run the parent's tests


def call(act: Callable[[], Any], seconds: float = SECONDS) -> Ended:
    """Do something in a child and wait for it."""
    return Child(act).wait(seconds)


def dying_at(moment: int, act: Callable[[], Any]) -> Callable[[], Any]:
    """Return an act that is killed before it touches a file for the n-th time."""

    def doomed() -> Any:
        seen = 0

        def look(event: str, _: Any) -> None:
            nonlocal seen
            if event in FILE_EVENTS:
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        return act()

    return doomed


def touches(act: Callable[[], Any]) -> int:
    """Return how often an act touches a file; it is done in a child."""

    def counted() -> int:
        seen = 0

        def look(event: str, _: Any) -> None:
            nonlocal seen
            seen += event in FILE_EVENTS

        sys.addaudithook(look)
        act()
        return seen

    ended = call(counted)
    if ended.code != 0:
        raise RuntimeError(f"undisturbed it ended with {ended.code}: {ended.error}")
    return int(ended.said)


def limit_memory(more: int = 3 << 30) -> None:
    """Let this process have so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
