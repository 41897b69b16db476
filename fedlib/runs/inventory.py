"""What the store holds: every run folder and every exported result, sound or not."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedlib import paths
from fedlib.runs import atomic, store
from fedlib.runs.atomic import Damaged, StoreError
from fedlib.runs.exported import files, held, read_run
from fedlib.runs.spec import Experiment
from fedlib.values import UnknownName


@dataclass(frozen=True)
class Entry:
    """One stored run.

    ``state`` is "complete", "training", "interrupted", "diverged", "exported", "damaged",
    "outdated" (made by another VERSION, so that no experiment of today finds it) or "unknown" (of a
    kind of value that nobody has imported). ``experiment`` is None where the spec cannot be read;
    ``note`` says what is wrong. ``path`` is a run folder, or a file that holds several runs.
    """

    key: str
    path: Path
    experiment: Experiment | None
    completed: int
    state: str
    note: str
    bytes: int
    age: float


def inventory() -> list[Entry]:
    """Return every run folder and every exported result without one, the youngest first."""
    folders = [p for p in _children(paths.runs()) if p.is_dir()]
    entries = [_of_folder(home) for home in folders]
    known = {entry.key for entry in entries}
    try:
        kept = [entry for path in files() for entry in _of_file(path, known)]
    except OSError as error:
        raise atomic.unreadable(paths.results(), error) from error
    return sorted([*entries, *kept], key=lambda entry: entry.age)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.name[0] != ".") if folder.is_dir() else []
    except OSError as error:
        raise atomic.unreadable(folder, error) from error


def _of_folder(home: Path) -> Entry:
    experiment, completed, state, note = None, 0, "damaged", ""
    try:
        experiment = store.read_spec(home)
        if (home / store.CHECKPOINT).exists():
            completed, _ = store.read_header(home)
        state = _state(home, experiment)
        completed = experiment.rounds if state == "complete" else completed
        if experiment.key != home.name:
            state, note = "outdated", f"its key is now {experiment.key}"
    except (Damaged, StoreError) as error:
        state, note = _wrong(error), str(error)
    files = _stats(home)
    age = time.time() - max((s.st_mtime for s in files), default=home.stat().st_mtime)
    size = sum(s.st_size for s in files)
    return Entry(home.name, home, experiment, completed, state, note, size, age)


def _wrong(error: Exception) -> str:
    return "unknown" if isinstance(error.__cause__, UnknownName) else "damaged"


def _stats(home: Path) -> list[os.stat_result]:
    found = []
    with suppress(PermissionError):
        for path in home.iterdir():
            with suppress(OSError):  # whoever trains it renames files
                found.append(path.stat())
    return found


def _state(home: Path, experiment: Experiment) -> str:
    if (home / store.PROVENANCE).exists():
        store.read_json(home / store.PROVENANCE)
        store.read_metrics(home, experiment.rounds)
        return "complete"
    if store.busy(home.name):
        return "training"
    return "diverged" if (home / store.FAILURE).exists() else "interrupted"


def _of_file(path: Path, known: set[str]) -> list[Entry]:
    """Return the runs of a file that are not known, or that the file is damaged."""
    said = path.stat()
    age = time.time() - said.st_mtime
    try:
        sizes = held(path)
    except (Damaged, StoreError) as error:
        return [Entry(path.stem, path, None, 0, _wrong(error), str(error), said.st_size, age)]
    return [_of_run(path, key, n, age) for key, n in sizes.items() if key not in known]


def _of_run(path: Path, key: str, size: int, age: float) -> Entry:
    try:
        result = read_run(path, key)
    except (Damaged, StoreError) as error:
        return Entry(key, path, None, 0, _wrong(error), str(error), size, age)
    if result is None:
        return Entry(key, path, None, 0, "damaged", f"{path} was replaced meanwhile", size, age)
    experiment = result.experiment
    state = "exported" if experiment.key == key else "outdated"
    return Entry(key, path, experiment, experiment.rounds, state, "", size, age)
