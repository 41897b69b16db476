"""Exported results: finished runs in Parquet files, with one row group per run.

results/<name>.parquet            row groups sorted by key, with the columns
    key, run                      the same in all rows: the key; spec and provenance as JSON
    round, metric, ..., value     the metrics

The footer has the key of every row group (as the statistics of the column ``key``), so one run is
read without decoding the others, and a process reads a footer only once.
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
MOST_NAMED = 20  # number of runs that an error message names
_WORDS = ("metric", "item")
_WORD = pa.dictionary(pa.int32(), pa.string())
_METRICS = [(f.name, _WORD if f.name in _WORDS else f.type) for f in SCHEMA]
_SCHEMA = pa.schema([("key", _WORD), ("run", _WORD), *_METRICS])


def export(results: Iterable[Result], name: str) -> Path:
    """Write results to ``results/<name>.parquet``, replacing the file.

    The same results give the same bytes, whatever their order.

    Args:
        results: the results to write. If there are none, the file is deleted.
        name: name of the file, without the suffix.

    Returns:
        the path of the file.

    Raises:
        ValueError: if a run was trained by uncommitted code or code of an unknown commit. Nothing
            is written then.
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
    """Lock the folder of exported results against other writers."""
    with files.file_lock(paths.results() / ".lock", f"the {WHAT}"):
        files.clean(paths.results())
        yield


def refusal(results: Sequence[Result]) -> str:
    """Return the error message for runs that are not exported as their code is not committed."""
    lines = [f"  {r.experiment.key}: {r.experiment}\n" for r in results[:MOST_NAMED]]
    of = ", ".join(sorted({c for r in results for c in dirty(r.provenance)}))
    why = f"they, or stages before them, were trained by uncommitted code (commit {of})"
    now = f"Commit it, move these runs out of {paths.runs()}, and train them again."
    if UNKNOWN in of.split(", "):
        why_unknown = "git is missing or fails, or fedlib was installed as a copy"
        now = f"A commit is unknown if {why_unknown}. {now}"
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
    """Write one row group per table; values are split by byte, which compresses them better."""
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
    """Return all files of exported results, those with the same name in the order of numbers."""
    return sorted(paths.results().glob("[!.]*.parquet"), key=_numbered)


def _numbered(path: Path) -> tuple[str, int]:
    """Return the name and the number of a file: "some.2.parquet" is the second file of "some"."""
    name, _, number = path.stem.rpartition(".")
    return (name, int(number)) if number.isdecimal() and name else (path.stem, 1)


def place_of_more(name: str) -> str:
    """Return the file name under which to export more results next to those of ``name``."""
    last = max((n for one, n in map(_numbered, result_files()) if one == name), default=0)
    return f"{name}.{last + 1}" if last else name


def group_of(path: Path) -> str:
    """Return the name of a file without its number."""
    return _numbered(path)[0]


# Footers are read once per process, and again if the stamp of a file has changed.
_FOOTERS: dict[Path, tuple[tuple[int, ...], pq.FileMetaData, dict[str, int]]] = {}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, pq.FileMetaData, dict[str, int]]]:
    """Open a file; yield the file, its footer, and the index of the row group of each key.

    If the file is replaced meanwhile, the open one remains that of the footer.
    """
    with files.reading(path, WHAT), path.open("rb") as file:
        stamp = _stamp(file.fileno())
        if path not in _FOOTERS or _FOOTERS[path][0] != stamp:
            footer = pq.read_metadata(file)
            _FOOTERS[path] = stamp, footer, _groups(footer)
        yield file, *_FOOTERS[path][1:]


def _groups(footer: pq.FileMetaData) -> dict[str, int]:
    """Return the index of the row group of each key."""
    groups = {}
    for i in range(footer.num_row_groups):
        key = footer.row_group(i).column(0).statistics
        if key.min != key.max:  # a footer has no checksum
            raise ValueError(f"row group {i} has rows of several runs")
        groups[str(key.min)] = i
    return groups


def keys_in(path: Path) -> list[str]:
    """Return the keys of the runs in a file; raise Damaged if it cannot be read."""
    with _opened(path) as (_, _, groups):
        return [*groups]


def read_run(path: Path, key: str) -> Result:
    """Return the result of one run in a file; raise Damaged if it cannot be read."""
    spec, provenance = read_record(path, key)
    with files.reading(path, WHAT):
        experiment = experiment_of(spec)
    return Result(experiment, read_metrics(path, key), provenance)


def read_record(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec and the provenance of one run; raise Damaged if they cannot be read."""
    table = _read(path, key, ["run"])
    with files.reading(path, WHAT):
        run = json.loads(table["run"][0].as_py())
        return dict(run["spec"]), dict(run["provenance"])


def read_metrics(path: Path, key: str) -> pa.Table:
    """Return the metrics of one run in a file; raise Damaged if they cannot be read."""
    return tidy(_read(path, key, COLUMNS))


def _read(path: Path, key: str, columns: Sequence[str]) -> pa.Table:
    with _opened(path) as (file, footer, groups):
        parquet = pq.ParquetFile(file, metadata=footer, page_checksum_verification=True)
        return parquet.read_row_group(groups[key], columns=[*columns], use_threads=False)


def places() -> Mapping[str, Path]:
    """Return the file of every exported key; if several have it, the last of ``result_files``.

    Raises:
        Damaged: if a file cannot be read, as it may contain any key.
    """
    found = list[tuple[str, tuple[int, ...]]]()
    with suppress(FileNotFoundError), os.scandir(paths.results()) as entries:
        found += [(e.name, _stamp(e.path)) for e in entries if e.name.endswith(".parquet")]
    return _places(paths.results(), tuple(sorted(found)))


@lru_cache(maxsize=1)  # figures look up thousands of runs
def _places(folder: Path, state: tuple[tuple[str, tuple[int, ...]], ...]) -> Mapping[str, Path]:
    return {key: path for path in result_files() for key in keys_in(path)}


def path_of(experiment: Experiment) -> Path | None:
    """Return the file with the exported result of an experiment, or None."""
    return places().get(experiment.key)


def _stamp(file: str | int) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced; () for a broken link."""
    with suppress(FileNotFoundError):
        stat = os.stat(file)
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
    return ()


def exported() -> list[Result]:
    """Return all exported results."""
    return [read_run(path, key) for key, path in places().items()]
