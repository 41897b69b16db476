"""What the store holds: every run folder and every exported result, sound or not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedlib import paths
from fedlib.experiment import disk, store
from fedlib.experiment.disk import Damaged
from fedlib.experiment.exported import read_exported
from fedlib.experiment.spec import Experiment
from fedlib.values import from_dict


@dataclass(frozen=True)
class Entry:
    """One stored run.

    ``state`` is "complete", "training", "interrupted", "diverged", "exported", "damaged", or
    "outdated": made by another VERSION, so that no experiment of today finds it. ``experiment`` is
    None where the spec cannot be read; ``note`` says what is wrong.
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
    keys = {entry.key for entry in entries}
    files = [p for p in _children(paths.results()) if p.suffix == ".parquet" and p.stem not in keys]
    return sorted([*entries, *map(_of_file, files)], key=lambda entry: entry.age)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.name[0] != ".") if folder.is_dir() else []
    except OSError as error:
        raise disk.unreadable(folder, error) from error


def _of_folder(home: Path) -> Entry:
    experiment, completed, state, note = None, 0, "damaged", ""
    try:
        experiment = _spec(home)
        if (home / store.CHECKPOINT).exists():
            completed = int(store.read_header(home)["completed"])
        state = _state(home, experiment)
        completed = experiment.rounds if state == "complete" else completed
        if experiment.key != home.name:
            state, note = "outdated", f"its key is now {experiment.key}"
    except (Damaged, ValueError, TypeError) as error:
        note = str(error)
    files = [p.stat() for p in home.iterdir() if p.is_file()]
    newest = max((s.st_mtime for s in files), default=home.stat().st_mtime)
    size = sum(s.st_size for s in files)
    age = time.time() - newest
    return Entry(home.name, home, experiment, completed, state, note, size, age)


def _spec(home: Path) -> Experiment:
    spec = from_dict(store.read_json(home / store.SPEC))
    if not isinstance(spec, Experiment):
        raise Damaged(f"{home / store.SPEC} is no experiment")
    return spec


def _state(home: Path, experiment: Experiment) -> str:
    if (home / store.PROVENANCE).exists():
        store.read_json(home / store.PROVENANCE)
        store.read_metrics(home, experiment.rounds)
        return "complete"
    if store.busy(home.name):
        return "training"
    return "diverged" if (home / store.FAILURE).exists() else "interrupted"


def _of_file(path: Path) -> Entry:
    said = path.stat()
    age = time.time() - said.st_mtime
    try:
        experiment = read_exported(path).experiment
    except ValueError as error:
        return Entry(path.stem, path, None, 0, "damaged", str(error), said.st_size, age)
    state = "exported" if experiment.key == path.stem else "outdated"
    return Entry(path.stem, path, experiment, experiment.rounds, state, "", said.st_size, age)
