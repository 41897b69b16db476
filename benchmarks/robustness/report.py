"""The report: what was done, how often, what came of it, where, and what is not protected."""

import importlib
import os
import platform
import subprocess
import tempfile
from importlib.metadata import version
from typing import NamedTuple

import torch

from benchmarks.__main__ import machine
from benchmarks.robustness.known import FOUND, UNPROTECTED
from benchmarks.robustness.plan import Row
from fedrun.provenance import commit

MOST_TOLD = 5


class Part(NamedTuple):
    """The rows of one kind of trouble, and the seconds that it took."""

    name: str
    title: str
    rows: list[Row]
    seconds: float


def written(parts: list[Part], kills: int, cases: int, seed: int) -> str:
    """Return the report as Markdown."""
    broken = sum(len(row.broken) for part in parts for row in part.rows)
    times = sum(row.times for part in parts for row in part.rows)
    killed = sum(row.outcomes["killed"] for part in parts for row in part.rows)
    said = f"**Promises broken: {broken}.**" if broken else "No promise was broken."
    lines = [
        "# Robustness, measured",
        "",
        "Written by `python -m benchmarks.robustness --keep` "
        f"(`--kills {kills} --cases {cases} --seed {seed}`); `make robust` repeats it on a smaller "
        "scale. Every number below was counted by that run.",
        "",
        f"{times:,} cases in {sum(p.seconds for p in parts) / 60:.0f} minutes, among them {killed} "
        f"processes that were killed. {said}",
        "",
        f"Measured at {commit()} on {_machine()}.",
    ]
    for part in parts:
        lines += ["", f"## {part.title}", "", _how(part), ""]
        lines += ["| what | times | what came of it | broken |", "|---|---:|---|---:|"]
        lines += [_cells(row) for row in part.rows]
        told = [f"- {row.what}: {_escaped(b)}" for row in part.rows for b in row.broken[:MOST_TOLD]]
        lines += ["", "Broken promises, the first of each row:", "", *told] if told else []
    lines += ["", "## Found by this and mended", "", *(f"- {text}" for text in FOUND)]
    lines += ["", "## Not protected against", "", *(f"- {text}" for text in UNPROTECTED)]
    return "\n".join(lines) + "\n"


def _how(part: Part) -> str:
    """Return how a trouble is made, which its module says below its first line."""
    said = importlib.import_module(f"benchmarks.robustness.{part.name}").__doc__ or ""
    return " ".join(said.partition("\n\n")[2].split())


def _cells(row: Row) -> str:
    return f"| {row.what} | {row.times:,} | {row.text()} | {len(row.broken)} |"


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _machine() -> str:
    here = machine(torch.device("cpu"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{n} {version(n)}" for n in ("pyarrow", "pandas", "safetensors"))
    return (
        f"{here['processor']}, {here['cores']} cores (load {here['load']}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, {_file_system()}; Python {here['python']}, "
        f"torch {here['torch']}, {packages}"
    )


def _file_system() -> str:
    """Return the kind of file system of temporary files, as util-linux tells it."""
    call = ["findmnt", "--noheadings", "--output=FSTYPE", "--target", tempfile.gettempdir()]
    return subprocess.run(call, capture_output=True, encoding="utf-8", check=False).stdout.strip()
