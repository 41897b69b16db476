"""`algorithms` and `data`: what there is to choose from."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Sequence

from fedlib import data as datasets
from fedlib.cli.app import Usage
from fedlib.cli.asked import algorithm_kinds
from fedlib.cli.text import show_table
from fedlib.values import as_code, one_of

HERE = ("embedded", "parquet", "cache")


def algorithms(name: str) -> None:
    """List the algorithms, or show the fields of one."""
    kinds = algorithm_kinds()
    if not name:
        rows = [(n, (inspect.getdoc(kind) or "").split("\n")[0]) for n, kind in kinds.items()]
        show_table(("algorithm", "what it is"), rows)
        return
    one_of("algorithm", name, kinds)
    kind = kinds[name]
    print(f"{name}\n\n{inspect.getdoc(kind)}\n")
    fields = [(f.name, str(f.type), as_code(f.default)) for f in dataclasses.fields(kind)]
    show_table(("field", "type", "default"), fields)


def data(action: str, names: Sequence[str]) -> int:
    """List the data sets, or fetch or verify some."""
    one_of("action", action, ("list", "fetch", "verify"))
    for name in names:
        one_of("dataset", name, datasets.names())
    if action == "fetch":
        return _fetch(names)
    if action == "verify":
        return _verify(names)
    rows = []
    for name in names or datasets.names():
        d = datasets.describe(name)
        sizes = ["" if n is None else f"{n:,}" for n in (d.train, d.test)]
        shape = "x".join(map(str, d.shape))
        rows.append((name, d.place, *sizes, d.classes, shape, d.where))
    show_table(("dataset", "state", "train", "test", "classes", "shape", "where"), rows)
    return 0


def _fetch(names: Sequence[str]) -> int:
    if not names:
        raise Usage("data fetch needs the names of data sets")
    for name in names:
        found = datasets.fetch(name)
        print(f"{name}: {len(found.train.labels):,} + {len(found.test.labels):,} examples, "
              f"{found.source}")  # fmt: skip
    return 0


def _verify(names: Sequence[str]) -> int:
    chosen = names or [n for n in datasets.names() if datasets.describe(n).place in HERE]
    bad = 0
    for name in chosen:
        problems = datasets.verify(name)
        bad += bool(problems)
        print(f"{name}: {'sound' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
    return 1 if bad else 0
