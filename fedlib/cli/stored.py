"""`runs` and `show`: what the store holds."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fedlib import data as datasets
from fedlib.cli.app import Usage
from fedlib.cli.asked import algorithm_kinds
from fedlib.cli.text import age, show_table, size, spark
from fedlib.cli.train import show_summary
from fedlib.runs import Damaged, Entry, Result, inventory, store
from fedlib.runs.exported import read_run
from fedlib.runs.log import SCHEMA
from fedlib.runs.log import curve as over_rounds
from fedlib.values import UnknownName, one_of

STATES = ("complete", "training", "interrupted", "diverged", "exported", "damaged", "outdated",
          "unknown")  # fmt: skip


def runs(wishes: Mapping[str, str], as_json: bool) -> None:
    """List the stored runs that are as wished."""
    known = {"state": STATES, "algorithm": algorithm_kinds(), "dataset": datasets.names()}
    for what, wish in wishes.items():
        if wish:
            one_of(what, wish, known[what])
    stored = [_as_dict(entry) for entry in inventory()]
    listed = [d for d in stored if all(wish in ("", d[what]) for what, wish in wishes.items())]
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    head = ("key", "algorithm", "dataset", "seed", "rounds", "state", "size", "age")
    if stored:
        show_table(head, [_row(d) for d in listed])
    else:
        print("nothing is stored")
    print(f"{len(listed)} of {len(stored)} runs, {size(sum(d['bytes'] for d in listed))}")
    for d in listed:
        if d["note"]:
            print(f"{d['key']}: {d['note']}")


def show(key: str, curve: str, export: str) -> None:
    """Show one stored run."""
    entry = _entry(key)
    metrics, said = _read(entry)
    if export:
        _export(metrics, Path(export))
        return
    if curve:
        _curve(metrics, curve)
        return
    total = entry.experiment.rounds if entry.experiment else "?"
    print(entry.experiment or "its spec cannot be read")
    print(f"key {entry.key}, {entry.completed}/{total} rounds, {entry.state}, {entry.path}")
    if entry.note:
        print(entry.note)
    for name, what in said.items():
        print(f"  {name}: {what if isinstance(what, str) else json.dumps(what)}")
    names = metrics["metric"].unique().to_pylist()
    if entry.experiment is not None and "test_accuracy" in names:
        print()
        show_summary([Result(entry.experiment, metrics, said)])
    if names:
        print()
        _show_last(metrics, sorted(names))


def _row(d: dict[str, Any]) -> tuple[object, ...]:
    who = (d["key"], d["algorithm"] or "?", d["dataset"] or "?")
    seed = -1 if d["seed"] is None else d["seed"]  # a number: its column is aligned to the right
    rounds = f"{d['completed']}/{d['rounds'] or '?'}"
    return (*who, seed, rounds, d["state"], size(d["bytes"]), age(d["age_seconds"]))


def _as_dict(entry: Entry) -> dict[str, Any]:
    e = entry.experiment
    return {
        "key": entry.key,
        "state": entry.state,
        "completed": entry.completed,
        "rounds": e.rounds if e else None,
        "algorithm": type(e.algorithm).__name__ if e else None,
        "dataset": e.task.dataset if e else None,
        "seed": e.seed if e else None,
        "code": repr(e) if e else None,
        "path": str(entry.path),
        "bytes": entry.bytes,
        "age_seconds": round(entry.age),
        "note": entry.note,
    }


def _entry(prefix: str) -> Entry:
    entries = inventory()
    found = [entry for entry in entries if entry.key.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        lines = [f"  {entry.key}  {entry.experiment}" for entry in found[:10]]
        raise Usage(f"{prefix!r} is the beginning of {len(found)} keys:\n" + "\n".join(lines))
    starts = {entry.key[: max(4, len(prefix))]: entry.key for entry in entries}
    near = [starts[s] for s in difflib.get_close_matches(prefix, starts, n=3)]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `runs` lists what is stored"
    raise UnknownName(f"no stored run begins with {prefix!r}{hint}")


def _read(entry: Entry) -> tuple[pa.Table, dict[str, Any]]:
    """Return what can be read of a run: metrics, and provenance or failure."""
    if entry.path.is_file():
        if entry.experiment is None:
            raise ValueError(entry.note)
        result = read_run(entry.path, entry.key)
        if result is None:
            raise ValueError(f"{entry.path} does not hold {entry.key} any more")
        return result.metrics, result.provenance
    said: dict[str, Any] = {}
    try:
        for name in (store.PROVENANCE, store.FAILURE):
            if (entry.path / name).exists():
                said |= store.read_json(entry.path / name)
        return store.read_metrics(entry.path), said
    except Damaged as error:
        print(f"note: {error}")
        return SCHEMA.empty_table(), said


def _show_last(metrics: pa.Table, names: list[str]) -> None:
    rows: list[tuple[object, ...]] = []
    for metric in names:
        curve = over_rounds(metrics, metric)
        last = max(curve)
        rows.append((metric, last, f"{curve[last]:.6g}", spark([*curve.values()], 30)))
    show_table(("metric", "round", "mean", "over the rounds"), rows)


def _curve(metrics: pa.Table, metric: str) -> None:
    one_of("metric", metric, sorted(metrics["metric"].unique().to_pylist()))
    curve = over_rounds(metrics, metric)
    values = [*curve.values()]
    print(f"{metric}, mean, {min(values):.6g} to {max(values):.6g}\n{spark(values)}")
    step = max(1, -(-len(curve) // 20))
    shown = [*curve.items()][::-step][::-1]
    show_table(("round", metric), [(t, f"{v:.6g}") for t, v in shown])


def _export(metrics: pa.Table, target: Path) -> None:
    one_of("kind of file", target.suffix, (".csv", ".parquet"))
    write = pyarrow.csv.write_csv if target.suffix == ".csv" else pq.write_table
    try:
        write(metrics, target)
    except OSError as error:
        raise Usage(f"cannot write {target}: {error}") from error
    print(f"{len(metrics)} rows written to {target}")
