"""What commands do: from words to experiments, runs trained and stored, and what there is."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedlib import algorithms as known_algorithms
from fedlib import data as datasets
from fedlib.algorithms import FedAvg
from fedlib.cli import Usage
from fedlib.progress import duration
from fedlib.runs import Damaged, Entry, Experiment, Result, find, inventory, run, store
from fedlib.runs.exported import path_of, read_run
from fedlib.runs.spec import SCHEMA
from fedlib.runs.spec import curve as over_rounds
from fedlib.runs.sweep import sweep
from fedlib.tasks import pick_device
from fedlib.values import UnknownName, as_code, from_code, from_dict, one_of

STATES = ("complete", "training", "interrupted", "diverged", "exported", "damaged", "outdated")
HERE = ("embedded", "parquet", "cache")
LONGEST_BAR = 40
WIDE = 1000  # columns of what is no terminal: a file or a program gets words whole


def experiments(source: str, parts: Mapping[str, Any]) -> list[Experiment]:
    """Return the experiments of a source, code or the name of a file, or else by their parts.

    ``parts`` are what was said of an experiment, by option. A part says nothing beside a source:
    nobody may train something else unawares.
    """
    said = [name for name, part in parts.items() if part]
    if source and said:
        raise Usage(f"--{said[0]} says nothing beside {source}")
    found = _of_source(source) if source else _by_parts(parts)
    if not found:
        raise Usage("there is no experiment in it")
    return found


def _by_parts(parts: Mapping[str, Any]) -> list[Experiment]:
    """Return one experiment per algorithm and seed."""
    task, rounds = parts["task"], parts["rounds"]
    if not (task and parts["algorithm"] and rounds):
        raise Usage("name experiments: CODE, FILE, or --task, --algorithm and --rounds")
    told = {name.replace("-", "_"): parts[name] for name in ("cohort", "evaluate-every")}
    more = fields([f"{name}={part}" for name, part in told.items() if part])
    try:
        texts = (parts["seed"] or "0").split(",")
        if not all(text.isdecimal() for text in texts):
            raise Usage(f"--seed must be whole numbers, got {parts['seed']!r}")
        seeds = range(parts["seeds"]) if parts["seeds"] else [*map(int, texts)]
        chosen = [_algorithm(name, parts["set"]) for name in parts["algorithm"]]
        pairs = itertools.product(chosen, seeds)
        return [Experiment(from_code(task), a, rounds, seed=s, **more) for a, s in pairs]
    except (UnknownName, Usage):
        raise
    except (TypeError, ValueError) as error:  # a wrong value in the question
        raise Usage(str(error)) from error


def algorithm_kinds() -> dict[str, type[FedAvg]]:
    """Return the algorithms by name."""
    found = {name: getattr(known_algorithms, name) for name in known_algorithms.__all__}
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, FedAvg)}


def fields(texts: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE texts as a dict; a value is code, a literal, or else a string."""
    said = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals or not name:
            raise Usage(f"expected NAME=VALUE, got {text!r}")
        try:
            said[name] = from_code(written)
        except ValueError:
            if re.search(r"[()\[\]{}]", written):
                raise
            said[name] = written
    return said


def _algorithm(name: str, options: Sequence[str]) -> Any:
    if "(" in name:
        if options:
            raise Usage("--set goes with the name of an algorithm, not with its code")
        return from_code(name)
    one_of("algorithm", name, algorithm_kinds())
    return from_dict({"kind": name, **fields(options)})


def _of_source(name: str) -> list[Experiment]:
    """Return the experiments of code, or of a file: JSON, or one printed experiment per line."""
    if "(" in name:
        return [_experiment(name, "")]
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        data = json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except OSError as error:
        raise Usage(f"cannot read {name}: {error}") from error
    except ValueError as error:
        raise Usage(f"{name} is no JSON: {error}") from error
    if data is not None:
        specs = data if isinstance(data, list) else [data]
        return [_experiment(spec, f"{name}: ") for spec in specs]
    lines = enumerate(text.splitlines(), 1)
    told = [(i, line) for i, line in lines if line.strip() and line.strip()[0] != "#"]
    return [_experiment(line, f"{name}, line {i}: ") for i, line in told]


