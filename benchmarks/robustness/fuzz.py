"""Hostile cases in children, none of which may hang, crash, exhaust memory or run code."""

import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks.robustness import child
from benchmarks.robustness.plan import Row, judged

SECONDS_OF_A_CASE = 300.0
CODE = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}


def every(
    row: Row, cases: Iterable[Any], act: Callable[[Any], str], after: Callable[[], Any] = int
) -> None:
    """Call a function with every case in a child, and count the outcomes that it returns.

    An outcome that begins with "!" is a broken promise, and so are an unclear error, a crash, a
    hang, and code that was executed.

    Args:
        row: counts the outcomes.
        cases: the arguments of ``act``.
        act: returns the outcome of a case.
        after: is called after each case, in this process.
    """
    for case in cases:
        ended = child.call(partial(_outcome, case, act), SECONDS_OF_A_CASE)
        code = ended.code or 0
        died = signal.Signals(-code).name if code < 0 else ended.error
        row.note(ended.said or f"!{died}:", case)
        after()


def _outcome(case: Any, act: Callable[[Any], str]) -> str:
    ran: list[str] = []
    sys.addaudithook(lambda event, _: ran.append(event) if event in CODE else None)
    child.limit_memory()
    try:
        outcome = act(case)
    except Exception as error:
        outcome = judged(error)
    return f"!code was executed: {ran[0]}" if ran else outcome
