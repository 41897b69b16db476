"""Stored runs: one folder per run, whose files are written atomically::

    runs/<key>/spec.json              the experiment
              checkpoint.safetensors  the state after some round, which its metadata names
              metrics.parquet         tidy metrics up to that round or a later one
              provenance.json         written last: it marks the run as complete
              failure.json            why the run diverged, if it did
    runs/<key>.lock                   locked by the process that trains the run
    runs/damaged/                     runs that were quarantined

A lookup skips a run with a damaged file, with a warning, and a process that is to train it first
moves its folder to ``damaged/``. The same holds for a run whose data set or first stage differs
from the one that is present now.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import nn

from fedlib import data as datasets
from fedlib import paths
from fedlib.engine import State, TrainingDiverged
from fedlib.engine.as_module import module_of
from fedlib.federation import Federation
from fedlib.files import clean, is_locked
from fedlib.models import select_prefix
from fedlib.values import check_type
from fedrun import files
from fedrun.experiment import Experiment, Result, built, experiment_of, key_in, spec_of, tidy
from fedrun.files import Damaged, DamagedWarning, Mismatch, StoreError, read_json
from fedrun.provenance import began_with, data_of, digest
from fedrun.results import keys_in, path_of, read_record, result_files
from fedrun.results import read_metrics as exported_metrics

SPEC, CHECKPOINT, METRICS = "spec.json", "checkpoint.safetensors", "metrics.parquet"
PROVENANCE, FAILURE = "provenance.json", "failure.json"
BEST, LAST = "best:", "last:"


class RunDiverged(TrainingDiverged):
    """A run stopped because a number was not finite; the metrics before that are stored.

    Attributes:
        round: the round that failed, which is the number of completed rounds.
        clients: ids of the clients whose training diverged; empty if the server's step did.
        commit: the commit of the code that trained the run.

    >>> wild = Experiment(tiny.task, FedAvg(client=sgd(1e30)), rounds=2, cohort=2)
    >>> try:
    ...     run(wild, progress=False)
    ... except RunDiverged as error:
    ...     error.round, error.clients
    (1, (3, 4))
    """

    round: int = 0
    commit: str = ""

    @classmethod
    def of(cls, failure: dict[str, Any], folder: Path) -> RunDiverged:
        """Return the error for a stored description of a failure, in a run folder."""
        at = int(failure.get("round", 0))
        stored = f"The metrics of the {at} rounds before it are in {folder}"
        now = "The same run would fail again: change a learning rate, or pass retry=True"
        why = failure.get("message", "a number is not finite")
        error = cls(f"{why}. {stored}. {now}.", failure.get("clients", ()))
        error.round, error.commit = at, str(failure.get("commit", ""))
        return error


class Checkpoint(NamedTuple):
    """The contents of a checkpoint.

    Args:
        state: the state after ``completed`` rounds; of a finished run its final state.
        completed: number of completed rounds.
        metrics: tidy metrics up to that round.
        data: source and fingerprint of the data set that the run is trained on.
        segments: consecutive rounds that one process trained, each with its commit, versions,
            device and seconds.
        best: the best state so far of an unfinished run with ``select`` or ``stop``. Default: None.
        last: the state after the last round of a finished run that selected an earlier state; a
            longer run continues from it. Default: None.
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
    """Return the stored result of an experiment, or None if it is not stored.

    Run folders are searched first, then exported results. A run that is damaged, or whose data set
    or first stage differs from the current one, is skipped with a warning.

    Args:
        experiment: the experiment to look up.

    Raises:
        ValueError: if a file of exported results is damaged.

    >>> find_result(tiny) is None
    True
    >>> run(tiny, progress=False).experiment == find_result(tiny).experiment
    True
    """
    return RunFolder(check_type("experiment", experiment, Experiment)).result()


def moved(state: State, fed: Federation) -> State:
    """Return a stored state with its tensors on the device of the federation."""
    # torch.optim keeps its step counts on the CPU, whatever the device of the parameters.
    flat = {n: t if n.endswith("/step") else t.to(fed.device) for n, t in state.flat().items()}
    return State.from_flat(flat)


