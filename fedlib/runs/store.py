"""Where runs live: a folder each, of files that are whole or not there::

    runs/<key>/spec.json             the experiment
              checkpoint.safetensors  the state after some round (its metadata says which)
              metrics.parquet         tidy metrics up to that round, or later
              provenance.json         written last: the run is complete
              failure.json            why it stopped, if a number stopped being finite
    runs/<key>.lock                  held by whoever trains it
    runs/damaged/                    runs that were set aside

A file that is damaged is never read on with: ``find`` passes its run over, and who claims the run
moves the folder aside and begins anew.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedlib import paths
from fedlib.engine import State, TrainingDiverged
from fedlib.models import part
from fedlib.runs import atomic
from fedlib.runs.atomic import Damaged, DamagedWarning, read_json
from fedlib.runs.exported import files, held, path_of, read_run
from fedlib.runs.spec import Experiment, Result, tidy
from fedlib.values import from_dict, to_dict

SPEC, CHECKPOINT, METRICS = "spec.json", "checkpoint.safetensors", "metrics.parquet"
PROVENANCE, FAILURE = "provenance.json", "failure.json"
BEST, LAST = "best:", "last:"


class RunDiverged(TrainingDiverged):
    """A run stopped because a number was not finite; its metrics before that are stored.

    ``round`` is the round that failed (so many were completed), ``clients`` who failed in it (none
    if it was the server), ``commit`` the code that trained it.
    """

    round: int = 0
    commit: str = ""

    @classmethod
    def of(cls, failure: dict[str, Any], folder: Path) -> RunDiverged:
        """Return the error for a failure as it is stored."""
        at = int(failure.get("round", 0))
        error = cls(
            f"{failure.get('message', 'a number is not finite')}. The metrics of the {at} rounds "
            f"before it are in {folder}. The same run would fail again: change a rate, or ask "
            "with retry.",
            failure.get("clients", ()),
        )
        error.round, error.commit = at, str(failure.get("commit", ""))
        return error


class Kept(NamedTuple):
    """What a checkpoint holds: the state after some round, metrics up to there, data, segments.

    ``data`` names the data it was trained on; a segment is a stretch of rounds that one process
    trained, with its commit, versions, device and seconds. ``best`` is the best state so far of a
    run that will end with that one, and ``last`` where such a run has ended the state after its
    last round, from which a longer one goes on.
    """

    state: State
    completed: int
    metrics: pa.Table
    data: str
    segments: list[dict[str, Any]]
    best: State | None = None
    last: State | None = None


def folder(experiment: Experiment) -> Path:
    """Return the run folder of an experiment."""
    return paths.runs() / experiment.key


def find(experiment: Experiment) -> Result | None:
    """Return the stored result, from the run folders or else the exported ones, or None.

    A damaged run counts as not stored, with a warning; a damaged exported file is a ValueError.

    Args:
        experiment: whose result.

    Raises:
        ValueError: for an exported file that is damaged.

    >>> find(tiny) is None
    True
    >>> run(tiny, progress=False).experiment == find(tiny).experiment
    True
    """
    home = folder(experiment)
    if (home / PROVENANCE).exists():
        try:
            metrics = read_metrics(home, experiment.rounds)
            return Result(experiment, metrics, read_json(home / PROVENANCE))
        except Damaged as error:
            warnings.warn(f"{error}; this run is passed over", DamagedWarning, stacklevel=2)
    path = path_of(experiment)
    return None if path is None else read_run(path, experiment.key)


def complete(experiment: Experiment) -> bool:
    """Return whether a run folder holds everything: result, final state and provenance."""
    return all((folder(experiment) / name).exists() for name in (METRICS, CHECKPOINT, PROVENANCE))


def read_metrics(home: Path, rounds: int = 0) -> pa.Table:
    """Return the metrics of a run folder; Damaged if they do not reach ``rounds``."""
    path = home / METRICS
    with atomic.reading(path, "readable Parquet file"):
        # One file and its own columns: a folder's name may look like a partition, "round=3".
        metrics = tidy(pq.ParquetFile(path, page_checksum_verification=True).read())
    if last_round(metrics) < rounds:
        raise Damaged(f"{path} ends before round {rounds}")
    return metrics


def last_round(metrics: pa.Table) -> int:
    """Return the last round that metrics know of; -1 where there are none."""
    return max(metrics["round"].to_pylist(), default=-1)


def write_metrics(experiment: Experiment, metrics: pa.Table) -> None:
    """Store the metrics of a run, which may be ahead of its checkpoint but never behind."""
    put = partial(pq.write_table, metrics, compression="zstd", write_page_checksum=True)
    atomic.write(folder(experiment) / METRICS, put, "the metrics")


def checkpoint(experiment: Experiment, kept: Kept) -> None:
    """Store the state after some rounds, and the metrics before it."""
    write_metrics(experiment, kept.metrics)
    beside = {BEST: kept.best, LAST: kept.last}
    others = {p + n: t for p, s in beside.items() if s for n, t in s.flat().items()}
    flat = {**kept.state.flat(), **others}
    metadata = {"completed": str(kept.completed), "data": kept.data}
    metadata |= {"segments": json.dumps(kept.segments)}
    put = partial(atomic.save_tensors, tensors=flat, metadata=metadata)
    atomic.write(folder(experiment) / CHECKPOINT, put, f"the checkpoint of round {kept.completed}")


def restore(experiment: Experiment) -> Kept | None:
    """Return what a run begun earlier left, or None; Damaged if that cannot be read."""
    path = folder(experiment) / CHECKPOINT
    if not path.exists():
        return None
    flat, metadata = atomic.load_tensors(path)
    state = State.from_flat({n: t for n, t in flat.items() if not n.startswith((BEST, LAST))})
    best, last = (
        State.from_flat(some) if (some := part(flat, prefix)) else None for prefix in (BEST, LAST)
    )
    with atomic.reading(path, "checkpoint of this library"):
        completed = int(metadata["completed"])
        segments = list(json.loads(metadata.get("segments", "[]")))
    metrics = read_metrics(path.parent, completed).filter(pc.field("round") <= completed)
    return Kept(state, completed, metrics, metadata.get("data", ""), segments, best, last)


def tell(experiment: Experiment, name: str, record: dict[str, Any]) -> None:
    """Write its spec, its provenance, with which a run is complete, or why it stopped."""
    text = json.dumps(record, indent=1)
    atomic.write(folder(experiment) / name, lambda p: p.write_text(text), f"the {name}")


def diverged(experiment: Experiment) -> RunDiverged | None:
    """Return when and why a run in this store stopped, a number not being finite; None if none did.

    The error is not raised. Damaged if it cannot be made of what is written.
    """
    path = folder(experiment) / FAILURE
    if not path.exists():
        return None
    with atomic.reading(path, "description of a failure"):
        return RunDiverged.of(read_json(path), folder(experiment))


def forget_failure(experiment: Experiment) -> None:
    """Let a run that stopped be tried again."""
    (folder(experiment) / FAILURE).unlink(missing_ok=True)


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Hold the right to train an experiment: of two processes asked for it, one waits.

    The run folder is tidied first: half-written files of killed processes go, and what is damaged
    is moved aside with a warning.
    """
    with atomic.alone(paths.runs() / f"{experiment.key}.lock", "the lock"):
        mend(experiment)
        yield


