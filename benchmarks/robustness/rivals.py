"""Rivals: several processes need the same thing at once; one makes it, the others wait and read.

Four processes begin at the same moment; rounds played and data sets decoded are counted over all of
them. In the last row one of two is killed while it trains and the other waits.
"""

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.robustness import child, tiny
from benchmarks.robustness.plan import Plan, Row
from fedlib.data import cache

RIVALS = 4
RUN = tiny.BEST
PLAYING = importlib.import_module("fedrun.train"), "play_round"


def measure(plan: Plan) -> list[Row]:
    """Have processes train one run and decode one data set; kill the one that holds the lock."""
    with tiny.home(plan.place("calm")):
        tiny.play(RUN)
        expected = tiny.bits(RUN)
    again = max(1, plan.kills // 40)
    with tiny.data(plan.place("data")):
        return [
            _once(plan, "run", again, PLAYING, RUN.rounds, lambda: _same(expected)),
            _once(plan, "data set", again, (cache, "_write"), 1, tiny.opened),
            _killed(plan, again, expected),
        ]


def _same(expected: tiny.Bits) -> bool:
    tiny.play(RUN)
    return tiny.bits(RUN) == expected


def _marking(place: Path, module: Any, name: str, act: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function in which each call of a function of a module leaves a mark in a file."""
    plain = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        with (place / "marks").open("a", encoding="utf-8") as file:
            file.write("x")
        return plain(*args, **kwargs)

    def marked() -> Any:
        with patch.object(module, name, counted):
            return act()

    return marked


def _marks(place: Path) -> int:
    file = place / "marks"
    return os.path.getsize(file) if file.exists() else 0


def _once(
    plan: Plan, what: str, again: int, counted: tuple[Any, str], work: int, act: Callable[[], Any]
) -> Row:
    row = Row(f"{RIVALS} processes need one {what} that is not there")
    for n in range(again):
        with tiny.home(plan.place(f"{what}-{n}")) as place:
            start, marked = time.monotonic() + 0.05 * RIVALS, _marking(place, *counted, act)

            def punctual(start: float = start, marked: Callable[[], Any] = marked) -> Any:
                time.sleep(max(0.0, start - time.monotonic()))
                return marked()

            ended = [c.wait() for c in [child.Child(punctual) for _ in range(RIVALS)]]
            failed, done = [e.error for e in ended if e.code != 0], _marks(place)
            fine = not failed and done == work and len({e.said for e in ended} - {False}) == 1
            broken = f"!{done} pieces of work instead of {work}; {failed}"
            row.note("made once, the same for all" if fine else broken)
    return row


def _killed(plan: Plan, again: int, expected: tiny.Bits) -> Row:
    """Kill the process that holds the lock after a round; the other one waits, and continues."""
    row = Row("one of two killed while it holds the lock")
    for n in range(again):
        with tiny.home(plan.place(f"heir-{n}")) as place:
            act = _marking(place, *PLAYING, lambda: tiny.play(RUN))
            first = child.Child(act)
            child.until(lambda place=place: _marks(place) > 0)
            heir = child.Child(act)
            first.kill(after=plan.rng("heir", n).random() * 0.2)
            dead, ended = first.wait(), heir.wait()
            fine = "killed, the other went on" if dead.killed else "too late"
            row.note(fine if ended.code == 0 else f"!{ended.error}")
            row.check(tiny.bits(RUN) == expected, "the same bits")
            rounds = _marks(place)
            row.check(rounds <= RUN.rounds + 1, "at most one round lost", f"{rounds} rounds")
    return row
