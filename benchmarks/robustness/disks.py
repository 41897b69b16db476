"""Disks that cannot be written: full ones, and folders of another user.

A tmpfs is mounted that has room for n pages, or for n files, for growing n until there is enough
(nothing is measured where this process may not mount). Each time the work must end in one line that
names the folder and its variable, or be done; then room is made, and the same work must come to the
right result. Folders of another user have a finished run, one that was begun, and a decoded data
set: these must be read, and what has to write must be refused in one such line.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.robustness import child, tiny
from benchmarks.robustness.plan import Plan, Row
from fedrun import find_result, list_runs, run_with_state, store
from fedrun.results import export

NOBODY = 65534
MOST = 120
ENOUGH = "size=64m,nr_inodes=100k"
DONE, NEW, BEGUN = tiny.BEST, tiny.MIX, tiny.ALONE
Act = Callable[[], Any]


def measure(plan: Plan) -> list[Row]:
    """Fill the disk during a run, an export and decoding, and seal a store."""
    with tiny.home(plan.place("calm")):
        tiny.play(DONE)
        expected, result = tiny.bits(DONE), find_result(DONE)
    assert result is not None
    with tiny.data(plan.place("data")) as source:
        acts: dict[str, tuple[Act, Callable[[], bool]]] = {
            "a run": (lambda: tiny.play(DONE), lambda: tiny.bits(DONE) == expected),
            "an export": (lambda: export([result], "full"), lambda: True),
            "decoding a data set": (tiny.opened, lambda: bool(tiny.opened())),
        }
        with _mounted(plan.place("probe"), ENOUGH) as permitted:
            filled = acts if permitted else {}
        step = 4 if plan.kills >= 200 else 16  # KiB
        rows = [
            _full(plan, Row(f"disk full of {what}: {name}"), *both, options, step_of)
            for name, both in filled.items()
            for what, options, step_of in (
                ("bytes", "size={}k,nr_inodes=100k", step),
                ("files", "size=64m,nr_inodes={}", 1),
            )
        ]
        return [*rows, _sealed(plan.place("sealed"), source)]


@contextmanager
def _mounted(place: Path, options: str) -> Iterator[bool]:
    """Mount a tmpfs within a block; yield whether that was permitted."""
    place.mkdir(exist_ok=True)
    permitted = _mount("-t", "tmpfs", "-o", options, "fedlib-robustness", str(place))
    try:
        yield permitted
    finally:
        if permitted:
            subprocess.run(["umount", str(place)], check=True)


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _full(
    plan: Plan, row: Row, act: Act, sound: Callable[[], bool], options: str, step: int
) -> Row:
    """Work on a disk without enough room; then make room, and work again."""
    place, room = plan.folder / "full", step
    while row.outcomes["enough room"] == 0 and row.times < MOST:
        with _mounted(place, options.format(room)), tiny.home(place):
            ended = child.call(act)
            row.note("enough room" if ended.code == 0 else _refusal(ended, str(place), "FEDLIB_"))
            _mount("-o", f"remount,{ENOUGH}", str(place))
            ended = child.call(act)
            row.check(ended.code == 0 and sound(), "continued with the right result", ended.error)
            row.check(not tiny.litter(place / "runs"), "no temporary file")
        room += step
    return row


def _refusal(ended: child.Ended, place: str, variable: str) -> str:
    """Return the outcome of a refusal: one line must name the folder and the variable."""
    kind, _, text = ended.error.partition(": ")
    clear = kind in ("StoreError", "DatasetError") and "\n" not in text
    if ended.code != 0 and clear and place in text and variable in text:
        return "refused in one clear line"
    return f"!{ended.error or 'was not refused'}"


def _sealed(place: Path, source: Path) -> Row:
    """Read and write in folders that belong to another user."""
    row = Row(f"read-only store: folder of another user (uid {NOBODY})")
    refused: tuple[tuple[str, Act], ...] = (
        ("RUNS", lambda: tiny.play(NEW)),
        ("RUNS", lambda: tiny.play(BEGUN)),
        ("RESULTS", lambda: export([find_result(DONE)], "done")),
        ("CACHE", tiny.opened),
    )
    with tiny.home(place):
        tiny.play(DONE)
        tiny.play(BEGUN)
        (store.folder(BEGUN) / store.PROVENANCE).unlink()
        (store.folder(BEGUN) / store.CHECKPOINT).unlink()
        tiny.opened()
        for path in (place, *place.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        ended = child.call(_as_another_user(_read))
        row.note("read" if ended.code == 0 else f"!{ended.error}")
        tiny.renew(source)
        for variable, act in refused:
            ended = child.call(_as_another_user(act))
            row.note(_refusal(ended, str(place), f"FEDLIB_{variable}"))
    return row


def _read() -> None:
    """Read everything that is stored."""
    assert find_result(DONE) is not None and list_runs()
    run_with_state(DONE, progress=False)
    tiny.opened()


def _as_another_user(act: Act) -> Act:
    """Return a function that is called as a user without the rights of root."""

    def inside() -> Any:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return act()

    return inside
