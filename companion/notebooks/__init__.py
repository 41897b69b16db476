"""Runs the notebooks into executed copies (`figures`) or back into their sources (`refresh`).

papermill executes a notebook and nothing more: it passes parameters of any name and type,
keeps no order and knows no other notebook. What is added here: parameters are checked before
anything runs (`parameters`), notebooks run side by side, one process each, and the first
failure stops them all (`processes`), and what an executed copy says is read, or written back
to its source (`copies`), its verdicts with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from companion import verdicts
from companion.notebooks.copies import Failure, write_back
from companion.notebooks.parameters import check, select
from companion.notebooks.processes import run
from fedlib import paths

__all__ = ["Failure", "check", "figures", "refresh", "run", "select"]


def figures(given: Mapping[str, str], only: str = "", jobs: str = "") -> None:
    """Run notebooks with the ``given`` parameters into copies in the build folder.

    ``only`` names some of them, as in "00,01"; ``jobs`` run at once, one per core for "".
    ValueError for what does not exist, before anything runs; Failure where a notebook fails.
    """
    todo = {notebook: check(notebook, given) for notebook in _chosen(only)}
    workers = _count(jobs)
    if todo:
        run(todo, paths.build() / given.get("scale", "quick"), workers)


def refresh(only: str = "", jobs: str = "") -> None:
    """Run notebooks at the quick scale from an empty store; keep their outputs and verdicts."""

    def finished(source: Path, copy: Path) -> None:
        write_back(source, copy)
        verdicts.keep(source, paths.figures() / "quick")

    todo: dict[Path, dict[str, object]] = {notebook: {} for notebook in _chosen(only)}
    workers = _count(jobs)
    if not todo:
        return
    with tempfile.TemporaryDirectory(prefix="fedlib-runs-") as empty:
        run(todo, paths.build() / "refresh", workers, {"FEDLIB_RUNS": empty}, finished=finished)


def _chosen(only: str) -> list[Path]:
    found = select(only, sorted(paths.notebooks().glob("*.ipynb")))
    if not found:
        print(f"there are no notebooks in {paths.notebooks()}")
    return found


def _count(jobs: str) -> int:
    if not jobs:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not jobs.isdecimal() or int(jobs) < 1:
        raise ValueError(f"jobs must be a whole number of at least 1, got {jobs!r}")
    return int(jobs)