def _experiment(said: Any, where: str) -> Experiment:
    try:
        made = from_code(said) if isinstance(said, str) else from_dict(said)
    except (TypeError, ValueError) as error:
        raise Usage(f"{where}{error}") from error
    if not isinstance(made, Experiment):
        raise Usage(f"{where}not an experiment: {made!r}")
    return made


def train(experiments: Sequence[Experiment], plan: bool, device: str, **how: Any) -> None:
    """Train experiments and say what came of them, or list them."""
    if how["address"] is None:  # a cluster has devices of its own
        try:
            pick_device(device)
        except (RuntimeError, ValueError) as error:
            raise Usage(str(error)) from error
    if plan:
        found = [find(e) is not None for e in experiments]
        for experiment, stored in zip(experiments, found, strict=True):
            print(f"{experiment.key}  {'stored ' if stored else 'missing'}  {experiment}")
        print(f"{len(found)} experiments, {sum(found)} stored")
    elif len(experiments) > 1 or how["address"]:
        show_summary(sweep(experiments, device=device, **how))
    else:
        (one,), how = experiments, {name: how[name] for name in ("chunk", "retry")}
        print(f"{one}\nkey {one.key}", flush=True)
        show_summary([run(one, device=device, **how)])
        folder = store.folder(one)
        print(f"stored in {folder if (folder / store.PROVENANCE).exists() else path_of(one)}")


def show_summary(results: Sequence[Result]) -> None:
    """Print what the runs reached: mean client test accuracy, by three rules."""
    rows = []
    for result in results:
        e = result.experiment
        scores = [f"{score:.4f}" for score in reported(result)]
        what = f"{e.task.dataset} {e.algorithm}"
        rows.append((e.key[:8], shorten(what, 60), e.seed, e.rounds, *scores))
    show_table(("key", "run", "seed", "rounds", "last", "last ten", "best on validation"), rows)


def reported(result: Result) -> tuple[float, float, float]:
    """Return the mean client accuracy by three rules: last, last ten evaluations, best round.

    The best is chosen on validation data; nan where there are none.
    """
    held, test = result.curve("validation_accuracy"), result.curve("test_accuracy")
    course = [test[t] for t in test if t in held]
    some = [t for t in test if not math.isnan(held.get(t, math.nan))]
    best = test[max(some, key=lambda t: (held[t], -t))] if some else math.nan
    return course[-1], sum(course[-10:]) / len(course[-10:]), best


def runs(wishes: Mapping[str, str]) -> None:
    """List the stored runs that are as wished."""
    known = {"state": STATES, "algorithm": algorithm_kinds(), "dataset": datasets.names()}
    for what, wish in wishes.items():
        if wish:
            one_of(what, wish, known[what])
    rows, notes, size, entries = list[tuple[Any, ...]](), list[str](), 0, inventory()
    for entry in entries:
        e, told = entry.experiment, {"state": entry.state}
        if e is not None:
            told |= {"algorithm": type(e.algorithm).__name__, "dataset": e.task.dataset}
        if all(wish in ("", told.get(what)) for what, wish in wishes.items()):
            own = (e.seed, e.rounds) if e else (None, None)
            named = entry.key, told.get("algorithm"), told.get("dataset"), *own
            sizes = decimal(entry.bytes), duration(entry.age)
            rows.append((*named, entry.completed, entry.state, *sizes))
            notes += [f"{entry.key}: {entry.note}"] if entry.note else []
            size += entry.bytes
    head = ("key", "algorithm", "dataset", "seed", "rounds", "completed", "state", "size", "age")
    show_table(head, rows)
    print("\n".join([f"{len(rows)} of {len(entries)} runs, {decimal(size)}", *notes]))


