"""Where runs live: a folder each, of files that are whole or not there::

    runs/<key>/spec.json             the experiment
              checkpoint.safetensors  the state after some round (its metadata says which)
              metrics.parquet         tidy metrics up to that round, or later
              provenance.json         written last: the run is complete
              failure.json            why it stopped, if a number stopped being finite
    runs/<key>.lock                  held by whoever trains it
    runs/damaged/                    runs that were set aside

A file that is damaged is never read on with: a lookup passes its run over, and who claims the run
moves the folder aside and begins again. The same goes for a run of other data than are here, or
after another first stage than is stored here: a run stands for what it was made of.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedlib import data as datasets
from fedlib import paths
from fedlib.engine import State, TrainingDiverged
from fedlib.models import select_prefix
from fedrun import files
from fedrun.experiment import Experiment, Result, experiment_of, key_in, spec_of, tidy
from fedrun.files import Damaged, DamagedWarning, Mismatch, read_json
from fedrun.provenance import began_with, digest
from fedrun.results import keys_in, path_of, read_record, result_files
from fedrun.results import read_metrics as exported_metrics

SPEC, CHECKPOINT, METRICS = "spec.json", "checkpoint.safetensors", "metrics.parquet"
PROVENANCE, FAILURE = "provenance.json", "failure.json"
BEST, LAST = "best:", "last:"


class RunDiverged(TrainingDiverged):
    """A run stopped because a number was not finite; its metrics before that are stored.

    ``round`` is the round that failed (so many were completed), ``num_clients`` who failed in it
    (none if it was the server), ``commit`` the code that trained it.
    """

    round: int = 0
    commit: str = ""

    @classmethod
    def of(cls, failure: dict[str, Any], folder: Path) -> RunDiverged:
        """Return the error for a failure as it is stored."""
        at = int(failure.get("round", 0))
        stored = f"The metrics of the {at} rounds before it are in {folder}"
        now = "The same run would fail again: change a rate, or ask with retry"
        why = failure.get("message", "a number is not finite")
        error = cls(f"{why}. {stored}. {now}.", failure.get("clients", ()))
        error.round, error.commit = at, str(failure.get("commit", ""))
        return error


class Checkpoint(NamedTuple):
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


def find_result(experiment: Experiment) -> Result | None:
    """Return the stored result, from the run folders or else the exported ones, or None.

    A run that is damaged, or is of other data or another first stage than are here, counts as not
    stored, with a warning.

    Args:
        experiment: whose result.

    Raises:
        ValueError: for an exported file that is damaged.

    >>> find_result(tiny) is None
    True
    >>> run(tiny, progress=False).experiment == find_result(tiny).experiment
    True
    """
    return RunFolder(experiment).result()


def diverged(experiment: Experiment) -> RunDiverged | None:
    """Return when and why a run in this store stopped, a number not being finite; None if none did.

    The error is not raised. Damaged if it cannot be made of what is written.
    """
    return RunFolder(experiment).failure()


def delete(key: str) -> None:
    """Delete a run folder; what is exported stays."""
    with files.file_lock(paths.runs() / f"{key}.lock", "the lock"), suppress(FileNotFoundError):
        shutil.rmtree(paths.runs() / key)


class RunFolder:
    """The folder of one run: all that is read from it or written into it goes through here.

    What it holds is served only if it is sound and was made of what is here: ``result``,
    ``complete``, ``restore`` and ``failure``. Only whoever holds the claim writes (``claimed``).
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.path = experiment, folder(experiment)

    def result(self) -> Result | None:
        """Return what ``find`` does."""
        for place, made in self._candidates():
            try:
                if exported := place.is_file():
                    metrics = exported_metrics(place, self.experiment.key)
                else:
                    metrics = read_metrics(place, self.experiment.fewest_rounds)
                return Result(self.experiment, metrics, made, self.experiment.pinned())
            except Damaged as error:
                if exported:
                    raise
                _pass_over(error)
        return None

    @property
    def complete(self) -> bool:
        """Whether everything is here: result, final state and provenance."""
        whole = all((self.path / name).exists() for name in (METRICS, CHECKPOINT, PROVENANCE))
        return whole and any(place == self.path for place, _ in self._candidates())

    def restore(self) -> Checkpoint | None:
        """Return what a run begun earlier left, or None.

        Damaged if it cannot be read, Other if it is of something else.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        flat, metadata = files.load_tensors(path)
        state = State.from_flat({n: t for n, t in flat.items() if not n.startswith((BEST, LAST))})
        others = (select_prefix(flat, prefix) for prefix in (BEST, LAST))
        best, last = (State.from_flat(some) if some else None for some in others)
        with files.reading(path, "checkpoint of this library"):
            completed, data = int(metadata["completed"]), metadata.get("data", "")
            segments = list(json.loads(metadata.get("segments", "[]")))
        self._require_same(path, {"data": data, "segments": segments})
        metrics = read_metrics(self.path, completed).filter(pc.field("round") <= completed)
        return Checkpoint(state, completed, metrics, data, segments, best, last)

    def failure(self) -> RunDiverged | None:
        """Return what ``diverged`` does."""
        path = self.path / FAILURE
        if not path.exists():
            return None
        with files.reading(path, "description of a failure"):
            failure = read_json(path)
            error = RunDiverged.of(failure, self.path)
        with suppress(Mismatch):  # the failure of what is not here
            self._require_same(path, failure)
            return error
        return None

    def _candidates(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield where a result is stored, the folder first, and its provenance, if it counts."""
        told = self.path / PROVENANCE
        if told.exists():
            try:
                made = read_json(told)
                self._require_same(told, made, read_json(self.path / SPEC))
                yield self.path, made
            except Damaged as error:
                _pass_over(error)
        if (path := path_of(self.experiment)) is not None:
            spec, made = read_record(path, self.experiment.key)
            try:
                self._require_same(path, made, spec)
                yield path, made
            except Mismatch as error:
                _pass_over(error)

    def _require_same(
        self, file: Path, made: dict[str, Any], spec: dict[str, Any] | None = None
    ) -> None:
        """Raise Other unless a file is of what is here; Damaged if it is of another run."""
        e = self.experiment
        with files.reading(file, "account of a run"):
            if spec is not None and key_in(spec) != e.key:
                raise Damaged(f"{file} is of another run than {e.key}")
            # Of what they are and where they came from, the last word: their fingerprint.
            then = str(made.get("data", "")).rpartition(" ")[2]
            now = datasets.fingerprint(e.task.dataset)[: len(then)]
            if now and now != then:
                raise Mismatch(f"{file} is of {e.task.dataset} {then}, and here is {now}")
            before = [RunFolder(stage) for stage in e.stages[:-1]]
            if file.suffix == ".parquet" and not any(stage.path.exists() for stage in before):
                return  # what is exported fits together
            began = began_with(made)
            for stage in before:
                key, ended = stage.experiment.key, stage._ending(exactly=bool(began))
                if ended and ended != began.get(key, ""):
                    raise Mismatch(f"{file} began with another {key} than the one stored here")

    def _ending(self, exactly: bool) -> str:
        """Return the digest of the state that this stage ended with, "" if it is not there.

        One that was trained before digests were noted has one only if it is needed ``exactly``.
        """
        for place, made in self._candidates():
            if "state" in made or not exactly:
                return str(made.get("state", ""))
            with suppress(Damaged):
                if place.is_dir() and (kept := self.restore()):
                    return digest(kept.state)
            return "unknown"
        return ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to train the run: of two processes asked for it, one waits.

        The folder is tidied first: see ``repair``.
        """
        with files.file_lock(self._lock, "the lock"):
            self.repair()
            yield

    @property
    def in_use(self) -> bool:
        """Whether somebody else trains the run now."""
        return self._lock.exists() and files.is_locked(self._lock)

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f"{self.experiment.key}.lock")

    def repair(self) -> None:
        """Tidy the folder: no half file; no file if one is damaged, lost or of something else."""
        home = self.path
        files.clean(home)
        try:
            spec = read_json(home / SPEC) if (home / SPEC).exists() else None
            for name in (PROVENANCE, FAILURE):
                if (home / name).exists():
                    self._require_same(home / name, read_json(home / name), spec)
            self.failure()
            kept, rounds = self.restore(), self.experiment.fewest_rounds
            if (home / PROVENANCE).exists() and (kept is None or kept.completed < rounds):
                raise Damaged(f"{home} has lost its last state")
        except Damaged as error:
            files.quarantine(home, error)

    def begin(self) -> None:
        """Write what the run is."""
        self.write_record(SPEC, spec_of(self.experiment))

    def discard(self, why: str) -> None:
        """Move the folder aside, and begin an empty one."""
        files.quarantine(self.path, Damaged(f"run {self.experiment.key}{why}"))
        self.begin()

    def write_record(self, name: str, record: dict[str, Any]) -> None:
        """Write the spec, the provenance, with which a run is complete, or why it stopped."""
        text = json.dumps(record, indent=1)
        files.write(self.path / name, lambda part: part.write_text(text, "utf-8"), f"the {name}")

    def write_metrics(self, metrics: pa.Table) -> None:
        """Store metrics, which may be ahead of the checkpoint but never behind."""
        put = partial(pq.write_table, metrics, compression="zstd", write_page_checksum=True)
        files.write(self.path / METRICS, put, "the metrics")

    def checkpoint(self, kept: Checkpoint) -> None:
        """Store the state after some rounds, and the metrics before it."""
        self.write_metrics(kept.metrics)
        beside = {BEST: kept.best, LAST: kept.last}
        others = {p + n: t for p, s in beside.items() if s for n, t in s.flat().items()}
        metadata = {"completed": str(kept.completed), "data": kept.data}
        metadata |= {"segments": json.dumps(kept.segments)}
        flat = {**kept.state.flat(), **others}
        put = partial(files.save_tensors, tensors=flat, metadata=metadata)
        files.write(self.path / CHECKPOINT, put, f"the checkpoint of round {kept.completed}")

    def forget_failure(self) -> None:
        """Let a run that stopped be tried again."""
        (self.path / FAILURE).unlink(missing_ok=True)

    def pack(self) -> dict[str, bytes]:
        """Return the files, to be sent to another machine."""
        names = (SPEC, METRICS, CHECKPOINT, FAILURE, PROVENANCE)
        return {n: (self.path / n).read_bytes() for n in names if (self.path / n).exists()}

    def unpack(self, packed: dict[str, bytes]) -> None:
        """Write what ``pack`` returned, the provenance last; nothing over a complete run."""
        if not packed:
            return
        with self.locked():
            if not self.complete:
                self.forget_failure()  # of an earlier attempt; theirs comes along
                for name, data in packed.items():
                    files.write(self.path / name, methodcaller("write_bytes", data), name)


def _pass_over(error: Damaged) -> None:
    warnings.warn(f"{error}; this run is passed over", DamagedWarning, stacklevel=3)


def read_metrics(home: Path, rounds: int = 0) -> pa.Table:
    """Return the metrics of a run folder; Damaged if they do not reach ``rounds``."""
    path = home / METRICS
    with files.reading(path, "readable Parquet file"):
        # One file and its own columns: a folder's name may look like a partition, "round=3".
        metrics = tidy(pq.ParquetFile(path, page_checksum_verification=True).read())
    if last_round(metrics) < rounds:
        raise Damaged(f"{path} ends before round {rounds}")
    return metrics


def last_round(metrics: pa.Table) -> int:
    """Return the last round that metrics know of; -1 where there are none."""
    return max(metrics["round"].to_pylist(), default=-1)


@dataclass(frozen=True)
class Entry:
    """One stored run: what its spec and the ends of its files tell.

    ``state`` is "complete", "unfinished", "diverged", "exported", "damaged" or "outdated" (made by
    another VERSION, so that no experiment of today finds it); ``note`` says what is wrong. ``spec``
    is its data, of kinds of value that nobody may have imported; empty where it cannot be read.
    ``path`` is a run folder, or a file that holds several runs.
    """

    key: str
    path: Path
    state: str
    spec: dict[str, Any] = field(default_factory=dict)
    completed: int = 0
    note: str = ""

    @property
    def experiment(self) -> Experiment | None:
        """The experiment, None where its classes are not imported or its data are gone."""
        with suppress(TypeError, ValueError):
            return experiment_of(self.spec)
        return None


def list_runs(begins: str = "") -> list[Entry]:
    """Return every run folder and exported result without one, whose keys begin in a way.

    Numbers are not read: what is damaged in them is found by who does.

    Args:
        begins: how the keys begin; "" for all.

    Returns:
        an entry for each: key, path, state, spec, completed, note and experiment.

    >>> result = run(tiny, progress=False)
    >>> [(entry.state, entry.completed, entry.experiment == tiny) for entry in list_runs(tiny.key)]
    [('complete', 2, True)]
    """
    homes = sorted(path.parent for path in paths.runs().glob(f"[!.]*/{SPEC}"))
    entries = {home.name: _entry(home.name, home) for home in homes if home.name.startswith(begins)}
    for path in result_files():
        keys = [path.stem]  # of a file of which nothing can be read
        with suppress(Damaged, OSError):
            keys = [key for key in keys_in(path) if key.startswith(begins)]
        new = [k for k in keys if k not in entries or entries[k].path.is_file()]
        entries |= {key: _entry(key, path) for key in new}
    return [*entries.values()]


def _entry(key: str, path: Path) -> Entry:
    """Return what is told of a run in a folder of its own, or in a file of several."""
    try:
        if path.is_file():
            spec, state = read_record(path, key)[0], "exported"
            completed = spec.get("rounds", 0)
        else:
            spec, state, completed = _told(path)
        with files.reading(path if path.is_file() else path / SPEC, "spec of an experiment"):
            _ = spec["task"]["dataset"], spec["algorithm"]["kind"], spec["rounds"]
            return Entry(key, path, state if key_in(spec) == key else "outdated", spec, completed)
    except (Damaged, OSError) as error:
        return Entry(key, path, "damaged", note=str(error))


def _told(home: Path) -> tuple[dict[str, Any], str, int]:
    """Return the spec in a run folder, the run's state, and the last round in its metrics."""
    spec, metrics, completed = read_json(home / SPEC), home / METRICS, 0
    if metrics.exists():
        with files.reading(metrics, "readable Parquet file"):
            completed = last_round(pq.ParquetFile(metrics).read(["round"]))
    if (home / PROVENANCE).exists():
        read_json(home / PROVENANCE)
        return spec, "complete", completed
    return spec, "diverged" if (home / FAILURE).exists() else "unfinished", completed
