"""Hostile files: every damaged file that fedlib reads is seen to be damaged, or does no harm.

Each case spoils one file: cut at a random place, a bit flipped, a stretch of garbage or zeros, all
garbage; JSON with a hostile part (nested 100,000 deep, numbers of 5,000 digits, NaN, names of
classes and functions); safetensors headers that lie of lengths, places, shapes and kinds; Parquet
files of other columns or kinds, and files of another kind. Children with limited memory and time
read them, and watch for any process started or pickle opened. A damaged run is moved aside whole,
and one of twenty is trained again and compared.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.robustness import mangle, tiny
from benchmarks.robustness.fuzz import every
from benchmarks.robustness.plan import Plan, Row
from fedlib import data as datasets
from fedlib import paths
from fedlib.values import from_code, from_dict, to_dict
from fedrun import Result, find_result, list_runs, store
from fedrun.files import DamagedWarning
from fedrun.results import export, path_of, read_metrics

TRAINED_AGAIN = 20  # one of 20 damaged runs is also trained again and compared
RUN, OTHER = tiny.BEST, tiny.MIX
JSON = (*mangle.BYTES, *[mangle.in_json] * 7)
CODE = ("os.system('true')", "__import__('os')", "().__class__", "9**9**9", "f'{1}'", "-" * 5000)


class Target(NamedTuple):
    """A file, the ways to damage it, and a function that reads it.

    Attributes:
        what: the file in words.
        path: its path.
        ways: the ways to damage it.
        look: reads the file and returns the outcome, given the number of the case.
        without: files and folders that are deleted before.
    """

    what: str
    path: Path
    ways: tuple[mangle.Way, ...]
    look: Callable[[int], str]
    without: tuple[Path, ...] = ()


class Case(NamedTuple):
    """One way to damage a file, named by the way and its seed."""

    number: int
    way: mangle.Way
    seed: int

    def __str__(self) -> str:
        return f"{self.way.__name__} {self.seed}"

    def spoilt(self, data: bytes) -> bytes:
        """Return a file's bytes, damaged."""
        return self.way(random.Random(self.seed), data)


def measure(plan: Plan) -> list[Row]:
    """Damage every kind of file that fedlib reads."""
    warnings.simplefilter("ignore", DamagedWarning)
    home = plan.place("home")
    with tiny.home(home), tiny.data(plan.place("home/data")) as source:
        tiny.play(RUN)
        tiny.play(OTHER)
        found = find_result(RUN)
        assert found is not None
        export([found], "spoilt")
        failure = {"round": 2, "clients": [1], "message": "m", "metrics": {"a": 1.0}}
        store.RunFolder(OTHER).write_record(store.FAILURE, failure)
        tiny.opened()
        shutil.copytree(home, plan.folder / "sound")
        targets = [*_of_a_run(found), *_of_results(found), *_of_data(source)]
        return [_spoilt(plan, target, home) for target in targets] + [
            _texts(plan, "JSON", json.dumps(to_dict(tiny.MIXED)), JSON),
            _texts(plan, "code", repr(tiny.MIXED), (*mangle.BYTES, *[planted] * 4)),
        ]


def _cases(plan: Plan, what: str, ways: tuple[mangle.Way, ...]) -> list[Case]:
    rng = plan.rng("files", what)
    return [
        Case(i, way, rng.randrange(2**32)) for i, way in enumerate(rng.choices(ways, k=plan.cases))
    ]


def _spoilt(plan: Plan, target: Target, home: Path) -> Row:
    """Damage one file in many ways; all files are restored in between."""
    row, data = Row(f"spoilt {target.what}"), target.path.read_bytes()

    def act(case: Case) -> str:
        for path in target.without:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        target.path.write_bytes(case.spoilt(data))
        return target.look(case.number)

    def restore() -> None:
        shutil.rmtree(home)
        shutil.copytree(plan.folder / "sound", home)

    every(row, _cases(plan, target.what, target.ways), act, restore)
    return row


def _of_a_run(found: Result) -> list[Target]:
    """Return the files of a finished run, which is looked up, listed, locked and restored."""
    expected, aside = tiny.bits(RUN), paths.runs() / "damaged"

    def look(number: int) -> str:
        (listed,) = [entry.state for entry in list_runs() if entry.key == RUN.key]
        seen = find_result(RUN)
        if seen is not None and not seen.metrics.equals(found.metrics):
            return "!other numbers, unnoticed"
        store.RunFolder(RUN).load()
        if aside.exists():
            return _trained_again(number)
        if tiny.bits(RUN)[1] != expected[1]:
            return "!another state, unnoticed"
        if seen is None or seen.provenance != found.provenance:
            return "unnoticed in the provenance only"
        return "harmless" if listed == "complete" else f"listed as {listed}, and harmless"

    def _trained_again(number: int) -> str:
        if store.folder(RUN).exists():
            return "!not moved aside whole"
        if number % TRAINED_AGAIN:
            return "moved aside"
        tiny.play(RUN)
        same = tiny.bits(RUN) == expected
        return "moved aside, trained again to the same bits" if same else "!trained to other bits"

    ways = {
        store.METRICS: (*mangle.BYTES, schema, swapped),
        store.CHECKPOINT: (*mangle.BYTES, *[mangle.in_safetensors] * 4),
        store.SPEC: JSON,
        store.PROVENANCE: JSON,
    }
    exported = (paths.results(),)
    return [
        Target(f"`{name}` of a finished run", store.folder(RUN) / name, how, look, exported)
        for name, how in ways.items()
    ]


