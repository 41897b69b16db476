"""Make trouble of every kind and report what came of it.

    python -m benchmarks.robustness [--only NAME ...] [--kills N] [--cases N] [--seed N] [--keep]

What is measured goes to ``build/robustness.md``; ``--keep`` writes ``benchmarks/ROBUSTNESS.md``
instead. The exit status is 1 if a promise was broken.
"""

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from benchmarks.robustness import tiny
from benchmarks.robustness.plan import Plan, Row
from benchmarks.robustness.report import Part, written
from fedlib import paths

KINDS = {
    "storms": "Killed runs",
    "sweeps": "Killed sweeps",
    "written": "Killed writers",
    "full": "Full disks",
    "readonly": "Read-only folders",
    "rivals": "Rivals",
    "files": "Hostile files",
    "hyper": "Hostile hyper-parameters",
    "odd": "Odd clients",
    "attacks": "Attacks from outside",
}


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for, print it row by row, and write the report."""
    asked = _asked(arguments)
    torch.set_num_threads(1)
    parts: list[Part] = []
    with tempfile.TemporaryDirectory(prefix="fedlib-robustness-") as folder:
        plan = Plan(asked.kills, asked.cases, asked.seed, Path(folder))
        tiny.warm(plan.place("warm"))
        for name in asked.only:
            begin = time.monotonic()
            rows = _measured(name, plan)
            parts.append(Part(name, KINDS[name], rows, time.monotonic() - begin))
            for row in rows:
                print(_line(row), flush=True)
    target = Path(__file__).parent.parent / "ROBUSTNESS.md"
    if not asked.keep:
        target = paths.build() / "robustness.md"
        target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(written(parts, asked.kills, asked.cases, asked.seed), "utf-8")
    print(f"\nwritten to {target}")
    return int(any(row.broken for part in parts for row in part.rows))


def _measured(name: str, plan: Plan) -> list[Row]:
    """Return the rows of one kind; one that fails altogether does not cost those of the others."""
    try:
        rows: list[Row] = importlib.import_module(f"benchmarks.robustness.{name}").measure(plan)
        return rows
    except Exception as error:
        traceback.print_exc()
        return [Row(name, broken=[f"could not be measured: {type(error).__name__}: {error}"])]


def _line(row: Row) -> str:
    broken = "".join(f"\n    BROKEN: {said}" for said in row.broken[:5])
    return f"{row.what}: {row.times} times: {row.text()}{broken}"


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], metavar="NAME")
    parser.add_argument("--kills", type=int, default=60, help="of runs; of others a part of them")
    parser.add_argument("--cases", type=int, default=100, help="of every kind of hostile file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/ROBUSTNESS.md")
    asked = parser.parse_args(arguments)
    if asked.kills < 1 or asked.cases < 1:
        parser.error("--kills and --cases must be >= 1")
    if asked.keep and len(asked.only) < len(KINDS):
        parser.error("--keep is for a report of everything: leave --only out")
    return asked


if __name__ == "__main__":
    sys.exit(main())