def load_model(
    experiment: Experiment, client: int | str | None, device: str
) -> tuple[Federation, nn.Module]:
    """Return the federation of a stored run on a device, and its model.

    Arguments and errors are those of ``Result.model``.
    """
    here = RunFolder(experiment)
    try:
        kept = here.restore()
    except Mismatch as error:
        raise StoreError(f"the model of run {experiment.key} cannot be used: {error}") from error
    if kept is None and not here.path.exists() and path_of(experiment) is None:
        now = "code, data or FEDLIB_RUNS have changed since it was trained, or it was deleted"
        raise StoreError(f"nothing is stored under {experiment.key} in {here.path.parent}: {now}")
    if kept is None:
        again = "train it again with run_with_state(experiment)"
        raise StoreError(f"only the metrics of run {experiment.key} are stored: {again}")
    fed = built(experiment, device)
    return fed, module_of(fed, experiment.algorithm, moved(kept.state, fed), client)


def diverged(experiment: Experiment) -> RunDiverged | None:
    """Return the error with which a stored run diverged, or None if it did not diverge.

    Args:
        experiment: the experiment to look up.

    Raises:
        Damaged: if the stored description of the failure cannot be read.
    """
    return RunFolder(experiment).failure()


def delete(key: str) -> None:
    """Delete a run folder; exported results are kept.

    Args:
        key: the key of the run.
    """
    with files.file_lock(paths.runs() / f"{key}.lock", "the lock"), suppress(FileNotFoundError):
        shutil.rmtree(paths.runs() / key)


