"""Several processes asked for the same thing at once: one does it, the others wait and read.

Two or four processes begin at the same moment; rounds played and data sets decoded are counted over
all of them. In the last row one of two is killed while it trains and the other waits.
"""

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.robustness import child, tiny, written
from benchmarks.robustness.plan import Plan, Row
from fedlib import paths
from fedlib.data import cache

RUN = tiny.BEST
running = importlib.import_module("fedrun.train")


def measure(plan: Plan) -> list[Row]:
    """Let two and four rivals train one run and decode one data set, and kill who holds a claim."""
    with tiny.home(plan.place("calm-rivals")):
        tiny.play(RUN)
        expected = tiny.bits(RUN)
    rows, again = [], max(1, plan.kills // 40)
    with written.data(plan.place("rivals-data")):
        for rivals in (2, 4):
            rows.append(_of_a_run(plan, rivals, again, expected))
            rows.append(_of_an_entry(plan, rivals, again))
        rows.append(_killed(plan, again, expected))
    return rows


def _counting(module: Any, name: str, file: Path) -> None:
    """Let a function of a module leave a mark whenever it is called, whoever calls it."""
    plain = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, b"x")
        os.close(handle)
        return plain(*args, **kwargs)

    setattr(module, name, counted)


def _together(rivals: int, act: Callable[[], Any]) -> list[child.Child]:
    """Start some children that all wait for the same moment."""
    start = time.monotonic() + 0.05 * rivals

    def punctual() -> Any:
        time.sleep(max(0.0, start - time.monotonic()))
        return act()

    return [child.Child(punctual) for _ in range(rivals)]


def _of_a_run(plan: Plan, rivals: int, again: int, expected: tiny.Bits) -> Row:
    row = Row(f"{rivals} processes asked for one run")
    for n in range(again):
        with tiny.home(plan.place(f"rivals-{rivals}-{n}")) as place:
            ended = [c.wait() for c in _together(rivals, lambda: _play(place))]
            _judge(row, ended, (place / "marks").read_text("utf-8"), RUN.rounds)
            row.check(tiny.bits(RUN) == expected, "the same bits")
    return row


def _play(place: Path) -> None:
    _counting(running, "play_round", place / "marks")
    tiny.play(RUN)


def _of_an_entry(plan: Plan, rivals: int, again: int) -> Row:
    row = Row(f"{rivals} processes asked for one data set that is not decoded")

    def act() -> str:
        _counting(cache, "_write", paths.cache().parent / "marks")
        return written.opened()

    for n in range(again):
        with tiny.home(plan.place(f"rivals-data-{rivals}-{n}")) as place:
            ended = [c.wait() for c in _together(rivals, act)]
            _judge(row, ended, (place / "marks").read_text("utf-8"), 1)
            row.check(len({e.said for e in ended}) == 1, "the same examples")
    return row


def _judge(row: Row, ended: list[child.Ended], marks: str, once: int) -> None:
    failed = [e.error for e in ended if e.code != 0]
    if failed or len(marks) != once:
        row.broke(f"{len(marks)} pieces of work instead of {once}; {failed}")
    else:
        row.note("the work done once, all served")


def _killed(plan: Plan, again: int, expected: tiny.Bits) -> Row:
    """Whoever holds the claim is killed after a round; the other has waited, and goes on."""
    row = Row("one of two killed while it holds the claim")
    for n in range(again):
        with tiny.home(plan.place(f"heir-{n}")) as place:
            first = child.Child(lambda: _play(place))
            while not (place / "marks").exists() or not (place / "marks").read_text("utf-8"):
                time.sleep(0.01)
            heir = child.Child(lambda: _play(place))
            first.kill(after=plan.rng("heir", n).random() * 0.2)
            dead, ended = first.wait(), heir.wait()
            if ended.code == 0 and tiny.bits(RUN) == expected:
                row.note(
                    "killed, the other went on to the same bits" if dead.killed else "too late"
                )
            else:
                row.broke(ended.error or "other bits")
            rounds = len((place / "marks").read_text("utf-8"))
            row.check(rounds <= RUN.rounds + 1, "at most one round lost", f"{rounds} rounds")
    return row
