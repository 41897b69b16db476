"""Where results live: a folder per run, and one small exported file per run worth keeping.

    runs/<key>/spec.json             the experiment
              checkpoint.safetensors  the state after some round (its metadata says which)
              metrics.parquet         tidy metrics up to that round, or a little later
              provenance.json         written last: the run is complete
    results/<key>.parquet             metrics with spec and provenance in the file's metadata

Every file is written beside its place and renamed, so that a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from fedlib import paths
from fedlib.engine import State
from fedlib.experiment.spec import Experiment
from fedlib.values import from_dict, to_dict


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its experiment, tidy metrics and provenance."""

    experiment: Experiment
    metrics: pd.DataFrame
    provenance: dict[str, Any]

    def select(self, metric: str) -> pd.DataFrame:
        """Return the rows of one metric."""
        return self.metrics[self.metrics["metric"] == metric]


def folder(experiment: Experiment) -> Path:
    """Return the run folder of an experiment."""
    return paths.runs() / experiment.key


def find(experiment: Experiment) -> Result | None:
    """Return the stored result, from the run folders or else the exported ones, or None."""
    home = folder(experiment)
    if (home / "provenance.json").exists():
        said = json.loads((home / "provenance.json").read_text())
        return Result(experiment, read_metrics(home), said)
    exported = paths.results() / f"{experiment.key}.parquet"
    if not exported.exists():
        return None
    result = read_exported(exported)
    if result.experiment.key != experiment.key:
        raise ValueError(f"{exported} holds another experiment: {result.experiment}")
    return result


def complete(experiment: Experiment) -> bool:
    """Return whether a run folder holds everything: result, final state and provenance."""
    names = ("metrics.parquet", "checkpoint.safetensors", "provenance.json")
    return all((folder(experiment) / name).exists() for name in names)


def read_metrics(home: Path) -> pd.DataFrame:
    """Return the metrics of a run folder."""
    return pd.read_parquet(home / "metrics.parquet")


def finish(experiment: Experiment, provenance: dict[str, Any]) -> None:
    """Mark a run complete."""
    text = json.dumps(provenance, indent=1)
    _write(folder(experiment) / "provenance.json", lambda p: p.write_text(text))


def checkpoint(experiment: Experiment, state: State, completed: int, metrics: pd.DataFrame) -> None:
    """Store the state after ``completed`` rounds; metrics go first and so never lag behind."""
    home = folder(experiment)
    home.mkdir(parents=True, exist_ok=True)
    spec = json.dumps(to_dict(experiment), indent=1)
    _write(home / "spec.json", lambda p: p.write_text(spec))
    _write(
        home / "metrics.parquet", lambda p: metrics.to_parquet(p, compression="zstd", index=False)
    )
    tensors = {n: t.detach().cpu().contiguous() for n, t in state.flat().items()}
    said = {"completed": str(completed)}
    _write(home / "checkpoint.safetensors", lambda p: save_file(tensors, p, metadata=said))


def restore(experiment: Experiment) -> tuple[State, int, pd.DataFrame] | None:
    """Return (state, completed rounds, metrics up to there) of a run begun earlier, or None."""
    home = folder(experiment)
    if not (home / "checkpoint.safetensors").exists():
        return None
    with safe_open(home / "checkpoint.safetensors", framework="pt") as file:
        completed = int(file.metadata()["completed"])
        state = State.from_flat({n: file.get_tensor(n) for n in file.keys()})  # noqa: SIM118
    metrics = read_metrics(home)
    return state, completed, metrics[metrics["round"] <= completed]


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Hold the right to train an experiment: of two processes asked for it, one waits."""
    paths.runs().mkdir(parents=True, exist_ok=True)
    with FileLock(paths.runs() / f"{experiment.key}.lock"):
        yield


def export(result: Result) -> Path:
    """Write a result as one Parquet file with its spec and provenance into ``results/``."""
    table = pa.Table.from_pandas(result.metrics, preserve_index=False)
    for name in ("metric", "item"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].dictionary_encode())
    said = {"spec": to_dict(result.experiment), "provenance": result.provenance}
    meta = {"fedlib": json.dumps(said, sort_keys=True)}
    target = paths.results() / f"{result.experiment.key}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    slim = table.replace_schema_metadata(meta)
    _write(target, lambda p: pq.write_table(slim, p, compression="zstd", compression_level=19))
    return target


def read_exported(path: Path) -> Result:
    """Read a file that ``export`` wrote; ValueError if it is not one."""
    try:
        table = pq.read_table(path)
        said = json.loads((table.schema.metadata or {})[b"fedlib"])
        frame = table.to_pandas().astype({"metric": "str", "item": "str"})
        return Result(from_dict(said["spec"]), frame, said["provenance"])
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path} is no exported result of fedlib: {error}") from error


def exported() -> list[Result]:
    """Return every exported result."""
    return [read_exported(p) for p in sorted(paths.results().glob("*.parquet"))]


def _write(target: Path, write: Callable[[Path], Any]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        write(Path(name))
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
