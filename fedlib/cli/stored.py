"""`runs` and `show`: what the store holds."""

from __future__ import annotations

import difflib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd

from fedlib import data as datasets
from fedlib.cli.asked import algorithm_kinds
from fedlib.cli.parser import Usage
from fedlib.cli.text import age, size, spark, table
from fedlib.cli.train import summary
from fedlib.runs import Damaged, Entry, Result, inventory, store
from fedlib.runs.exported import read_run
from fedlib.values import UnknownName, one_of

STATES = ("complete", "training", "interrupted", "diverged", "exported", "damaged", "outdated",
          "unknown")  # fmt: skip


def runs(asked: Namespace) -> None:
    """List the stored runs."""
    wishes = {"state": STATES, "algorithm": algorithm_kinds(), "dataset": datasets.names()}
    for what, legal in wishes.items():
        if getattr(asked, what):
            one_of(what, getattr(asked, what), legal)
    stored = [_as_dict(entry) for entry in inventory()]
    listed = [d for d in stored if all(getattr(asked, w) in ("", d[w]) for w in wishes)]
    if asked.json:
        print(json.dumps(listed, indent=1))
        return
    head = ("key", "algorithm", "dataset", "seed", "rounds", "state", "size", "age")
    print(table(head, [_row(d) for d in listed]) if stored else "nothing is stored")
    print(f"{len(listed)} of {len(stored)} runs, {size(sum(d['bytes'] for d in listed))}")
    for d in listed:
        if d["note"]:
            print(f"{d['key']}: {d['note']}")


def show(asked: Namespace) -> None:
    """Show one stored run."""
    entry = _entry(asked.key)
    metrics, said = _read(entry)
    if asked.export:
        _export(metrics, Path(asked.export))
        return
    if asked.curve:
        _curve(metrics, asked.curve)
        return
    total = entry.experiment.rounds if entry.experiment else "?"
    print(entry.experiment or "its spec cannot be read")
    print(f"key {entry.key}, {entry.completed}/{total} rounds, {entry.state}, {entry.path}")
    if entry.note:
        print(entry.note)
    for name, what in said.items():
        print(f"  {name}: {what if isinstance(what, str) else json.dumps(what)}")
    if metrics.empty:
        return
    if entry.experiment is not None and (metrics["metric"] == "test_accuracy").any():
        print(f"\n{summary([Result(entry.experiment, metrics, said)])}")
    print(f"\n{_last(metrics)}")


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


def _read(entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
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
        return pd.DataFrame(columns=["round", "metric", "value"]), said


def _over_rounds(metrics: pd.DataFrame, metric: str) -> pd.Series:
    one_of("metric", metric, sorted(set(metrics["metric"])))
    return metrics[metrics["metric"] == metric].groupby("round")["value"].mean()


def _last(metrics: pd.DataFrame) -> str:
    rows: list[tuple[object, ...]] = []
    for metric in sorted(set(metrics["metric"])):
        curve = _over_rounds(metrics, metric)
        last = int(curve.index.to_numpy()[-1])
        rows.append((metric, last, f"{curve.iloc[-1]:.6g}", spark(list(curve), 30)))
    return table(("metric", "round", "mean", "over the rounds"), rows)


def _curve(metrics: pd.DataFrame, metric: str) -> None:
    curve = _over_rounds(metrics, metric)
    print(f"{metric}, mean, {curve.min():.6g} to {curve.max():.6g}\n{spark(list(curve))}")
    step = max(1, -(-len(curve) // 20))
    shown = curve.iloc[::-1].iloc[::step].iloc[::-1]
    print(table(("round", metric), [(t, f"{v:.6g}") for t, v in shown.items()]))


def _export(metrics: pd.DataFrame, target: Path) -> None:
    one_of("kind of file", target.suffix, (".csv", ".parquet"))
    try:
        if target.suffix == ".csv":
            metrics.to_csv(target, index=False)
        else:
            metrics.to_parquet(target, index=False)
    except OSError as error:
        raise Usage(f"cannot write {target}: {error}") from error
    print(f"{len(metrics)} rows written to {target}")