class RunFolder:
    """The folder of one run; all reads and writes of its files go through this class.

    ``load``, ``result``, ``complete``, ``restore`` and ``failure`` use only files that are not
    damaged and belong to the data set and the earlier stages that are present. A process that
    writes must hold the lock (``locked``).

    Args:
        experiment: the experiment of the run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.path = experiment, folder(experiment)

    def load(self) -> Result | RunDiverged | Checkpoint | None:
        """Return what is in the folder: a finished run, a failure, a checkpoint or nothing.

        All files are read and checked. Unfinished files are deleted, and the folder is quarantined
        if a file is damaged or does not match, so the caller must hold the lock.
        """
        home, e = self.path, self.experiment
        clean(home)
        try:
            names = [n for n in (SPEC, FAILURE, PROVENANCE) if (home / n).exists()]
            records = {name: read_json(home / name) for name in names}
            for name in [n for n in names if n != SPEC]:
                self._require_same(home / name, records[name], records.get(SPEC))
            kept, failure = self.restore(), self.failure()
            if PROVENANCE not in records:
                return failure or kept
            if kept is None or kept.completed < e.fewest_rounds:
                raise Damaged(f"{home} has no checkpoint of its last round")
            return Result(e, kept.metrics, records[PROVENANCE], e.pinned(), load_model)
        except Damaged as error:
            files.quarantine(home, error)
            return None

    def result(self) -> Result | None:
        """Return the stored result or None, as ``find_result`` does."""
        for place, made in self._candidates():
            try:
                if exported := place.is_file():
                    metrics = exported_metrics(place, self.experiment.key)
                else:
                    metrics = read_metrics(place, self.experiment.fewest_rounds)
                e = self.experiment
                return Result(e, metrics, made, e.pinned(), load_model)
            except Damaged as error:
                if exported:
                    raise
                _skip(error)
        return None

    @property
    def complete(self) -> bool:
        """Whether the folder holds a finished run: metrics, final state and provenance."""
        whole = all((self.path / name).exists() for name in (METRICS, CHECKPOINT, PROVENANCE))
        return whole and any(place == self.path for place, _ in self._candidates())

    def restore(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is none.

        Raises:
            Damaged: if it cannot be read.
            Mismatch: if its data set or first stage differs from the one that is present.
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
        """Return the error with which the run diverged, or None, as ``diverged`` does."""
        path = self.path / FAILURE
        if not path.exists():
            return None
        with files.reading(path, "description of a failure"):
            failure = read_json(path)
            error = RunDiverged.of(failure, self.path)
        with suppress(Mismatch):  # a failure on other data says nothing about this run
            self._require_same(path, failure)
            return error
        return None

    def _candidates(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the place and the provenance of each valid stored result, the run folder first."""
        told = self.path / PROVENANCE
        if told.exists():
            try:
                made = read_json(told)
                self._require_same(told, made, read_json(self.path / SPEC))
                yield self.path, made
            except Damaged as error:
                _skip(error)
        if (path := path_of(self.experiment)) is not None:
            spec, made = read_record(path, self.experiment.key)
            try:
                self._require_same(path, made, spec)
                yield path, made
            except Mismatch as error:
                _skip(error)

    def _require_same(
        self, file: Path, made: dict[str, Any], spec: dict[str, Any] | None = None
    ) -> None:
        """Raise unless a file belongs to this run as it would be trained now.

        Args:
            file: the file to check, for messages and for its kind.
            made: its provenance.
            spec: its spec, if it has one.

        Raises:
            Damaged: if it belongs to another run.
            Mismatch: if its data set or first stage differs from the one that is present.
        """
        e = self.experiment
        with files.reading(file, "provenance of a run"):
            if spec is not None and key_in(spec) != e.key:
                raise Damaged(f"{file} belongs to another run than {e.key}")
            then = data_of(made)
            now = datasets.fingerprint(e.task.dataset)[: len(then)]
            if now and now != then:
                have = f"the data set here is {now}"
                raise Mismatch(f"{file} was trained on {e.task.dataset} {then}, and {have}")
            before = [RunFolder(stage) for stage in e.stages[:-1]]
            if file.suffix == ".parquet" and not any(stage.path.exists() for stage in before):
                return  # exported results belong together; there is no stage to compare with
            began = began_with(made)
            for stage in before:
                key, ended = stage.experiment.key, stage._ending(exactly=bool(began))
                if ended and ended != began.get(key, ""):
                    raise Mismatch(f"{file} started from another {key} than the one stored here")

    def _ending(self, exactly: bool) -> str:
        """Return the digest of this stage's final state, "" if the stage is not stored.

        Older runs have no digest in their provenance; it is then computed from the checkpoint if
        ``exactly``, and otherwise "".
        """
        for place, made in self._candidates():
            if "state" in made or not exactly:
                return str(made.get("state", ""))
            with suppress(Damaged):
                if place.is_dir() and (kept := self.restore()):
                    return digest(kept.state)
            return "unknown"
        return ""

    def locked(self) -> AbstractContextManager[None]:
        """Lock the run for training, waiting for another process that has it."""
        return files.file_lock(self._lock, "the lock")

    @property
    def in_use(self) -> bool:
        """Whether another process trains the run now."""
        return self._lock.exists() and is_locked(self._lock)

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f"{self.experiment.key}.lock")

    def discard(self, why: str) -> None:
        """Quarantine the folder and begin an empty one.

        Args:
            why: the reason, which continues the sentence "run <key>".
        """
        files.quarantine(self.path, Damaged(f"run {self.experiment.key}{why}"))
        self.write_record(SPEC, spec_of(self.experiment))

    def write_record(self, name: str, record: dict[str, Any]) -> None:
        """Write a record as JSON: ``SPEC``, ``PROVENANCE`` or ``FAILURE``."""
        text = json.dumps(record, indent=1)
        files.write(self.path / name, lambda part: part.write_text(text, "utf-8"), f"the {name}")

    def write_metrics(self, metrics: pa.Table) -> None:
        """Write the metrics, which may contain later rounds than the checkpoint, never fewer."""
        put = partial(pq.write_table, metrics, compression="zstd", write_page_checksum=True)
        files.write(self.path / METRICS, put, "the metrics")

    def checkpoint(self, kept: Checkpoint) -> None:
        """Write the metrics, then the checkpoint."""
        self.write_metrics(kept.metrics)
        beside = {BEST: kept.best, LAST: kept.last}
        others = {p + n: t for p, s in beside.items() if s for n, t in s.flat().items()}
        metadata = {"completed": str(kept.completed), "data": kept.data}
        metadata |= {"segments": json.dumps(kept.segments)}
        flat = {**kept.state.flat(), **others}
        put = partial(files.save_tensors, tensors=flat, metadata=metadata)
        files.write(self.path / CHECKPOINT, put, f"the checkpoint of round {kept.completed}")

    def forget_failure(self) -> None:
        """Delete the description of a failure, so that the run can be trained again."""
        (self.path / FAILURE).unlink(missing_ok=True)

    @property
    def saved(self) -> int:
        """The time at which the checkpoint was written, in nanoseconds; 0 if there is none."""
        with suppress(FileNotFoundError):
            return (self.path / CHECKPOINT).stat().st_mtime_ns
        return 0

    def pack(self) -> dict[str, bytes]:
        """Return the contents of all files by name, to send them to another machine."""
        names = (SPEC, METRICS, CHECKPOINT, FAILURE, PROVENANCE)
        return {n: (self.path / n).read_bytes() for n in names if (self.path / n).exists()}

    def unpack(self, packed: dict[str, bytes]) -> None:
        """Write the files that ``pack`` returned unless the run is complete here already."""
        if not packed:
            return
        with self.locked():
            if not isinstance(self.load(), Result):
                self.forget_failure()  # of an earlier attempt; `packed` has the new one, if any
                for name, data in packed.items():
                    files.write(self.path / name, methodcaller("write_bytes", data), name)


