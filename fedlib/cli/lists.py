"""`tasks`, `algorithms` and `data`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from argparse import Namespace

import numpy as np

from fedlib import data as datasets
from fedlib.cli.asked import algorithm_kinds, named_task
from fedlib.cli.parser import Usage
from fedlib.cli.text import table
from fedlib.tasks import Task
from fedlib.values import as_code, one_of
from papers import named as known

HERE = ("embedded", "parquet", "cache")


def tasks(asked: Namespace) -> None:
    """List the named tasks, or show one as code with what its clients hold."""
    if not asked.name:
        rows = [(name, known.about(name)) for name in known.names()]
        print(table(("task", "what it is"), rows))
        return
    task = named_task(asked.name, asked.scale, asked.task_set)
    print(task)
    where = datasets.describe(task.dataset)
    if where.place in HERE:
        print(_clients(task))
    else:
        print(f"the data are not here ({where.place}: {where.where}); see data fetch")


def algorithms(asked: Namespace) -> None:
    """List the algorithms, or show the fields of one."""
    kinds = algorithm_kinds()
    if not asked.name:
        rows = [(name, (inspect.getdoc(kind) or "").split("\n")[0]) for name, kind in kinds.items()]
        print(table(("algorithm", "what it is"), rows))
        return
    one_of("algorithm", asked.name, kinds)
    kind = kinds[asked.name]
    print(f"{asked.name}\n\n{inspect.getdoc(kind)}\n")
    fields = [(f.name, str(f.type), as_code(f.default)) for f in dataclasses.fields(kind)]
    print(table(("field", "type", "default"), fields))


def data(asked: Namespace) -> int:
    """List the data sets, or fetch or verify some."""
    for name in asked.names:
        one_of("dataset", name, datasets.names())
    if asked.action == "fetch":
        return _fetch(asked.names)
    if asked.action == "verify":
        return _verify(asked.names)
    rows = []
    for name in asked.names or datasets.names():
        d = datasets.describe(name)
        sizes = ["" if n is None else f"{n:,}" for n in (d.train, d.test)]
        shape = "x".join(map(str, d.shape))
        rows.append((name, d.place, *sizes, d.classes, shape, d.where))
    print(table(("dataset", "state", "train", "test", "classes", "shape", "where"), rows))
    return 0


def _fetch(names: list[str]) -> int:
    if not names:
        raise Usage("data fetch needs the names of data sets")
    for name in names:
        found = datasets.fetch(name)
        print(f"{name}: {len(found.train.labels):,} + {len(found.test.labels):,} examples, "
              f"{found.source}")  # fmt: skip
    return 0


def _verify(names: list[str]) -> int:
    chosen = names or [n for n in datasets.names() if datasets.describe(n).place in HERE]
    bad = 0
    for name in chosen:
        problems = datasets.verify(name)
        bad += bool(problems)
        print(f"{name}: {'sound' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
    return 1 if bad else 0


def _clients(task: Task) -> str:
    rows = []
    for part, counts in task.counts(0).items():
        sizes = counts.sum(1)
        spread = f"{sizes.min():,} to {sizes.max():,} (mean {sizes.mean():,.1f})"
        classes = f"{(counts > 0).sum(1).mean():.1f}"
        most = f"{(counts.max(1) / np.maximum(sizes, 1)).mean():.2f}"
        rows.append((part, f"{len(sizes):,}", spread, classes, most))
    return table(("seed 0", "clients", "examples", "classes each", "largest share"), rows)
