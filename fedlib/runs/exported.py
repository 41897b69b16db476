"""Finished runs worth keeping: a Parquet file for many of them, a row group for each.

results/<name>.parquet            row groups in the order of their keys, with the columns
    key, run                      the same in all rows: the key; spec and provenance as JSON
    round, metric, ..., value     the metrics

Which group is whose, the footer says (the statistics of ``key``). So a run is read without decoding
the others, and a process reads a footer once.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedlib import paths
from fedlib.runs import atomic
from fedlib.runs.atomic import Damaged
from fedlib.runs.provenance import dirty
from fedlib.runs.spec import COLUMNS, SCHEMA, Experiment, Result, tidy
from fedlib.values import from_dict, to_dict

WHAT = "exported result of fedlib"
MOST_NAMED = 20  # runs, in an error
_WORDS = ("metric", "item")
_KEY = re.compile("[0-9a-f]{16}")
_WORD = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [("key", _WORD), ("run", _WORD)]
    + [(f.name, _WORD if f.name in _WORDS else f.type) for f in SCHEMA]
)


class DirtyRuns(ValueError):
    """Runs that were trained by code that no commit holds."""


def export(results: Iterable[Result], name: str) -> Path:
    """Write results as ``results/<name>.parquet``, in place of what it held; none delete it.

    The same results give the same bytes, in whatever order they come. ValueError for two results of
    one experiment, and DirtyRuns for what uncommitted code has trained; nothing is written then.
    """
    with writing() as put:
        return put(results, name)


@contextmanager
def writing() -> Iterator[Callable[[Iterable[Result], str], Path]]:
    """Be the only one who writes results; yields what ``export`` does."""
    with atomic.alone(paths.results() / ".lock", f"the {WHAT}"):
        atomic.clean(paths.results())
        yield _put


def _put(results: Iterable[Result], name: str) -> Path:
    given = [*results]
    runs = {r.experiment.key: r for r in given}
    target = paths.results() / f"{name}.parquet"
    if len(runs) < len(given):
        raise ValueError(f"{target} cannot hold two results of one experiment")
    if refused := [r for r in given if dirty(r.provenance)]:
        raise DirtyRuns(refusal(refused))
    if not runs:
        atomic.remove(target)
        return target
    tables = [_table(key, runs[key]) for key in sorted(runs)]
    atomic.write(target, lambda path: _write(tables, path), f"the {WHAT}")
    return target


def refusal(results: Sequence[Result]) -> str:
    """Return why runs that come from uncommitted code are not exported, which, and what to do."""
    stage = "of a stage before it"
    told = [(r.experiment, ", ".join(dirty(r.provenance)) or stage) for r in results]
    lines = [f"  {e.key}: {e.algorithm} on {e.task.dataset}, seed {e.seed} ({c})" for e, c in told]
    return (
        f"{len(results)} runs are not exported: they, or stages before them, were trained from a "
        "checkout with uncommitted changes, so that nobody could say by which code:\n"
        + "\n".join([*lines[:MOST_NAMED], *["  ..."][: len(lines) - MOST_NAMED]])
        + f"\nCommit the changes, move the folders of these runs out of {paths.runs()}, and train "
        "them again."
    )


def _table(key: str, result: Result) -> pa.Table:
    metrics = tidy(result.metrics)
    if not metrics.num_rows:
        raise ValueError(f"a result without metrics cannot be exported: {result.experiment}")
    said = {"spec": to_dict(result.experiment), "provenance": result.provenance}
    rows = pa.array([0] * metrics.num_rows, pa.int32())
    same = (key, json.dumps(said, sort_keys=True))
    columns = [pa.DictionaryArray.from_arrays(rows, [text]) for text in same]
    for name in COLUMNS:
        column = metrics[name].combine_chunks()
        columns.append(column.dictionary_encode() if name in _WORDS else column)
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _write(tables: Iterable[pa.Table], path: Path) -> None:
    """Write a row group per table; numbers with many digits are smaller as streams of bytes."""
    with pq.ParquetWriter(
        path,
        _SCHEMA,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in _SCHEMA.names if name != "value"],
        column_encoding={"value": "BYTE_STREAM_SPLIT"},
        write_statistics=["key"],
        write_page_checksum=True,
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)


def files() -> list[Path]:
    """Return the files of exported results that are there."""
    place = paths.results()
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [path for path in found if path.suffix == ".parquet" and path.name[0] != "."]


# Read once per process, and again when a file is replaced: of every file its time, size and inode.
_FOOTERS: dict[Path, tuple[tuple[int, ...], pq.FileMetaData, dict[str, int]]] = {}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, pq.FileMetaData, dict[str, int]]]:
    """Open a file; yields it, its footer, and which row group is whose.

    It stays the file that the footer is of if it is being replaced.
    """
    with atomic.reading(path, WHAT), path.open("rb") as file:
        said = os.fstat(file.fileno())
        stamp = said.st_mtime_ns, said.st_size, said.st_ino
        if path not in _FOOTERS or _FOOTERS[path][0] != stamp:
            metadata = pq.read_metadata(file)
            _FOOTERS[path] = stamp, metadata, _groups(metadata)
        _, metadata, groups = _FOOTERS[path]
        yield file, metadata, groups


def _groups(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return whose each row group is; ValueError unless each is one run's and its own."""
    if metadata.schema.names != _SCHEMA.names:
        raise ValueError(f"it has other columns: {', '.join(metadata.schema.names)}")
    groups: dict[str, int] = {}
    for i in range(metadata.num_row_groups):
        said: Any = metadata.row_group(i).column(0).statistics
        key = str(said.min) if said and said.has_min_max and said.min == said.max else ""
        if key in groups or not _KEY.fullmatch(key):
            raise ValueError(f"row group {i} is not that of one run")
        groups[key] = i
    if not groups:
        raise ValueError("it holds no run")
    return groups


