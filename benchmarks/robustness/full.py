"""Full disks: a tmpfs with room for n pages or n files, for every n until there is enough.

Where a tmpfs may be mounted: one with room for n pages, or for n files, for growing n until there
is enough (else files limited in size by the kernel). Each time the act must end in one line that
names folder and variable, or be done; then room is made and the same act must come to the right
result.
"""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.robustness import child, disks, tiny, written
from benchmarks.robustness.plan import Plan, Row
from fedrun import find_result
from fedrun.results import export

PAGE, MOST = 4, 120
ROOM = "size=64m,nr_inodes=100k"
RUN = tiny.BEST


def measure(plan: Plan) -> list[Row]:
    """Fill the disk under a run, an export and the cache."""
    small = disks.may_mount(plan.place("probe"))
    with tiny.home(plan.place("calm-full")):
        tiny.play(RUN)
        expected = tiny.bits(RUN)
    rows = []
    step = 1 if plan.kills >= 200 else 4
    with written.data(plan.place("full-data")):
        acts: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
            "a run": (lambda: tiny.play(RUN), lambda: tiny.bits(RUN) == expected),
            "an export": (lambda: _export(plan), lambda: True),
            "decoding a data set": (written.opened, lambda: bool(written.opened())),
        }
        for name, (act, sound) in acts.items():
            if small:
                rows.append(_sized(plan, name, act, sound, "bytes", step * PAGE))
                rows.append(_sized(plan, name, act, sound, "files", 1))
            else:
                rows.append(_limited(plan, name, act, sound))
    return rows


def _export(plan: Plan) -> None:
    """Export a run that is stored where there is room."""
    with tiny.home(plan.folder / "calm-full"):
        result = find_result(RUN)
    assert result is not None
    export([result], "full")


def _sized(
    plan: Plan, name: str, act: Callable[[], Any], sound: Callable[[], bool], what: str, step: int
) -> Row:
    """Let the disk be full after n pages or n files; then make room, and do it again."""
    row, place = Row(f"disk full of {what}: {name}"), plan.folder / "full"
    room = step
    while row.outcomes["enough room"] == 0 and row.times < MOST:
        options = (
            f"size={room}k,nr_inodes=100k" if what == "bytes" else f"size=64m,nr_inodes={room}"
        )
        with disks.mounted(place, options), tiny.home(place):
            _once(row, child.call(act), place)
            disks.changed(place, ROOM)
            ended = child.call(act)
            row.check(ended.code == 0 and sound(), "continued with the right result", ended.error)
            row.check(not tiny.litter(place / "runs"), "no litter")
        room += step
    return row


def _limited(plan: Plan, name: str, act: Callable[[], Any], sound: Callable[[], bool]) -> Row:
    """Where nothing may be mounted: let the kernel refuse files beyond a size."""
    row, size = Row(f"files limited in size (no tmpfs permitted): {name}"), 64
    while row.outcomes["enough room"] == 0 and row.times < MOST:
        place = plan.place(f"limited-{name}-{size}")

        def limited(size: int = size) -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return act()

        with tiny.home(place):
            _once(row, child.call(limited), place)
            ended = child.call(act)
            row.check(ended.code == 0 and sound(), "continued with the right result", ended.error)
        size *= 2
    return row


def _once(row: Row, ended: child.Ended, place: Path) -> None:
    """Judge how an act ended for which there may have been no room."""
    if ended.code == 0:
        row.note("enough room")
        return
    kind, _, text = ended.error.partition(": ")
    named = str(place) in text and "FEDLIB_" in text
    if kind in ("StoreError", "DatasetError") and named and "\n" not in text:
        row.note("one clear line")
    else:
        row.broke(ended.error or f"code {ended.code}")
