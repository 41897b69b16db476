"""Where runs live: a folder each, of files that are whole or not there::

    runs/<key>/spec.json             the experiment
              checkpoint.safetensors  the state after some round (its metadata says which)
              metrics.parquet         tidy metrics up to that round, or a little later
              provenance.json         written last: the run is complete
              failure.json            why it stopped, if a number stopped being finite
    runs/<key>.lock                  held by whoever trains it

A file that is damaged is never read on with: ``find`` passes it over, and who claims the run moves
it aside and goes on from what is sound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from fedlib import paths
from fedlib.engine import State, TrainingDiverged
from fedlib.runs import atomic
from fedlib.runs.atomic import Damaged, StoreError, read_json
from fedlib.runs.exported import files, find_exported, held, read_run
from fedlib.runs.spec import Experiment, Result, tidy
from fedlib.values import from_dict, to_dict

SPEC, CHECKPOINT, METRICS = "spec.json", "checkpoint.safetensors", "metrics.parquet"
PROVENANCE, FAILURE = "provenance.json", "failure.json"
BEST = "best:"


class RunDiverged(TrainingDiverged):
    """A run stopped because a number was not finite; all before that is stored.

    ``round`` is the round that failed (so many were completed), ``clients`` who failed in it (none
    if it was the server).
    """

    round: int = 0

    @classmethod
    def of(cls, failure: dict[str, Any], folder: Path) -> RunDiverged:
        """Return the error for a failure as it is stored."""
        at = int(failure.get("round", 0))
        error = cls(
            f"{failure.get('message', 'a number is not finite')}. The {at} rounds before it are "
            f"stored in {folder}. The same run would fail again: change a rate, or ask with retry.",
            failure.get("clients", ()),
        )
        error.round = at
        return error


class Kept(NamedTuple):
    """What a checkpoint holds: the state after some round, metrics up to there, data, segments.

    ``data`` names the data it was trained on; a segment is a stretch of rounds that one process
    trained, with its commit, versions, device and seconds. ``best`` is the best state so far of a
    run that will end with that one.
    """

    state: State
    completed: int
    metrics: pa.Table
    data: str
    segments: list[dict[str, Any]]
    best: State | None = None


def folder(experiment: Experiment) -> Path:
    """Return the run folder of an experiment."""
    return paths.runs() / experiment.key


@atomic.listing()
def find(experiment: Experiment) -> Result | None:
    """Return the stored result, from the run folders or else the exported ones, or None.

    A damaged run counts as not stored, with a warning; a damaged exported file is a ValueError.
    StoreError if a folder cannot be read.
    """
    home = folder(experiment)
    try:
        if (home / PROVENANCE).exists():
            metrics = read_metrics(home, experiment.rounds)
            return Result(experiment, metrics, read_json(home / PROVENANCE))
    except Damaged as error:
        atomic.warn(f"{error}; this stored run is passed over")
    return find_exported(experiment)


def complete(experiment: Experiment) -> bool:
    """Return whether a run folder holds everything: result, final state and provenance."""
    return all((folder(experiment) / name).exists() for name in (METRICS, CHECKPOINT, PROVENANCE))


def read_spec(home: Path) -> Experiment:
    """Return whose run folder it is; Damaged if its spec cannot be read."""
    path = home / SPEC
    with atomic.reading(path, "spec"):
        spec = from_dict(read_json(path))
    if not isinstance(spec, Experiment):
        raise Damaged(f"{path} is no experiment")
    return spec


def read_metrics(home: Path, rounds: int = 0) -> pa.Table:
    """Return the metrics of a run folder; Damaged if they do not reach ``rounds``."""
    path = home / METRICS
    with atomic.reading(path, "readable Parquet file"):
        # One file and its own columns: a folder's name may look like a partition, "round=3".
        metrics = tidy(pq.ParquetFile(path, page_checksum_verification=True).read())
    if max(metrics["round"].to_pylist(), default=-1) < rounds:
        raise Damaged(f"{path} ends before round {rounds}")
    return metrics


def checkpoint(experiment: Experiment, kept: Kept) -> None:
    """Store the state after some rounds; metrics go first and so never lag behind."""
    home, at = folder(experiment), f"round {kept.completed}"
    if not (home / SPEC).exists():
        tell(experiment, SPEC, to_dict(experiment))
    put = partial(pq.write_table, kept.metrics, compression="zstd", write_page_checksum=True)
    atomic.write(home / METRICS, put, f"the metrics up to {at}")
    best = kept.best.flat() if kept.best else {}
    flat = {**kept.state.flat(), **{BEST + n: t for n, t in best.items()}}
    said = {"completed": str(kept.completed), "data": kept.data}
    said |= {"segments": json.dumps(kept.segments)}
    put = partial(atomic.save_tensors, tensors=flat, said=said)
    atomic.write(home / CHECKPOINT, put, f"the checkpoint after {at}")


def restore(experiment: Experiment) -> Kept | None:
    """Return what a run begun earlier left, or None; Damaged if that cannot be read."""
    home = folder(experiment)
    if not (home / CHECKPOINT).exists():
        return None
    flat, completed, said = atomic.load_tensors(home / CHECKPOINT)
    best = {n.removeprefix(BEST): t for n, t in flat.items() if n.startswith(BEST)}
    state = State.from_flat({n: t for n, t in flat.items() if not n.startswith(BEST)})
    kept = read_metrics(home, completed).filter(pc.field("round") <= completed)
    with atomic.reading(home / CHECKPOINT, "checkpoint of this library"):
        segments = list(json.loads(said.get("segments", "[]")))
    held = State.from_flat(best) if best else None
    return Kept(state, completed, kept, said.get("data", ""), segments, held)


def tell(experiment: Experiment, name: str, said: dict[str, Any]) -> None:
    """Write its spec, its provenance, with which a run is complete, or why it stopped."""
    text = json.dumps(said, indent=1)
    atomic.write(folder(experiment) / name, lambda p: p.write_text(text), f"the {name}")


def failure(experiment: Experiment) -> RunDiverged | None:
    """Return why a run stopped, or None; Damaged if an error cannot be made of what is written."""
    path = folder(experiment) / FAILURE
    if not path.exists():
        return None
    with atomic.reading(path, "description of a failure"):
        return RunDiverged.of(read_json(path), folder(experiment))


def forget_failure(experiment: Experiment) -> None:
    """Let a run that stopped be tried again."""
    atomic.remove(folder(experiment) / FAILURE)


@contextmanager
def claimed(experiment: Experiment, *, show: bool = False) -> Iterator[None]:
    """Hold the right to train an experiment: of two processes asked for it, one waits.

    The run folder is tidied first: half-written files of killed processes go, damaged files are
    moved aside with a warning. ``show`` says that another process holds the right.
    """
    with atomic.alone(paths.runs() / f"{experiment.key}.lock", "the lock", show=show):
        mend(experiment)
        yield


def busy(key: str) -> bool:
    """Return whether a process trains the run of this key now."""
    path = paths.runs() / f"{key}.lock"
    try:
        if path.exists():
            with FileLock(path, timeout=0):
                pass
    except Timeout:
        return True
    except OSError:  # a store that may only be read
        pass
    return False


def mend(experiment: Experiment) -> None:
    """Tidy a run folder: no half file, no damaged one, none without those that it needs."""
    home = folder(experiment)
    if not home.is_dir():
        return
    atomic.clean(home)
    readers: dict[str, Callable[[], Any]] = {
        SPEC: lambda: _check_owner(home, experiment),
        PROVENANCE: lambda: read_json(home / PROVENANCE),
        FAILURE: lambda: failure(experiment),
        METRICS: lambda: read_metrics(home),
        CHECKPOINT: lambda: atomic.load_tensors(home / CHECKPOINT),
    }
    for name, read in readers.items():
        try:
            if (home / name).exists():
                read()
        except Damaged as error:
            atomic.set_aside(home / name, str(error).removeprefix(f"{home / name} "))
    if (home / CHECKPOINT).exists() and not _reaches(home, 0):
        atomic.set_aside(home / CHECKPOINT, "is of no use without its metrics")
    # From here on its metrics may be overwritten: a run that is trained on is not complete.
    if (home / PROVENANCE).exists() and not _reaches(home, experiment.rounds):
        atomic.set_aside(home / PROVENANCE, "belongs to a run of which a part is lost")


def _reaches(home: Path, rounds: int) -> bool:
    """Return whether a checkpoint of that many rounds is there, and the metrics up to it."""
    try:
        completed, _ = atomic.load_header(home / CHECKPOINT)
        read_metrics(home, completed)
    except Damaged:
        return False
    return completed >= rounds


def _check_owner(home: Path, experiment: Experiment) -> None:
    key = read_spec(home).key
    if key != experiment.key:
        raise Damaged(f"{home / SPEC} is the spec of another experiment, {key}")


def pack(experiment: Experiment) -> dict[str, bytes]:
    """Return the files of a run folder, to be sent to another machine."""
    home = folder(experiment)
    names = (SPEC, METRICS, CHECKPOINT, FAILURE, PROVENANCE)
    return {n: (home / n).read_bytes() for n in names if (home / n).exists()}


def unpack(experiment: Experiment, files: dict[str, bytes]) -> None:
    """Write what ``pack`` returned into this store, the provenance last."""
    forget_failure(experiment)  # of an earlier attempt; theirs comes along
    for name, data in files.items():
        atomic.write(folder(experiment) / name, methodcaller("write_bytes", data), name)


@dataclass(frozen=True)
class Entry:
    """One stored run.

    ``state`` is "complete", "training", "interrupted", "diverged", "exported", "damaged" or
    "outdated" (made by another VERSION, so that no experiment of today finds it). ``experiment`` is
    None where the spec cannot be read, of a kind of value that nobody has imported for one;
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