def held(path: Path) -> dict[str, int]:
    """Return the keys of the runs that a file holds, and the bytes of each; Damaged if none is."""
    with _opened(path) as (_, metadata, groups):
        rows = {key: metadata.row_group(i) for key, i in groups.items()}
        columns = range(len(_SCHEMA.names))
        return {k: sum(r.column(i).total_compressed_size for i in columns) for k, r in rows.items()}


def read_run(path: Path, key: str) -> Result | None:
    """Return the run of a key in a file, or None; Damaged if it cannot be read."""
    with _opened(path) as (file, metadata, groups):
        if key not in groups:
            return None
        parquet = pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True)
        table = parquet.read_row_group(groups[key], use_threads=False)
        said = json.loads(table["run"][0].as_py())
        spec, provenance = from_dict(said["spec"]), said["provenance"]
        if not isinstance(spec, Experiment) or not isinstance(provenance, dict):
            raise ValueError("it does not say of which experiment it is")
        return Result(spec, tidy(table.select(COLUMNS)), provenance)


def path_of(experiment: Experiment) -> Path | None:
    """Return the file in which the exported result of an experiment lies, if it does.

    ValueError if it is nowhere and a file is damaged that may hold it.
    """
    damaged: Damaged | None = None
    key = experiment.key  # hashed once, and not for every file
    for path in files():
        try:
            with _opened(path) as (_, _, groups):
                if key in groups:
                    return path
        except Damaged as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged
    return None


def find_exported(experiment: Experiment) -> Result | None:
    """Return the exported result of an experiment, or None; ValueError if it is of another."""
    path = path_of(experiment)
    result = None if path is None else read_run(path, experiment.key)
    if result is not None and result.experiment.key != experiment.key:
        raise ValueError(f"{path} holds another experiment: {result.experiment}")
    return result


def exported() -> list[Result]:
    """Return every exported result."""
    pairs = ((path, key) for path in files() for key in held(path))
    return [run for pair in pairs if (run := read_run(*pair)) is not None]
