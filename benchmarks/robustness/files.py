"""Hostile files where fedlib reads: every one is seen to be damaged, or does no harm.

Each case spoils one file: cut at a random place, a bit flipped, a stretch of garbage or zeros, all
garbage; JSON with a hostile part (nested 100,000 deep, numbers of 5,000 digits, NaN, names of
classes); safetensors headers that lie of lengths, places, shapes and kinds; Parquet files of other
columns or kinds, and files of another kind. Children with limited memory and time read them, and
watch for any process started or pickle opened. A damaged run is moved aside whole, and one of
twenty is trained again and compared.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.robustness import mangle, tiny, written
from benchmarks.robustness.fuzz import every
from benchmarks.robustness.plan import Plan, Row
from fedlib import data as datasets
from fedlib import paths
from fedlib.values import from_code, from_dict, to_dict
from fedrun import find_result, list_runs, store
from fedrun.files import DamagedWarning
from fedrun.provenance import commit
from fedrun.results import export, path_of

DEEP = 5000
TRAINED_AGAIN = 20  # one of so many damaged runs is also trained again and compared
RUN, OTHER = tiny.BEST, tiny.MIX


def measure(plan: Plan) -> list[Row]:
    """Spoil every kind of file that fedlib reads."""
    warnings.simplefilter("ignore", DamagedWarning)
    commit()  # asks git once; from here on nobody may start a process
    with tiny.home(plan.place("hostile")), written.data(plan.place("hostile-data")) as source:
        tiny.play(RUN)
        tiny.play(OTHER)
        found = find_result(RUN)
        assert found is not None
        export([found], "spoilt")
        store.RunFolder(OTHER).write_record(
            store.FAILURE,
            {"round": 2, "clients": [1], "message": "m", "metrics": {"a": 1.0}},
        )
        written.opened()
        base = plan.folder / "hostile"
        safe = shutil.copytree(base, plan.folder / "safe")
        rows = [
            _run_folder(plan, safe, base, store.METRICS, (*mangle.BYTES, schema, swapped)),
            _run_folder(
                plan, safe, base, store.CHECKPOINT, (*mangle.BYTES, *[mangle.in_safetensors] * 4)
            ),
            _run_folder(plan, safe, base, store.SPEC, (*mangle.BYTES, *[mangle.in_json] * 7)),
            _run_folder(plan, safe, base, store.PROVENANCE, (*mangle.BYTES, *[mangle.in_json] * 7)),
            _failure(plan),
            _exported(plan, safe),
            _texts(plan),
            _cached(plan, safe, base),
            _sources(plan, source),
        ]
    return rows


def _cases(plan: Plan, name: str, ways: tuple[mangle.Way, ...], data: bytes) -> list[Any]:
    """Return so many ways to spoil these bytes, each with a name."""
    rng = plan.rng("files", name)
    chosen = enumerate(rng.choices(ways, k=plan.cases))
    return [_Case(number, way, rng.randrange(2**32), data) for number, way in chosen]


class _Case:
    """One spoilt file, made when it is needed: some hold megabytes."""

    def __init__(self, number: int, way: mangle.Way, seed: int, data: bytes) -> None:
        self.number, self.way, self.seed, self._data = number, way, seed, data

    def __str__(self) -> str:
        return f"{self.way.__name__} {self.seed}"

    def bytes(self) -> bytes:
        return self.way(random.Random(self.seed), self._data)


def schema(rng: random.Random, data: bytes) -> bytes:
    """Write a sound Parquet file that holds something else than metrics."""
    frame = pq.read_table(pa.BufferReader(data)).to_pandas()
    name = rng.choice(list(frame.columns))
    changed: list[Callable[[], pd.DataFrame]] = [
        lambda: frame.drop(columns=name),
        lambda: frame.assign(more=1),
        lambda: frame[:0],
        lambda: frame.rename(columns={name: "__class__"}),
        lambda: pd.DataFrame(),
    ]
    sink = pa.BufferOutputStream()
    rng.choice(changed)().to_parquet(sink)
    return sink.getvalue().to_pybytes()


def swapped(rng: random.Random, data: bytes) -> bytes:
    """Put another file of the store in its place."""
    home = store.folder(OTHER)
    name = rng.choice((store.SPEC, store.CHECKPOINT, store.PROVENANCE))
    return (home / name).read_bytes()


def _restored(safe: Path, base: Path, part: str) -> None:
    for old in (base / part, _aside()):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(safe / part, base / part)


def _aside() -> Path:
    """Return where damaged runs are moved to."""
    return paths.runs() / "damaged"


def _run_folder(plan: Plan, safe: Path, base: Path, name: str, ways: tuple[mangle.Way, ...]) -> Row:
    """Spoil one file of a finished run: look it up, list the store, claim and restore it."""
    row, path = Row(f"spoilt `{name}` of a finished run"), store.folder(RUN) / name
    found, expected, data = find_result(RUN), tiny.bits(RUN), path.read_bytes()
    assert found is not None
    shutil.rmtree(paths.results())

    def act(case: _Case) -> str:
        path.write_bytes(case.bytes())
        try:
            return _looked(case.number)
        finally:
            _restored(safe, base, f"runs/{RUN.key}")

    def _looked(number: int) -> str:
        (listed,) = [entry.state for entry in list_runs() if entry.key == RUN.key]
        seen = find_result(RUN)
        if seen is not None and not seen.metrics.equals(found.metrics):
            return "!other numbers, unnoticed"
        store.RunFolder(RUN).load()
        if _aside().exists():
            return _begun_anew(number)
        if tiny.bits(RUN)[1] != expected[1]:
            return "!another state, unnoticed"
        if seen is None or seen.provenance != found.provenance:
            return "unnoticed in the provenance only"
        return "harmless" if listed == "complete" else f"listed as {listed}, and harmless"

    def _begun_anew(number: int) -> str:
        if store.folder(RUN).exists():
            return "!not moved aside whole"
        if number % TRAINED_AGAIN:
            return "moved aside"
        tiny.play(RUN)
        same = tiny.bits(RUN) == expected
        return "moved aside, trained again to the same bits" if same else "!trained to other bits"

    every(row, _cases(plan, name, ways, data), act)
    if not paths.results().exists():
        shutil.copytree(safe / "results", paths.results())
    return row


def _failure(plan: Plan) -> Row:
    row, path = Row("spoilt `failure.json`"), store.folder(OTHER) / store.FAILURE
    (store.folder(OTHER) / store.PROVENANCE).unlink()
    data = path.read_bytes()

    def act(case: _Case) -> str:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(case.bytes())
        list_runs()
        store.RunFolder(OTHER).load()
        if _aside().exists():
            shutil.rmtree(_aside())
            return "moved aside"
        tiny.play(OTHER)  # raises RunDiverged
        return "!a failure was not told"

    every(row, _cases(plan, "failure", (*mangle.BYTES, *[mangle.in_json] * 7), data), act)
    path.unlink(missing_ok=True)
    return row


def _exported(plan: Plan, safe: Path) -> Row:
    """Spoil an exported result, its bytes and the JSON that says of which run it is."""
    row, path, found = Row("spoilt exported result"), path_of(RUN), find_result(RUN)
    assert found is not None and path is not None
    data = path.read_bytes()
    shutil.rmtree(paths.runs())

    def bomb(rng: random.Random, data: bytes) -> bytes:
        table = pq.read_table(pa.BufferReader(data))
        said = mangle.in_json(rng, table["run"][0].as_py().encode())
        column = pa.array([said] * len(table)).cast(pa.string(), safe=False)
        sink = pa.BufferOutputStream()
        pq.write_table(table.set_column(1, "run", column.dictionary_encode()), sink)
        return sink.getvalue().to_pybytes()

    def act(case: _Case) -> str:
        path.write_bytes(case.bytes())
        list_runs()
        seen = find_result(RUN)
        if seen is None:
            return "passed over"
        if not seen.metrics.equals(found.metrics):
            return "!other numbers, unnoticed"
        same = seen.provenance == found.provenance
        return "harmless" if same else "unnoticed in the provenance only"

    every(row, _cases(plan, "exported", (*mangle.BYTES, *[bomb] * 4), data), act)
    path.write_bytes(data)
    shutil.copytree(safe / "runs", paths.runs())
    return row


def _texts(plan: Plan) -> Row:
    """Specs from elsewhere: JSON, and code as the command line takes it."""
    row, spec = Row("spoilt spec, as JSON and as code"), json.dumps(to_dict(tiny.MIXED)).encode()
    code = repr(tiny.MIXED).encode()
    hostile = (
        "os.system('true')", "__import__('os')", "().__class__", "9**9**9", "f'{1}'", "-" * DEEP,
    )  # fmt: skip

    def planted(rng: random.Random, data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + rng.choice(hostile).encode() + data[at:]

    def act(case: _Case) -> str:
        data = case.bytes()
        if data[:1] in b"{[":
            try:
                json_said = json.loads(data)
            except (ValueError, RecursionError):
                return "no JSON"
            item = from_dict(json_said)
        else:
            item = from_code(data.decode(errors="replace"))
        return "another value" if repr(item) != repr(tiny.MIXED) else "harmless"

    cases = _cases(plan, "spec text", (*mangle.BYTES, *[mangle.in_json] * 7), spec)
    cases += _cases(plan, "code", (*mangle.BYTES, *[planted] * 4), code)
    every(row, cases, act)
    return row


def _cached(plan: Plan, safe: Path, base: Path) -> Row:
    """Spoil a file of a decoded data set: opening it makes it anew."""
    row, expected = Row("spoilt file of a decoded data set"), _examples()
    (entry,) = [p for p in (paths.cache() / "datasets").iterdir() if p.is_dir()]
    cases = []
    for path in sorted(entry.iterdir()):
        ways = (*mangle.BYTES, *([mangle.in_json] * 7 if path.suffix == ".json" else []))
        few = replace(plan, cases=-(-plan.cases // len(list(entry.iterdir()))))
        cases += [(path, c) for c in _cases(few, path.name, ways, path.read_bytes())]

    def act(case: tuple[Path, _Case]) -> str:
        path, spoilt = case
        data = spoilt.bytes()
        path.write_bytes(data)
        try:
            if _examples() != expected:
                return "!other examples, unnoticed"
            return "harmless" if path.exists() and path.read_bytes() == data else "made anew"
        finally:
            shutil.rmtree(base / "cache")
            shutil.copytree(safe / "cache", base / "cache")

    every(row, cases, act)
    return row


def _examples() -> list[bytes]:
    """Return the bytes of all examples and labels, as they are opened."""
    opened = datasets.load(written.NAME)
    parts = (opened.train, opened.test)
    return [a.tobytes() for part in parts for a in (part.features, part.labels)]


def _sources(plan: Plan, source: Path) -> Row:
    """Spoil a Parquet file that is to be decoded."""
    row, expected = Row("spoilt Parquet file of a data set"), written.opened()
    path = source / "test-00000-of-00001.parquet"
    data = path.read_bytes()

    def act(case: _Case) -> str:
        path.write_bytes(case.bytes())
        try:
            opened = datasets.load(written.NAME)
            return "harmless" if opened.fingerprint == expected else "other data, other fingerprint"
        finally:
            path.write_bytes(data)

    every(row, _cases(plan, "sources", (*mangle.BYTES, shuffled), data), act)
    return row


def shuffled(rng: random.Random, data: bytes) -> bytes:
    """Write a sound Parquet file with other columns or kinds than a data set has."""
    table = pq.read_table(pa.BufferReader(data))
    changed: list[Callable[[], pa.Table]] = [
        lambda: table.drop_columns(["label"]),
        lambda: table.set_column(1, "label", pa.array(["x"] * len(table))),
        lambda: table.set_column(1, "label", pa.array([-1] * len(table))),
        lambda: table.set_column(1, "label", pa.array([None] * len(table), pa.int64())),
        lambda: table.set_column(0, "image", pa.array([b"x"] * len(table))),
        lambda: table.append_column("../up", pa.array([1] * len(table))),
        lambda: table[:0],
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(rng.choice(changed)(), sink)
    return sink.getvalue().to_pybytes()
