"""Finished runs worth keeping: a Parquet file for many of them, a row group for each.

results/<name>.parquet            row groups in the order of their keys, with the columns
    key, run                      the same in all rows: the key; spec and provenance as JSON
    round, metric, ..., value     the metrics

Which group is whose, the footer says (the statistics of ``key``). So a run is read without decoding
the others, and a process reads a footer once.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedlib import paths
from fedrun import files
from fedrun.experiment import COLUMNS, SCHEMA, Experiment, Result, experiment_of, spec_of, tidy
from fedrun.provenance import UNKNOWN, dirty

WHAT = "exported result of fedlib"
MOST_NAMED = 20  # runs, in an error
_WORDS = ("metric", "item")
_WORD = pa.dictionary(pa.int32(), pa.string())
_METRICS = [(f.name, _WORD if f.name in _WORDS else f.type) for f in SCHEMA]
_SCHEMA = pa.schema([("key", _WORD), ("run", _WORD), *_METRICS])


def export(results: Iterable[Result], name: str) -> Path:
    """Write results as ``results/<name>.parquet``, in place of what it held; none delete it.

    The same results give the same bytes, in whatever order they come. ValueError for what
    uncommitted code, or code of an unknown commit, has trained; nothing is written then.
    """
    runs = {r.experiment.key: r for r in results}
    target = paths.results() / f"{name}.parquet"
    if refused := [r for r in runs.values() if dirty(r.provenance)]:
        raise ValueError(refusal(refused))
    with writing():
        if runs:
            tables = [_table(key, runs[key]) for key in sorted(runs)]
            files.write(target, lambda path: _write(tables, path), f"the {WHAT}")
        else:
            target.unlink(missing_ok=True)
    return target


@contextmanager
def writing() -> Iterator[None]:
    """Be the only one who writes results."""
    with files.file_lock(paths.results() / ".lock", f"the {WHAT}"):
        files.clean(paths.results())
        yield


def refusal(results: Sequence[Result]) -> str:
    """Return why runs that no commit stands for are not exported, which, and what to do."""
    lines = [f"  {r.experiment.key}: {r.experiment}\n" for r in results[:MOST_NAMED]]
    of = ", ".join(sorted({c for r in results for c in dirty(r.provenance)}))
    why = f"they, or stages before them, were trained by uncommitted code (commit {of})"
    now = f"Commit it, move these runs out of {paths.runs()}, and train them again."
    if UNKNOWN in of.split(", "):
        now = f"It is unknown where git refuses or is missing, and of an installed copy. {now}"
    return f"{len(results)} runs are not exported: {why}:\n{''.join(lines)}{now}"


def _table(key: str, result: Result) -> pa.Table:
    metrics = tidy(result.metrics)
    run = {"spec": spec_of(result.experiment), "provenance": result.provenance}
    rows = pa.array([0] * metrics.num_rows, pa.int32())
    same = (key, json.dumps(run, sort_keys=True))
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


def result_files() -> list[Path]:
    """Return the files of exported results that are there, those of one name as they were added."""
    return sorted(paths.results().glob("[!.]*.parquet"), key=_numbered)


def _numbered(path: Path) -> tuple[str, int]:
    """Return a file's name and its number: "some.2.parquet" was added to "some.parquet"."""
    name, _, number = path.stem.rpartition(".")
    return (name, int(number)) if number.isdecimal() and name else (path.stem, 1)


def place_of_more(name: str) -> str:
    """Return under which name more results are exported next to those under ``name``."""
    last = max((n for one, n in map(_numbered, result_files()) if one == name), default=0)
    return f"{name}.{last + 1}" if last else name


def group_of(path: Path) -> str:
    """Return the name that a file shares with those that were added to it."""
    return _numbered(path)[0]


# Read once per process, and again when a file is replaced: of every file its stamp.
_FOOTERS: dict[Path, tuple[tuple[int, ...], pq.FileMetaData, dict[str, int]]] = {}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, pq.FileMetaData, dict[str, int]]]:
    """Open a file; yields it, its footer, and which row group is whose.

    It stays the file that the footer is of if it is being replaced.
    """
    with files.reading(path, WHAT), path.open("rb") as file:
        stamp = _stamp(file.fileno())
        if path not in _FOOTERS or _FOOTERS[path][0] != stamp:
            footer = pq.read_metadata(file)
            _FOOTERS[path] = stamp, footer, _groups(footer)
        yield file, *_FOOTERS[path][1:]


def _groups(footer: pq.FileMetaData) -> dict[str, int]:
    """Return whose each row group is."""
    groups = {}
    for i in range(footer.num_row_groups):
        key = footer.row_group(i).column(0).statistics
        if key.min != key.max:  # a footer has no checksum
            raise ValueError(f"row group {i} is not that of one run")
        groups[str(key.min)] = i
    return groups


def keys_in(path: Path) -> list[str]:
    """Return the keys of the runs that a file holds; Damaged if it cannot be read."""
    with _opened(path) as (_, _, groups):
        return [*groups]


def read_run(path: Path, key: str) -> Result:
    """Return the run of a key in a file; Damaged if it cannot be read."""
    spec, provenance = read_record(path, key)
    with files.reading(path, WHAT):
        experiment = experiment_of(spec)
    return Result(experiment, read_metrics(path, key), provenance)


def read_record(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec and the provenance of a key in a file; Damaged if they cannot be read."""
    table = _read(path, key, ["run"])
    with files.reading(path, WHAT):
        run = json.loads(table["run"][0].as_py())
        return dict(run["spec"]), dict(run["provenance"])


def read_metrics(path: Path, key: str) -> pa.Table:
    """Return the metrics of a key in a file; Damaged if they cannot be read."""
    return tidy(_read(path, key, COLUMNS))


def _read(path: Path, key: str, columns: Sequence[str]) -> pa.Table:
    with _opened(path) as (file, footer, groups):
        parquet = pq.ParquetFile(file, metadata=footer, page_checksum_verification=True)
        return parquet.read_row_group(groups[key], columns=[*columns], use_threads=False)


def places() -> Mapping[str, Path]:
    """Return the file of every exported key: of files of one name the one that was added last.

    Damaged if a file cannot be read, which may hold any.
    """
    return _places(tuple((path, _stamp(path)) for path in result_files()))


@lru_cache(maxsize=1)  # asked for every run of every figure
def _places(state: tuple[tuple[Path, tuple[int, ...]], ...]) -> Mapping[str, Path]:
    return {key: path for path, _ in state for key in keys_in(path)}


def path_of(experiment: Experiment) -> Path | None:
    """Return the file in which the exported result of an experiment lies, if it does."""
    return places().get(experiment.key)


def _stamp(file: Path | int) -> tuple[int, ...]:
    """Return what changes when a file is replaced, nothing where a link leads nowhere."""
    with suppress(FileNotFoundError):
        stat = os.stat(file)
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
    return ()


def exported() -> list[Result]:
    """Return every exported result."""
    return [read_run(path, key) for key, path in places().items()]
