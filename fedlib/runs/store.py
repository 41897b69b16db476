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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from fedlib import paths
from fedlib.engine import State
from fedlib.runs import atomic, tensors
from fedlib.runs.atomic import Damaged
from fedlib.runs.exported import find_exported
from fedlib.runs.health import RunDiverged
from fedlib.runs.log import tidy
from fedlib.runs.result import Result
from fedlib.runs.spec import Experiment
from fedlib.values import from_dict, to_dict

SPEC, CHECKPOINT, METRICS = "spec.json", "checkpoint.safetensors", "metrics.parquet"
PROVENANCE, FAILURE = "provenance.json", "failure.json"
BEST = "best:"


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
    except OSError as error:
        raise atomic.unreadable(home, error) from error
    try:
        return find_exported(experiment)
    except OSError as error:
        raise atomic.unreadable(paths.results(), error) from error


def complete(experiment: Experiment) -> bool:
    """Return whether a run folder holds everything: result, final state and provenance."""
    return all((folder(experiment) / name).exists() for name in (METRICS, CHECKPOINT, PROVENANCE))


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file of the store says; Damaged if it is no JSON object."""
    with atomic.reading(path, "JSON"):
        said = json.loads(path.read_bytes())
    if not isinstance(said, dict):
        raise Damaged(f"{path} holds no JSON object")
    return said


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


def read_header(home: Path) -> tuple[int, dict[str, str]]:
    """Return how many rounds a checkpoint is of, and what else it says; Damaged if it is none."""
    return tensors.header(home / CHECKPOINT)


def checkpoint(
    experiment: Experiment,
    state: State,
    completed: int,
    metrics: pa.Table,
    data: str = "",
    segments: list[dict[str, Any]] | None = None,
    best: State | None = None,
) -> None:
    """Store the state after ``completed`` rounds; metrics go first and so never lag behind."""
    home = folder(experiment)
    if not (home / SPEC).exists():
        _write_json(home / SPEC, to_dict(experiment), "the spec")
    atomic.write(
        home / METRICS,
        lambda p: pq.write_table(metrics, p, compression="zstd", write_page_checksum=True),
        f"the metrics up to round {completed}",
    )
    flat = {**state.flat(), **{BEST + n: t for n, t in (best.flat() if best else {}).items()}}
    said = {"completed": str(completed), "data": data, "segments": json.dumps(segments or [])}
    atomic.write(
        home / CHECKPOINT,
        lambda p: tensors.save(p, flat, said),
        f"the checkpoint after round {completed}",
    )


def restore(experiment: Experiment) -> Kept | None:
    """Return what a run begun earlier left, or None; Damaged if that cannot be read."""
    home = folder(experiment)
    if not (home / CHECKPOINT).exists():
        return None
    flat, completed, said = tensors.load(home / CHECKPOINT)
    best = {n.removeprefix(BEST): t for n, t in flat.items() if n.startswith(BEST)}
    state = State.from_flat({n: t for n, t in flat.items() if not n.startswith(BEST)})
    metrics = read_metrics(home, completed)
    kept = metrics.filter(pc.field("round") <= completed)
    with atomic.reading(home / CHECKPOINT, "checkpoint of this library"):
        segments = list(json.loads(said.get("segments", "[]")))
    held = State.from_flat(best) if best else None
    return Kept(state, completed, kept, said.get("data", ""), segments, held)


def finish(experiment: Experiment, provenance: dict[str, Any]) -> None:
    """Mark a run complete."""
    _write_json(folder(experiment) / PROVENANCE, provenance, "the provenance")


def failed(experiment: Experiment, failure: dict[str, Any]) -> None:
    """Write down why a run stopped."""
    _write_json(folder(experiment) / FAILURE, failure, "the failure")


def failure(experiment: Experiment) -> dict[str, Any] | None:
    """Return why a run stopped, or None."""
    path = folder(experiment) / FAILURE
    return read_failure(path) if path.exists() else None


def read_failure(path: Path) -> dict[str, Any]:
    """Return what a file says of a failure; Damaged if an error cannot be made of it."""
    said = read_json(path)
    with atomic.reading(path, "description of a failure"):
        RunDiverged.of(said, "")
    return said


def forget_failure(experiment: Experiment) -> None:
    """Let a run that stopped be tried again."""
    path = folder(experiment) / FAILURE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise atomic.unwritable(path, "the removal of the failure", error) from error


@contextmanager
def claimed(
    experiment: Experiment, waiting: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Hold the right to train an experiment: of two processes asked for it, one waits.

    The run folder is tidied first: half-written files of killed processes go, damaged files are
    moved aside with a warning. ``waiting`` is told when another process holds the right.
    """
    path = paths.runs() / f"{experiment.key}.lock"
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting(f"another process trains {experiment.key}: waiting for it")
            lock.acquire()
    except OSError as error:
        raise atomic.unwritable(path, "the lock", error) from error
    try:
        mend(experiment)
        yield
    finally:
        lock.release()


def busy(key: str) -> bool:
    """Return whether a process trains the run of this key now."""
    path = paths.runs() / f"{key}.lock"
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def mend(experiment: Experiment) -> None:
    """Tidy a run folder: no half file, no damaged one, none without those that it needs."""
    home = folder(experiment)
    if not home.is_dir():
        return
    atomic.clean(home)
    _keep_sound(home / SPEC, lambda: _check_owner(home, experiment))
    _keep_sound(home / PROVENANCE, lambda: read_json(home / PROVENANCE))
    _keep_sound(home / FAILURE, lambda: read_failure(home / FAILURE))
    _keep_sound(home / METRICS, lambda: read_metrics(home))
    _keep_sound(home / CHECKPOINT, lambda: tensors.load(home / CHECKPOINT))
    if (home / CHECKPOINT).exists() and not _reaches(home, 0):
        atomic.set_aside(home / CHECKPOINT, "is of no use without its metrics")
    # From here on its metrics may be overwritten: a run that is trained on is not complete.
    if (home / PROVENANCE).exists() and not _reaches(home, experiment.rounds):
        atomic.set_aside(home / PROVENANCE, "belongs to a run of which a part is lost")


def _reaches(home: Path, rounds: int) -> bool:
    """Return whether a checkpoint of that many rounds is there, and the metrics up to it."""
    try:
        completed, _ = read_header(home)
        read_metrics(home, completed)
    except Damaged:
        return False
    return completed >= rounds


def _keep_sound(path: Path, read: Callable[[], Any]) -> None:
    try:
        if path.exists():
            read()
    except Damaged as error:
        atomic.set_aside(path, str(error).removeprefix(f"{path} "))


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


def _write_json(path: Path, said: Any, what: str) -> None:
    text = json.dumps(said, indent=1)
    atomic.write(path, lambda p: p.write_text(text), what)
