"""Make trouble of every kind and report what came of it.

    python -m benchmarks.robustness [--only NAME ...] [--kills N] [--cases N] [--seed N] [--keep]

What is measured goes to ``build/ROBUSTNESS.md``; ``--keep`` writes ``benchmarks/ROBUSTNESS.md``
instead. The exit status is 1 if a promise was broken.
"""

import argparse
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import torch

from benchmarks import report
from benchmarks.robustness import tiny
from benchmarks.robustness.plan import Plan, Row
from fedrun.provenance import commit

KINDS = ("kills", "disks", "rivals", "files", "hyper", "odd")
MOST_TOLD = 5
HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    """Measure, print each row, and write the report; return 1 if a promise was broken."""
    asked = _asked(arguments)
    torch.set_num_threads(1)
    begin, found = time.monotonic(), dict[ModuleType, list[Row]]()
    with tempfile.TemporaryDirectory(prefix="fedlib-robustness-") as folder:
        Path(folder).chmod(0o755)  # another user reads below it
        tiny.warm(Path(folder) / "warm")
        for name in asked.only:
            part = importlib.import_module(f"benchmarks.robustness.{name}")
            plan = Plan(asked.kills, asked.cases, asked.seed, Path(folder) / name)
            found[part] = _measured(part, plan)
            for row in found[part]:
                broken = "".join(f"\n    BROKEN: {said}" for said in row.broken[:MOST_TOLD])
                print(f"{row.what}: {row.times} times: {row.text()}{broken}", flush=True)
    report.write("ROBUSTNESS.md", text(found, asked, time.monotonic() - begin), asked.keep)
    return int(any(row.broken for rows in found.values() for row in rows))


def _measured(part: ModuleType, plan: Plan) -> list[Row]:
    """Return the rows of one kind; if it fails altogether, a row says so."""
    try:
        rows: list[Row] = part.measure(plan)
        return rows
    except Exception as error:
        traceback.print_exc()
        said = f"could not be measured: {type(error).__name__}: {error}"
        return [Row(part.__name__, broken=[said])]


def text(found: dict[ModuleType, list[Row]], asked: argparse.Namespace, seconds: float) -> str:
    """Return the report as Markdown."""
    every = [row for rows in found.values() for row in rows]
    broken = sum(len(row.broken) for row in every)
    killed = sum(row.outcomes["killed"] for row in every)
    said = f"**Promises broken: {broken}.**" if broken else "No promise was broken."
    parts = [
        "# Robustness, measured",
        "Written by `python -m benchmarks.robustness --keep` "
        f"(`--kills {asked.kills} --cases {asked.cases} --seed {asked.seed}`); `make robust` "
        "repeats it on a smaller scale. Every number below was counted by that run.",
        f"{sum(row.times for row in every):,} cases in {seconds / 60:.0f} minutes, among them "
        f"{killed} processes that were killed. {said}",
        f"Measured at {commit()} on {_machine()}.",
    ]
    for part, rows in found.items():
        title, _, how = (part.__doc__ or "").partition("\n\n")
        cells = [(r.what, f"{r.times:,}", r.text(), str(len(r.broken))) for r in rows]
        head = {"what": "---", "times": "---:", "what came of it": "---", "broken": "---:"}
        parts += [f"## {title.partition(':')[0]}", " ".join(how.split()), report.table(head, cells)]
        parts += [f"- BROKEN: {row.what}: {b}" for row in rows for b in row.broken[:MOST_TOLD]]
    return "\n\n".join([*parts, (HERE / "UNPROTECTED.md").read_text("utf-8")])


def _machine() -> str:
    here = report.machine(torch.device("cpu"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{n} {version(n)}" for n in ("pyarrow", "pandas", "safetensors"))
    call = ["findmnt", "--noheadings", "--output=FSTYPE", "--target", tempfile.gettempdir()]
    files = subprocess.run(call, capture_output=True, encoding="utf-8", check=False).stdout.strip()
    return (
        f"{here['processor']}, {here['cores']} cores (load {here['load']}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, {files}; Python {here['python']}, "
        f"torch {here['torch']}, {packages}"
    )


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = report.parser("benchmarks.robustness", __doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], metavar="NAME")
    parser.add_argument("--kills", type=report.count, default=60, help="of all; in parts of rows")
    parser.add_argument("--cases", type=report.count, default=100, help="of every hostile file")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    if asked.keep and len(asked.only) < len(KINDS):
        parser.error("--keep is for a report of everything: leave --only out")
    return asked


if __name__ == "__main__":
    sys.exit(main())
