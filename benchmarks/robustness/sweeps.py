"""kill -9 of a sweep over two processes: of a worker, of the parent, of all at once.

A sweep of three runs with shared first stages over two workers (forked, and not spawned as usual).
Killed is one worker, the parent only, or all three at once, after a random time. Workers must end
by themselves when their parent is gone; the same sweep is then let end and compared.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from benchmarks.robustness import child, tiny
from benchmarks.robustness.plan import Plan, Row
from benchmarks.robustness.storms import calm
from fedlib import paths
from fedrun import workers as many
from fedrun.sweeps import SweepFailed, sweep

EXPERIMENTS = [tiny.MIXED, tiny.TUNED, tiny.MIX]
FORK = multiprocessing.get_context("fork")
KILLS_OF_ONE_LIFE = 4
SECONDS_TO_NOTICE = 300.0


@contextmanager
def _forked_workers() -> Iterator[None]:
    """Let sweeps of this process fork their workers."""
    plain = many.multiprocessing.get_context
    many.multiprocessing.get_context = lambda method: FORK  # type: ignore
    try:
        yield
    finally:
        many.multiprocessing.get_context = plain


def _sweep() -> str:
    with _forked_workers():
        try:
            sweep(EXPERIMENTS, workers=2, device="cpu", progress=False)
        except SweepFailed as error:
            return str(error)
    return ""


def measure(plan: Plan) -> list[Row]:
    """Kill each of the three, each so many times."""
    resource_tracker.ensure_running()  # here, so that no sweep has a child besides its workers
    with tiny.home(plan.place("calm-sweep")):
        how = calm(_sweep)
        expected = {e.key: tiny.all_bits(e) for e in EXPERIMENTS}
    each = max(2, plan.kills // 12)
    return [_killed(plan, who, each, how.seconds, expected) for who in ("worker", "parent", "all")]


def _killed(plan: Plan, who: str, kills: int, seconds: float, expected: dict[str, Any]) -> Row:
    row, rng, life = Row(f"`kill -9` of a sweep over two workers: {who}"), plan.rng("sweep", who), 0
    while row.outcomes["killed"] < kills and not row.broken:
        life, before = life + 1, dict[str, Any]()
        with tiny.home(plan.place(f"sweep-{who}-{life}")):
            for _ in range(rng.randint(1, KILLS_OF_ONE_LIFE)):
                _strike(row, who, rng.random() * seconds, rng.random())
                now = tiny.stored()
                lost = [k for k, v in before.items() if now.get(k) != v]
                row.check(not lost, "looks: nothing lost", f"lost: {lost}")
                before = now
            ended = child.call(_sweep)
            row.check(ended.code == 0 and not ended.said, "let end", ended.error or ended.said)
            same = {e.key: tiny.all_bits(e) for e in EXPERIMENTS} == expected
            row.check(same, "all runs finished with the same bits")
            row.check(not tiny.litter(paths.runs()), "no litter")
    return row


def _strike(row: Row, who: str, after: float, which: float) -> None:
    """Start a sweep, kill somebody after a while, and wait until all of its processes are gone."""
    parent = child.Child(_sweep, own_group=True)
    end = time.monotonic() + after
    while time.monotonic() < end or (who == "worker" and not children(parent.pid)):
        if parent.over():
            break
        time.sleep(0.005)
    team = children(parent.pid)
    over = parent.over()
    if who == "worker" and team:
        _kill(team[int(which * len(team))])
    elif who == "parent":
        parent.kill()
    elif who == "all":
        for pid in (parent.pid, *team):
            _kill(pid)
    ended = parent.wait()
    hit = not over and (who != "worker" or bool(ended.said))
    row.note("killed" if hit else "done before the kill")
    if who == "worker":
        told = not ended.said or "its process ended" in ended.said
        row.check(ended.code == 0 and told, "the sweep said who died", ended.error)
    row.check(gone(team), "no process left", "workers went on without their parent")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the processes that a process has made; none if it has ended."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]
    except OSError:
        return []


def gone(team: list[int]) -> bool:
    """Wait until processes that are no children of this one have ended."""
    end = time.monotonic() + SECONDS_TO_NOTICE
    while any(_lives(pid) for pid in team):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
