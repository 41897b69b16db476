"""Exported results: finished runs in Parquet files, the runs of a section together.

results/<name>.parquet            runs sorted by key, with the columns
    key, run                      the same in all rows of a run: the key; its spec and provenance
    round, metric, ..., item      the metrics, in the order in which they were logged
    exact, value                  the number, in one of the two

Losses are rounded to 14 bits (a relative error of at most 6e-5); gates and the gradient divergence,
which have most of the bytes, to float32, in which networks compute (6e-8): both are in ``value``.
All other metrics, such as accuracies, are stored as they are, in ``exact``. The runs of a file are
much alike, so it is compressed as a whole, and a process decodes it as a whole, once. Files of
version 0.2, with unrounded numbers, stay readable.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedlib import paths
from fedlib.files import clean
from fedrun import files
from fedrun.experiment import COLUMNS, LOSSES, Experiment, Result, experiment_of, spec_of, tidy
from fedrun.provenance import UNKNOWN, dirty

WHAT = "exported result of fedlib"
MOST_NAMED = 20  # number of runs that an error message names
LOSS_BITS, FLOAT_BITS = 14, 24  # to which losses, and metrics in float32, are rounded
FLOATS = ("divergence", "_gate", "gate_share")  # ends of the names of metrics in float32
_WORDS = ("key", "run", "metric", "item")
_SPLIT = ("round", "client", "value")  # stored byte by byte: numbers change in their last bytes
_FILES = 8  # number of decoded files that a process keeps


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
    # Under the key at the time of training: user-defined code may have changed since.
    runs = {(r.pinned or r.experiment).key: r for r in results}
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
        clean(paths.results())
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
    spec = spec_of(result.pinned or result.experiment)
    run = {"spec": spec, "provenance": result.provenance}
    columns = {"key": key, "run": json.dumps(run, sort_keys=True)}
    first = pa.array([0] * metrics.num_rows, pa.int32())
    table = {n: pa.DictionaryArray.from_arrays(first, [text]) for n, text in columns.items()}
    for name in COLUMNS:
        column = metrics[name].combine_chunks()
        table[name] = column.dictionary_encode() if name in _WORDS else column
    return pa.table(table)


def _write(tables: Iterable[pa.Table], path: Path) -> None:
    """Write the runs of a file as one row group."""
    table = _rounded(pa.concat_tables(tables).unify_dictionaries())
    pq.write_table(
        table,
        path,
        row_group_size=table.num_rows,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in _SPLIT],
        column_encoding=dict.fromkeys(_SPLIT, "BYTE_STREAM_SPLIT"),
        dictionary_pagesize_limit=2**26,
        data_page_size=2**23,
        write_statistics=False,
        write_page_checksum=True,
    )


def _rounded(table: pa.Table) -> pa.Table:
    """Return a table with the columns ``exact`` and ``value`` instead of ``value``."""
    metric = table["metric"].combine_chunks()
    names, codes = metric.dictionary.to_pylist(), metric.indices.to_numpy()
    bits = np.array([_bits(name) for name in names], np.uint32)[codes]
    exact = bits == 0
    values = table["value"].to_numpy()
    nothing = np.isnan(values)
    dropped = np.where(exact, 0, FLOAT_BITS - bits).astype(np.uint32)
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32).view(np.uint32)
    rounded += np.uint32(1) << dropped >> np.uint32(1)  # to the nearest, not down
    rounded = rounded >> dropped << dropped
    columns = {
        "exact": pa.array(values, mask=nothing | ~exact),
        "value": pa.array(rounded.view(np.float32), mask=nothing | exact),
    }
    table = table.drop_columns("value")
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _bits(metric: str) -> int:
    """Return to how many bits a metric is rounded, or 0 if it is stored as it is."""
    if metric.endswith(LOSSES):
        return LOSS_BITS
    return FLOAT_BITS if metric.endswith(FLOATS) else 0


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


@lru_cache(maxsize=_FILES)
def _decoded(
    path: Path, stamp: tuple[int, ...], columns: tuple[str, ...]
) -> tuple[pa.Table, dict[str, slice]]:
    """Return columns of a file, and the rows of each key; ``stamp`` is that of the file.

    What is returned is from one version of the file, also if it is replaced meanwhile.
    """
    with files.reading(path, WHAT), path.open("rb") as file:
        parquet = pq.ParquetFile(file, read_dictionary=_WORDS, page_checksum_verification=True)
        table = parquet.read(_present(parquet.schema_arrow, columns), use_threads=False)
        keys = table["key"].unify_dictionaries().combine_chunks()
        code = keys.indices.to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(code)) + 1).tolist()] if len(code) else []
        names = keys.dictionary.take(keys.indices.take(starts)).to_pylist()
        ends = [*starts[1:], len(code)]
        return table, {k: slice(*rows) for k, *rows in zip(names, starts, ends, strict=True)}


def _present(schema: pa.Schema, columns: Iterable[str]) -> list[str]:
    """Return "key" and ``columns``; files of version 0.2, whose values are doubles, lack "exact".

    Raises:
        ValueError: if another one is missing; the names of columns have no checksum in Parquet.
    """
    of_0_2 = "value" in schema.names and schema.field("value").type == pa.float64()
    needed = [n for n in ("key", *columns) if not (of_0_2 and n == "exact")]
    if missing := [n for n in needed if n not in schema.names]:
        raise ValueError(f"it has no column {missing[0]}")
    return needed


def keys_in(path: Path) -> list[str]:
    """Return the keys of the runs in a file; raise Damaged if it cannot be read."""
    return [*_decoded(path, _stamp(path), ())[1]]


def read_run(path: Path, key: str) -> Result:
    """Return the result of one run in a file; raise Damaged if it cannot be read."""
    spec, provenance = read_record(path, key)
    with files.reading(path, WHAT):
        experiment = experiment_of(spec)
    return Result(experiment, read_metrics(path, key), provenance)


def read_record(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec and the provenance of one run; raise Damaged if they cannot be read."""
    table = _read(path, key, ("run",))
    with files.reading(path, WHAT):
        run = json.loads(table["run"][0].as_py())
        return dict(run["spec"]), dict(run["provenance"])


def read_metrics(path: Path, key: str) -> pa.Table:
    """Return the metrics of one run in a file; raise Damaged if they cannot be read."""
    table = _read(path, key, (*COLUMNS, "exact"))
    if "exact" in table.column_names:
        value = pc.coalesce(table["exact"], table["value"].cast(pa.float64()))
        table = table.set_column(table.column_names.index("value"), "value", value)
    return tidy(table)


def _read(path: Path, key: str, columns: tuple[str, ...]) -> pa.Table:
    """Return columns of one run in a file."""
    table, rows = _decoded(path, _stamp(path), columns)
    return table[rows[key]]


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


def _stamp(file: str | Path) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced; () for a broken link."""
    with suppress(FileNotFoundError):
        stat = os.stat(file)
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
    return ()


def exported() -> list[Result]:
    """Return all exported results."""
    return [read_run(path, key) for key, path in places().items()]
