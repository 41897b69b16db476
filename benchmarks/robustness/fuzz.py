"""Many hostile cases in children: none may hang, crash, eat the memory or run code."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.robustness.child import Child, limit_memory
from benchmarks.robustness.plan import Row
from fedlib.data import DatasetError
from fedrun import RunDiverged, StoreError
from fedrun.files import Damaged

SECONDS_OF_A_CASE = 300.0
OURS = (StoreError, Damaged, DatasetError, RunDiverged)
CODE = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}
LIBRARY = f"{os.sep}fedlib{os.sep}"


def clear(error: BaseException) -> bool:
    """Return whether an error is one of fedlib's own: its kind, or a value refused by its code."""
    if isinstance(error, OURS):
        return len(str(error)) < 5000
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError | TypeError) and LIBRARY in last and bool(str(error))


def told(error: BaseException) -> str:
    """Return what an error is and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error}"[:300]


def every(row: Row, cases: Sequence[Any], act: Callable[[Any], str]) -> None:
    """Do something with every case in children, and count the outcomes that it returns.

    An outcome that begins with "!" is a broken promise, as is an error that is not clear, a crash,
    a hang, or code that was executed. ``act`` is given a case.
    """
    log = Path(os.environ["FEDLIB_RUNS"]).with_name("fuzz.log")
    begun = 0
    while begun < len(cases):
        log.write_text("", "utf-8")
        child = Child(lambda begun=begun: _work(cases[begun:], act, log))  # type: ignore[misc]
        crash = _watched(child, log)
        lines = log.read_text("utf-8").splitlines()
        for line in lines:
            _count(row, *json.loads(line))
        begun += len(lines)
        if crash and begun < len(cases):
            row.broke(f"{crash}: case {begun}: {str(cases[begun])[:100]}")
            begun += 1


def _watched(child: Child, log: Path) -> str:
    """Wait for a child that works through cases; return how it died, or ""."""
    size, since = 0, time.monotonic()
    while not child.over():
        time.sleep(0.05)
        if log.stat().st_size != size:
            size, since = log.stat().st_size, time.monotonic()
        if time.monotonic() - since > SECONDS_OF_A_CASE:
            child.kill()
            child.wait()
            return f"hung for {SECONDS_OF_A_CASE:.0f} s"
    ended = child.wait()
    code = ended.code or 0
    return signal.Signals(-code).name if code < 0 else ended.error


def _count(row: Row, case: str, outcome: str) -> None:
    if outcome[0] == "!":
        row.broke(f"{outcome[1:]} ({case})")
    else:
        row.note(outcome)


def _work(cases: Sequence[Any], act: Callable[[Any], str], log: Path) -> None:
    ran: list[str] = []
    sys.addaudithook(lambda event, args: ran.append(event) if event in CODE else None)
    limit_memory()
    with log.open("a", buffering=1, encoding="utf-8") as file:
        for case in cases:
            outcome = _outcome(case, act)
            if ran:
                outcome = f"!code was executed: {ran.pop()}"
            with suppress(UnicodeEncodeError):
                print(json.dumps((str(case)[:100], outcome)), file=file)


def _outcome(case: Any, act: Callable[[Any], str]) -> str:
    try:
        return act(case)
    except Exception as error:
        return "clear error" if clear(error) else f"!{told(error)}"
