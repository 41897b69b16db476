"""Folders that may not be written: what is stored can be read, the rest is one clear line.

A store with one run finished and one begun, and a decoded data set, sealed in two ways. What is
there must be read; what needs to write must be refused in one line that names the folder and the
variable (FEDLIB_RUNS, FEDLIB_RESULTS, FEDLIB_CACHE).
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.robustness import child, disks, tiny, written
from benchmarks.robustness.plan import Plan, Row
from fedrun import find_result, list_runs, run_with_state, store
from fedrun.results import export

DONE, NEW, BEGUN = tiny.BEST, tiny.MIX, tiny.ALONE


def measure(plan: Plan) -> list[Row]:
    """Try everything in a store that is mounted read-only, and in one that belongs to another."""
    place = plan.place("sealed")
    with written.data(plan.place("sealed-data")) as source:
        rows = [_tried(place, f"folder of another user (uid {disks.NOBODY})", _owned, source)]
        if disks.may_mount(plan.place("probe-ro")):
            rows.append(_tried(place, "read-only mount", _mounted, source))
    return rows


@contextmanager
def _owned(place: Path, fill: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """A folder that everybody may read and nobody but root may write."""
    fill()
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.parent.chmod(0o755)
    try:
        yield disks.powerless
    finally:
        shutil.rmtree(place)
        place.mkdir()


@contextmanager
def _mounted(place: Path, fill: Callable[[], None]) -> Iterator[Callable[[], None]]:
    with disks.mounted(place, "size=64m"):
        fill()
        disks.changed(place, "ro")
        yield lambda: None


def _tried(place: Path, how: str, sealed: Any, source: Path) -> Row:
    row = Row(f"read-only store: {how}")

    def fill() -> None:
        tiny.play(DONE)
        tiny.play(BEGUN)
        (store.folder(BEGUN) / store.PROVENANCE).unlink()
        (store.folder(BEGUN) / store.CHECKPOINT).unlink()
        written.opened()

    readable: dict[str, Callable[[], Any]] = {
        "find": lambda: find_result(DONE) is not None or 1 / 0,
        "state": lambda: bool(run_with_state(DONE, progress=False)),
        "run": lambda: tiny.play(DONE),
        "list": lambda: len(list_runs()),
        "decoded": written.opened,
    }
    refused: dict[str, tuple[str, Callable[[], Any]]] = {
        "a new run": ("FEDLIB_RUNS", lambda: tiny.play(NEW)),
        "a run half done": ("FEDLIB_RUNS", lambda: tiny.play(BEGUN)),
        "a second stage": ("FEDLIB_RUNS", lambda: tiny.play(tiny.TUNED)),
        "an export": ("FEDLIB_RESULTS", lambda: export([find_result(DONE)], "done")),  # type: ignore[list-item]
        "decoding": ("FEDLIB_CACHE", written.opened),
    }
    with tiny.home(place), sealed(place, fill) as enter:

        def within(act: Callable[[], Any]) -> child.Ended:
            def inside() -> Any:
                enter()
                act()

            return child.call(inside)

        for name, act in readable.items():
            ended = within(act)
            if ended.code == 0:
                row.note("read")
            else:
                row.broke(f"{name}: {ended.error}")
        for name, (variable, act) in refused.items():
            if name == "decoding":  # of files that have changed
                now = time.time_ns()
                for path in source.iterdir():
                    os.utime(path, ns=(now, now))
            _judge(row, name, within(act), str(place), variable)
    return row


def _judge(row: Row, name: str, ended: child.Ended, place: str, variable: str) -> None:
    """Note a refusal that names the folder and the variable; anything else is a broken promise."""
    kind, _, text = ended.error.partition(": ")
    clear = kind in ("StoreError", "DatasetError") and "\n" not in text
    if ended.code != 0 and clear and place in text and variable in text:
        row.note("refused in one clear line")
    else:
        row.broke(f"{name}: {ended.error or 'was not refused'}")