def _of_results(found: Result) -> list[Target]:
    """Return the record of a diverged run, and an exported result with the JSON of its run."""
    failed, path = store.folder(OTHER), path_of(RUN)
    assert path is not None
    metrics = read_metrics(path, RUN.key)  # whose losses are rounded

    def look_failure(_: int) -> str:
        list_runs()
        store.RunFolder(OTHER).load()
        if (paths.runs() / "damaged").exists():
            return "moved aside"
        tiny.play(OTHER)  # raises RunDiverged
        return "!a failure was not told"

    def look_exported(_: int) -> str:
        list_runs()
        seen = find_result(RUN)
        if seen is None:
            return "passed over"
        if not seen.metrics.equals(metrics):
            return "!other numbers, unnoticed"
        same = seen.provenance == found.provenance
        return "harmless" if same else "unnoticed in the provenance only"

    finished = (failed / store.PROVENANCE,)
    ways = (*mangle.BYTES, *[in_exported] * 4)
    return [
        Target(f"`{store.FAILURE}`", failed / store.FAILURE, JSON, look_failure, finished),
        Target("exported result", path, ways, look_exported, (paths.runs(),)),
    ]


def _of_data(source: Path) -> list[Target]:
    """Return decoded files, which must be decoded again, and a Parquet file to be decoded."""
    expected = _examples()
    (entry,) = [p for p in (paths.cache() / "datasets").iterdir() if p.is_dir()]

    def look(_: int) -> str:
        return "the same examples" if _examples() == expected else "!other examples, unnoticed"

    def look_source(_: int) -> str:
        same = tiny.opened() == fingerprint
        return "harmless" if same else "other data, other fingerprint"

    fingerprint, file = tiny.opened(), source / "test-00000-of-00001.parquet"
    decoded = [
        Target(
            f"`{p.name}` of a decoded data set",
            p,
            JSON if ".json" in p.name else mangle.BYTES,
            look,
        )
        for p in sorted(entry.iterdir())
    ]
    how = (*mangle.BYTES, shuffled)
    return [*decoded, Target("Parquet file of a data set", file, how, look_source)]


def _examples() -> list[bytes]:
    """Return the bytes of all examples and labels, as they are opened."""
    opened = datasets.load(tiny.NAME)
    parts = (opened.train, opened.test)
    return [a.tobytes() for part in parts for a in (part.features, part.labels)]


def _texts(plan: Plan, kind: str, text: str, ways: tuple[mangle.Way, ...]) -> Row:
    """Read damaged specs: JSON, or code as on the command line."""
    row = Row(f"spoilt spec, as {kind}")

    def act(case: Case) -> str:
        data = case.spoilt(text.encode())
        if kind == "code":
            item = from_code(data.decode(errors="replace"))
        else:
            try:
                said = json.loads(data)
            except (ValueError, RecursionError):
                return "no JSON"
            item = from_dict(said)
        return "another value" if repr(item) != repr(tiny.MIXED) else "harmless"

    every(row, _cases(plan, kind, ways), act)
    return row


def planted(rng: random.Random, data: bytes) -> bytes:
    """Insert hostile code at a random position."""
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(CODE).encode() + data[at:]


def swapped(rng: random.Random, data: bytes) -> bytes:
    """Replace a file by another file of the store."""
    name = rng.choice((store.SPEC, store.CHECKPOINT, store.PROVENANCE))
    return (store.folder(OTHER) / name).read_bytes()


def schema(rng: random.Random, data: bytes) -> bytes:
    """Write a sound Parquet file that holds something other than metrics."""
    frame = pq.read_table(pa.BufferReader(data)).to_pandas()
    name = rng.choice(list(frame.columns))
    changed: list[Callable[[], pd.DataFrame]] = [
        lambda: frame.drop(columns=name),
        lambda: frame.assign(more=1),
        lambda: frame[:0],
        lambda: frame.rename(columns={name: "__class__"}),
        lambda: pd.DataFrame(),
    ]
    return _parquet(pa.Table.from_pandas(rng.choice(changed)()))


def in_exported(rng: random.Random, data: bytes) -> bytes:
    """Insert something hostile into the JSON that identifies the run of an exported result."""
    table = pq.read_table(pa.BufferReader(data))
    said = mangle.in_json(rng, table["run"][0].as_py().encode())
    column = pa.array([said] * len(table)).cast(pa.string(), safe=False)
    return _parquet(table.set_column(1, "run", column.dictionary_encode()))


def shuffled(rng: random.Random, data: bytes) -> bytes:
    """Write a sound Parquet file with other columns or kinds than a data set has."""
    table = pq.read_table(pa.BufferReader(data))
    n = len(table)
    other_labels: list[Any] = [["x"] * n, [-1] * n, pa.array([None] * n, pa.int64())]
    changed = [
        table.drop_columns(["label"]),
        *(table.set_column(1, "label", pa.array(labels)) for labels in other_labels),
        table.set_column(0, "image", pa.array([b"x"] * n)),
        table.append_column("../up", pa.array([1] * n)),
        table[:0],
    ]
    return _parquet(rng.choice(changed))


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())