@atomic.listing()
def inventory() -> list[Entry]:
    """Return every run folder and every exported result without one, the youngest first."""
    place = paths.runs()
    homes = sorted(p for p in place.iterdir() if p.name[0] != ".") if place.is_dir() else []
    entries = [_of_folder(home) for home in homes if home.is_dir()]
    known = {entry.key for entry in entries}
    entries += [entry for path in files() for entry in _of_file(path, known)]
    return sorted(entries, key=lambda entry: entry.age)


def _of_folder(home: Path) -> Entry:
    experiment, completed, state, note = None, 0, "damaged", ""
    try:
        experiment = read_spec(home)
        if (home / CHECKPOINT).exists():
            completed, _ = atomic.load_header(home / CHECKPOINT)
        if (home / PROVENANCE).exists():
            read_json(home / PROVENANCE)
            read_metrics(home, experiment.rounds)
            state, completed = "complete", experiment.rounds
        else:
            stopped = "diverged" if (home / FAILURE).exists() else "interrupted"
            state = "training" if busy(home.name) else stopped
        if experiment.key != home.name:
            state, note = "outdated", f"its key is now {experiment.key}"
    except (Damaged, StoreError) as error:
        state, note = "damaged", str(error)
    youngest, size = home.stat().st_mtime, 0
    with suppress(OSError):  # whoever trains it renames files
        for said in map(Path.lstat, home.iterdir()):
            youngest, size = max(youngest, said.st_mtime), size + said.st_size
    age = time.time() - youngest
    return Entry(home.name, home, experiment, completed, state, note, size, age)


def _of_file(path: Path, known: set[str]) -> Iterator[Entry]:
    """Yield the runs of a file that are not known, or that it is damaged."""
    said, key = path.stat(), path.stem
    size, age = said.st_size, time.time() - said.st_mtime
    try:
        sizes = held(path)
    except (Damaged, StoreError) as error:
        yield Entry(key, path, None, 0, "damaged", str(error), size, age)
        return
    for key in sizes.keys() - known:
        try:
            if (result := read_run(path, key)) is not None:
                e = result.experiment
                state = "exported" if e.key == key else "outdated"
                yield Entry(key, path, e, e.rounds, state, "", sizes[key], age)
        except (Damaged, StoreError) as error:
            yield Entry(key, path, None, 0, "damaged", str(error), sizes[key], age)