def show(key: str, curve: str) -> None:
    """Show one stored run, or a metric of it."""
    entry = _entry(key)
    metrics, said = _read(entry)
    names = sorted(metrics["metric"].unique().to_pylist())
    if curve:
        one_of("metric", curve, names)
        _show_curve(curve, over_rounds(metrics, curve))
        return
    total = entry.experiment.rounds if entry.experiment else "?"
    print(entry.experiment or "its spec cannot be read")
    print(f"key {entry.key}, {entry.completed}/{total} rounds, {entry.state}, {entry.path}")
    if entry.note:
        print(entry.note)
    for name, what in said.items():
        print(f"  {name}: {what if isinstance(what, str) else json.dumps(what)}")
    if entry.experiment is not None and "test_accuracy" in names:
        show_summary([Result(entry.experiment, metrics, said)])
    curves = {name: over_rounds(metrics, name) for name in names}
    show_table(("metric", "round", "mean"), [(n, max(c), c[max(c)]) for n, c in curves.items()])


def _entry(prefix: str) -> Entry:
    entries = inventory()
    found = [entry for entry in entries if entry.key.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        lines = [f"  {entry.key}  {entry.experiment}" for entry in found[:10]]
        raise Usage(f"{prefix!r} is the beginning of {len(found)} keys:\n" + "\n".join(lines))
    near = difflib.get_close_matches(prefix, [entry.key for entry in entries], cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`runs` lists what is stored"
    raise UnknownName(f"no stored run begins with {prefix!r}; {hint}")


def _read(entry: Entry) -> tuple[pa.Table, dict[str, Any]]:
    """Return what can be read of a run: metrics, and provenance or failure."""
    if entry.path.is_file():
        result = read_run(entry.path, entry.key) if entry.experiment else None
        if result is None:
            raise ValueError(entry.note or f"{entry.path} does not hold {entry.key} any more")
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


def _show_curve(metric: str, curve: Mapping[int, float]) -> None:
    """Print at most twenty rounds of a metric, the last one among them, with a bar for each."""
    step = -(-len(curve) // 20)
    shown = [*curve.items()][::-step][::-1]
    finite = [v for _, v in shown if math.isfinite(v)] or [0.0]
    low, width = min(finite), (max(finite) - min(finite)) / LONGEST_BAR or 1.0
    bars = ["#" * round((v - low) / width) if math.isfinite(v) else "" for _, v in shown]
    rows = [(t, v, bar) for (t, v), bar in zip(shown, bars, strict=True)]
    show_table(("round", metric, f"from {low:.6g} to {max(finite):.6g}"), rows)


def algorithms(name: str) -> None:
    """List the algorithms, or show the fields of one."""
    kinds = algorithm_kinds()
    if not name:
        rows = [(n, (inspect.getdoc(kind) or "").split("\n")[0]) for n, kind in kinds.items()]
        show_table(("algorithm", "what it is"), rows)
        return
    one_of("algorithm", name, kinds)
    print(f"{name}\n\n{inspect.getdoc(kinds[name])}\n")
    fields = [(f.name, str(f.type), as_code(f.default)) for f in dataclasses.fields(kinds[name])]
    show_table(("field", "type", "default"), fields)


def data(action: str, names: Sequence[str]) -> int:
    """List the data sets, or fetch or verify some."""
    one_of("action", action, ("list", "fetch", "verify"))
    for name in names:
        one_of("dataset", name, datasets.names())
    if action == "list":
        known = [datasets.describe(name) for name in names or datasets.names()]
        rows = [(d.name, d.place, *(f"{n:,}" if n else "" for n in (d.train, d.test)), d.classes,
                 "x".join(map(str, d.shape)), d.where) for d in known]  # fmt: skip
        show_table(("dataset", "state", "train", "test", "classes", "shape", "where"), rows)
        return 0
    if action == "fetch":
        if not names:
            raise Usage("data fetch needs the names of data sets")
        for name in names:
            found = datasets.fetch(name)
            sizes = f"{len(found.train.labels):,} + {len(found.test.labels):,}"
            print(f"{name}: {sizes} examples, {found.source}")
        return 0
    bad = 0
    for name in names or [n for n in datasets.names() if datasets.describe(n).place in HERE]:
        problems = datasets.verify(name)
        bad += bool(problems)
        print(f"{name}: {'sound' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
    return 1 if bad else 0


def show_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print an aligned table; numbers to the right, words to the left."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        numbers = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
        grid.add_row(*("" if cell is None else str(cell) for cell in cells))
    width = None if sys.stdout.isatty() else WIDE
    Console(width=width, markup=False, highlight=False, emoji=False).print(grid)
