"""Kills: SIGKILL to runs, sweeps and writers, at random moments.

Forked processes do something that takes a second, and are killed: half of them after a random
time, half just before a random touch of a file (open, rename, remove, mkdir, chmod, lock). They
train a run, storing every round; they run a sweep of three runs with shared first stages over two
workers, of which one worker, the parent or all three are killed; they decode a data set of 360
pictures whose source has changed; they export results. After every kill what was finished before
must still be stored; after one to eight kills the work is let end, and every byte of its metrics,
tensors, examples or exported files is compared with that of undisturbed work.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.robustness import child, tiny
from benchmarks.robustness.plan import Plan, Row
from fedlib import data as datasets
from fedlib import paths
from fedrun import find_result, list_runs
from fedrun.results import export, exported
from fedrun.sweeps import SweepFailed, sweep

KILLS_OF_ONE_LIFE = 8
SWEPT = [tiny.MIXED, tiny.TUNED, tiny.MIX]
EXPORTED = [tiny.MIX, tiny.ALONE]


@dataclass(frozen=True)
class Storm:
    """What is killed, how often, and what must be the same afterwards.

    Attributes:
        what: the row of the report.
        share: of all kills of a plan.
        act: the work.
        found: returns all results of the finished work.
        kept: returns, by name, results that must stay once they exist.
        prepare: is called before every life.
        victim: which process of a sweep is killed; "" for the process itself.
    """

    what: str
    share: float
    act: Callable[[], Any]
    found: Callable[[], Any]
    kept: Callable[[], dict[Any, Any]] = tiny.stored
    prepare: Callable[[], Any] = lambda: None
    victim: str = ""


def measure(plan: Plan) -> list[Row]:
    """Kill runs of every sort, sweeps, and the writers of the cache and of ``results/``."""
    resource_tracker.ensure_running()  # here, so that no sweep has a child besides its workers
    with tiny.data(plan.place("killed-data")) as source:
        return [_measured(plan, storm) for storm in (*_runs(), *_sweeps(), *_writers(source))]


def _runs() -> list[Storm]:
    return [
        Storm(f"a run: {name}", 0.2, lambda e=e: tiny.play(e), lambda e=e: tiny.all_bits(e))
        for name, e in tiny.RUNS.items()
    ]


def _sweeps() -> list[Storm]:
    def found() -> Any:
        return [tiny.all_bits(e) for e in SWEPT]

    return [
        Storm(f"a sweep over two workers: {who}", 1 / 12, _sweep, found, victim=who)
        for who in ("worker", "parent", "all")
    ]


def _sweep() -> str:
    """Sweep over forked workers, not spawned ones as usual; return which of them died."""
    with patch("fedrun.workers.multiprocessing.get_context", lambda _: child.FORK):
        try:
            sweep(SWEPT, workers=2, device="cpu", progress=False)
        except SweepFailed as error:
            if "its process ended" not in str(error):
                raise
            return str(error)
    return ""


def _writers(source: Path) -> list[Storm]:
    def changed() -> None:
        tiny.opened()
        tiny.renew(source)

    def examples() -> Any:
        opened = datasets.load(tiny.NAME)
        entries = [p for p in (paths.cache() / "datasets").iterdir() if p.is_dir()]
        parts = (opened.train, opened.test)
        return len(entries), [a.tobytes() for p in parts for a in (p.features, p.labels)]

    def trained() -> None:
        for experiment in EXPORTED:
            tiny.play(experiment)

    return [
        Storm("the decoding of a data set", 0.25, tiny.opened, examples, dict, changed),
        Storm("an export of results", 0.25, _export, _exported, _exported_always, trained),
    ]


def _export() -> None:
    results = [r for r in map(find_result, EXPORTED) if r is not None]
    for some in (results, results[:1], results):
        export(some, "killed")


def _exported() -> dict[str, Any]:
    """Return the metrics of every exported run, by key."""
    return {r.experiment.key: r.metrics.to_pandas().to_csv() for r in exported()}


def _exported_always() -> dict[str, Any]:
    """Return the runs that every export writes; one of the exports has fewer runs."""
    return {key: said for key, said in _exported().items() if key == EXPORTED[0].key}


def _measured(plan: Plan, storm: Storm) -> Row:
    row, rng, life = Row(f"SIGKILL to {storm.what}"), plan.rng(storm.what), 0
    calm = plan.place(f"calm {storm.what}")
    with tiny.home(calm):
        storm.prepare()
        begin = time.monotonic()
        touches = child.touches(storm.act)
        seconds, expected = time.monotonic() - begin, storm.found()
    while row.outcomes["killed"] < plan.kills * storm.share and not row.broken:
        life += 1
        with tiny.home(plan.place(f"{life} {storm.what}")) as place:
            storm.prepare()
            before = storm.kept()
            for _ in range(rng.randint(1, KILLS_OF_ONE_LIFE)):
                ended = _struck(row, storm, rng, seconds, touches)
                killed = ended.killed or (storm.victim == "worker" and ended.said)
                fine = "killed" if killed else "done before the kill"
                row.note(fine if killed or ended.code == 0 else f"!failed: {ended.error}")
                now = storm.kept()
                row.check(before.items() <= now.items(), "nothing lost", "something was lost")
                list_runs()
                before = now
            ended = child.call(storm.act)
            row.check(ended.code == 0, "let end", f"could not end: {ended.error}")
            row.check(storm.found() == expected, "the same bits")
            left = tiny.litter(place)
            row.check(not left, "no temporary file", f"left: {left}")
    return row


def _struck(
    row: Row, storm: Storm, rng: random.Random, seconds: float, touches: int
) -> child.Ended:
    """Start the work and kill it at a random moment; return how it ended."""
    after = rng.random() * seconds
    if storm.victim:
        return _struck_sweep(row, storm, rng, after)
    if rng.random() < 0.5:
        return child.call(child.dying_at(rng.randint(1, touches), storm.act))
    doomed = child.Child(storm.act)
    doomed.kill(after)
    return doomed.wait()


def _struck_sweep(row: Row, storm: Storm, rng: random.Random, after: float) -> child.Ended:
    """Kill processes of a sweep, and wait until all of its processes have ended."""
    parent = child.Child(storm.act)
    child.until(parent.over, after)
    child.until(lambda: parent.over() or bool(_children(parent.pid)))
    team = _children(parent.pid)
    worker = [rng.choice(team)] if team else []
    victims = {"worker": worker, "parent": [parent.pid], "all": [parent.pid, *team]}
    for pid in victims[storm.victim]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = parent.wait()
    gone = child.until(lambda: not any(map(_lives, team)))
    row.check(gone, "no process left", "workers went on without their parent")
    return ended


def _children(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
