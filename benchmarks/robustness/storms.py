"""kill -9 of runs at random moments: at a random time, or before a random touch of a file.

Forked processes train a run of a second, storing every round, and are killed with SIGKILL: half of
them after a random time, half just before a random touch of a file (open, rename, remove, mkdir,
chmod, lock). After every kill the store is read and listed; after one to eight kills the work is
let end, and its metrics file and every tensor are compared, byte by byte, with those of an
undisturbed run.
"""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.robustness import child, tiny
from benchmarks.robustness.plan import Plan, Row
from fedlib import paths
from fedrun import find_result, list_runs

KILLS_OF_ONE_LIFE = 8


class Calm(NamedTuple):
    """How long an act takes undisturbed, and how often it touches a file."""

    seconds: float
    touches: int


def measure(plan: Plan) -> list[Row]:
    """Kill runs of every sort: one stage and several, federated and local."""
    return [_runs(plan, name, -(-plan.kills // len(tiny.RUNS))) for name in tiny.RUNS]


def _runs(plan: Plan, name: str, kills: int) -> Row:
    experiment = tiny.RUNS[name]
    row, rng = Row(f"`kill -9` of a run: {name}"), plan.rng("storm", name)
    with tiny.home(plan.place(f"calm-{experiment.key}")):
        how = calm(lambda: tiny.play(experiment))
        expected = tiny.all_bits(experiment)
    life = 0
    while row.outcomes["killed"] < kills and not row.broken:
        life, done = life + 1, dict[str, Any]()

        def look(done: dict[str, Any] = done) -> None:
            now = tiny.stored()
            row.check(all(now.get(k) == v for k, v in done.items()), "looks: nothing lost")
            done.update(now)
            for stage in experiment.stages:
                find_result(stage)
            assert len(list_runs()) >= len(done)

        with tiny.home(plan.place(f"storm-{experiment.key}-{life}")):
            storm(row, rng, lambda: tiny.play(experiment), how, look)
            row.check(tiny.all_bits(experiment) == expected, "finished with the same bits")
            row.check(not tiny.litter(paths.runs()), "no litter", f"{tiny.litter(paths.runs())}")
    return row


def calm(act: Callable[[], Any]) -> Calm:
    """Do something undisturbed in a child; return what it takes."""
    begin = time.monotonic()
    touches = child.touches(act)
    return Calm(time.monotonic() - begin, touches)


def storm(
    row: Row, rng: random.Random, act: Callable[[], Any], how: Calm, look: Callable[[], None]
) -> None:
    """Kill an act again and again, look at what it left each time, and then let it end."""
    for _ in range(rng.randint(1, KILLS_OF_ONE_LIFE)):
        if rng.random() < 0.5:
            doomed = child.Child(act)
            doomed.kill(rng.random() * how.seconds)
        else:
            doomed = child.Child(child.dying_at(rng.randint(1, how.touches), act))
        ended = doomed.wait()
        if ended.killed or ended.code == 0:
            row.note("killed" if ended.killed else "done before the kill")
        else:
            row.broke(f"failed: {ended.error}")
        look()
    ended = child.call(act)
    row.check(ended.code == 0, "let end", f"could not end: {ended.error}")