def mend(experiment: Experiment) -> None:
    """Tidy a run folder: no half file; and none at all if one is damaged, or lost."""
    home = folder(experiment)
    atomic.clean(home)
    try:
        kept = restore(experiment)
        diverged(experiment)
        if (home / PROVENANCE).exists():
            read_json(home / PROVENANCE)
            if kept is None or kept.completed < experiment.rounds:
                raise Damaged(f"{home} has lost its last state")
    except Damaged as error:
        atomic.set_aside(home, error)


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

    ``state`` is "complete", "unfinished", "diverged", "exported", "damaged" or "outdated" (made by
    another VERSION, so that no experiment of today finds it). ``experiment`` is None where the spec
    cannot be read, of a kind of value that nobody has imported for one; ``note`` says what is
    wrong. ``path`` is a run folder, or a file that holds several runs.
    """

    key: str
    path: Path
    state: str
    experiment: Experiment | None = None
    completed: int = 0
    note: str = ""


def inventory() -> list[Entry]:
    """Return every run folder and every exported result without one."""
    homes = sorted(path.parent for path in paths.runs().glob(f"[!.]*/{SPEC}"))
    entries = {home.name: _of_folder(home) for home in homes}
    for path in files():
        keys = [path.stem]  # of a file of which nothing can be read
        with suppress(Damaged, OSError):
            keys = held(path)
        entries |= {key: _of_file(path, key) for key in keys if key not in entries}
    return [*entries.values()]


def _of_file(path: Path, key: str) -> Entry:
    try:
        e = read_run(path, key).experiment
    except (Damaged, OSError) as error:
        return Entry(key, path, "damaged", note=str(error))
    return Entry(key, path, "exported" if e.key == key else "outdated", e, e.rounds)


def _of_folder(home: Path) -> Entry:
    try:
        with atomic.reading(home / SPEC, "spec"):
            experiment = from_dict(read_json(home / SPEC))
            if not isinstance(experiment, Experiment):
                raise ValueError("it is no experiment's")
        completed, state = 0, "diverged" if (home / FAILURE).exists() else "unfinished"
        if (home / METRICS).exists():
            completed = last_round(read_metrics(home))
        if (home / PROVENANCE).exists():
            read_json(home / PROVENANCE)
            read_metrics(home, experiment.rounds)
            state = "complete"
        if experiment.key != home.name:
            state = "outdated"
    except (Damaged, OSError) as error:
        return Entry(home.name, home, "damaged", note=str(error))
    return Entry(home.name, home, state, experiment, completed)