def _skip(error: Damaged) -> None:
    warnings.warn(f"{error}; this run is skipped", DamagedWarning, stacklevel=3)


def read_metrics(home: Path, rounds: int = 0) -> pa.Table:
    """Return the metrics of a run folder; raise Damaged if they end before ``rounds``."""
    path = home / METRICS
    with files.reading(path, "readable Parquet file"):
        # Not `pq.read_table`, which would take a folder named like "round=3" for a column.
        metrics = tidy(pq.ParquetFile(path, page_checksum_verification=True).read())
    if last_round(metrics) < rounds:
        raise Damaged(f"{path} ends before round {rounds}")
    return metrics


def last_round(metrics: pa.Table) -> int:
    """Return the last round in the metrics; -1 if they are empty."""
    return max(metrics["round"].to_pylist(), default=-1)


@dataclass(frozen=True)
class Entry:
    """A stored run as listed by ``list_runs``.

    Args:
        key: the key of the run.
        path: its run folder, or the file of exported results that contains it.
        state: "complete", "unfinished", "diverged", "exported", "damaged" or "outdated" (stored by
            another VERSION, so that no experiment has this key any more).
        spec: the stored spec, whose classes need not be imported; empty if it cannot be read.
        completed: number of completed rounds.
        note: what is wrong with a damaged run; otherwise "".
    """

    key: str
    path: Path
    state: str
    spec: dict[str, Any] = field(default_factory=dict)
    completed: int = 0
    note: str = ""

    @property
    def experiment(self) -> Experiment | None:
        """The experiment; None if its classes are not imported or its data set is missing."""
        with suppress(TypeError, ValueError):
            return experiment_of(self.spec)
        return None


def list_runs(begins: str = "") -> list[Entry]:
    """Return all stored runs: run folders, and exported results that have no folder.

    States and metrics are not read, so corruption in them goes undetected. ``entry.experiment`` is
    None for runs of classes that this process does not know, such as those defined in a script.

    Args:
        begins: return only runs whose key begins with this text. Default: "", all runs.

    Returns:
        an ``Entry`` for each run.

    >>> result = run(tiny, progress=False)
    >>> [(entry.state, entry.completed, entry.experiment == tiny) for entry in list_runs(tiny.key)]
    [('complete', 2, True)]
    """
    homes = sorted(path.parent for path in paths.runs().glob(f"[!.]*/{SPEC}"))
    entries = {home.name: _entry(home.name, home) for home in homes if home.name.startswith(begins)}
    for path in result_files():
        keys = [path.stem]  # shown as damaged if the file cannot be read
        with suppress(Damaged, OSError):
            keys = keys_in(path)
        keys = [key for key in keys if key.startswith(begins)]
        new = [k for k in keys if k not in entries or entries[k].path.is_file()]
        entries |= {key: _entry(key, path) for key in new}
    return [*entries.values()]


def _entry(key: str, path: Path) -> Entry:
    """Return the entry of a run in a run folder or in a file of exported results."""
    try:
        if path.is_file():
            spec, state = read_record(path, key)[0], "exported"
            completed = spec.get("rounds", 0)
        else:
            spec, state, completed = _inspect(path)
        with files.reading(path if path.is_file() else path / SPEC, "spec of an experiment"):
            _ = spec["task"]["dataset"], spec["algorithm"]["kind"], spec["rounds"]
            return Entry(key, path, state if key_in(spec) == key else "outdated", spec, completed)
    except (Damaged, OSError) as error:
        return Entry(key, path, "damaged", note=str(error))


def _inspect(home: Path) -> tuple[dict[str, Any], str, int]:
    """Return the spec in a run folder, the state of the run, and the last round in its metrics."""
    spec, metrics, completed = read_json(home / SPEC), home / METRICS, 0
    if metrics.exists():
        with files.reading(metrics, "readable Parquet file"):
            completed = last_round(pq.ParquetFile(metrics).read(["round"]))
    if (home / PROVENANCE).exists():
        read_json(home / PROVENANCE)
        return spec, "complete", completed
    return spec, "diverged" if (home / FAILURE).exists() else "unfinished", completed
