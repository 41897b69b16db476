"""Notebooks side by side: one papermill process each, the first failure stops them all.

Processes and not threads, because kernels started from one process race for ports.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from companion.notebooks import copies
from companion.notebooks.copies import Failure
from fedlib import paths

_SAY_EVERY = 10.0  # seconds between two lines about one notebook
_STILL_EVERY = 60.0  # seconds until a cell that goes on is mentioned again


@dataclass
class Outcome:
    """What became of one notebook: a line of the closing table."""

    notebook: Path
    cells: int
    seconds: float
    result: str


def run(
    todo: Mapping[Path, Mapping[str, Any]],
    folder: Path,
    jobs: int,
    environment: Mapping[str, str] | None = None,
    finished: Callable[[Path, Path], None] | None = None,
) -> list[Outcome]:
    """Execute notebooks (path -> parameters) into `folder`, `jobs` at once, telling how it goes.

    Sources are only read. A copy appears under its final name when it is complete;
    `finished(source, copy)` is then called. The first failure terminates the others and
    raises Failure; its copy is kept as `NAME.failed.ipynb`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = list(todo)
    running: list[_Process] = []
    outcomes: list[Outcome] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                source = waiting.pop(0)
                running.append(_start(source, todo[source], folder, environment or {}))
            time.sleep(0.1)
            for process in list(running):
                process.tell()
                if process.popen.poll() is None:
                    continue
                running.remove(process)
                outcomes.append(process.close())
                if process.popen.returncode:
                    raise Failure(process.why())
                if finished:
                    finished(process.source, process.target)
    finally:
        outcomes += [process.stop() for process in running]
        print(_table(outcomes, [source.stem for source in waiting]), flush=True)
    return outcomes


@dataclass
class _Process:
    """One papermill process, its log, and what has been said about it."""

    source: Path
    target: Path
    popen: subprocess.Popen[bytes]
    log: IO[str]
    cells: int
    cell: int = 0
    started: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    said_cell: int = 0

    @property
    def scratch(self) -> Path:
        return _scratch(self.target)

    @property
    def failed(self) -> Path:
        return _failed(self.target)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        self.said, self.said_cell = time.monotonic(), self.cell
        print(f"[{self.seconds:5.0f} s] {self.source.stem}: {text}", flush=True)

    def tell(self) -> None:
        """Mention the cell it has come to, at most every few seconds."""
        for number in re.findall(r"Executing Cell (\d+)-", self.log.read()):
            self.cell = int(number)
        pause = _SAY_EVERY if self.cell > self.said_cell else _STILL_EVERY
        if time.monotonic() - self.said >= pause:
            self.say(f"cell {self.cell}/{self.cells}")

    def close(self) -> Outcome:
        """Give the copy of an ended process the name that it deserves."""
        self.tell()
        self.log.close()
        result = "failed" if self.popen.returncode else "done"
        if self.scratch.exists():
            os.replace(self.scratch, self.failed if self.popen.returncode else self.target)
        self.say(result)
        return Outcome(self.source, self.cell, self.seconds, result)

    def why(self) -> str:
        """What to tell the reader after a failure."""
        cause = copies.explain(self.failed, self.target.with_suffix(".log"))
        return f"{self.source.stem} failed {cause}\nexecuted copy: {self.failed}"

    def stop(self) -> Outcome:
        """Terminate it; its kernel follows within a second of losing its parent."""
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.log.close()
        self.scratch.unlink(missing_ok=True)
        return Outcome(self.source, self.cell, self.seconds, "stopped")


def _scratch(target: Path) -> Path:
    return target.with_suffix(".running.ipynb")


def _failed(target: Path) -> Path:
    return target.with_suffix(".failed.ipynb")


def _start(
    source: Path, values: Mapping[str, Any], folder: Path, environment: Mapping[str, str]
) -> _Process:
    target = folder / source.name
    _failed(target).unlink(missing_ok=True)
    log = target.with_suffix(".log")
    command = [sys.executable, "-m", "papermill", str(source), str(_scratch(target))]
    command += ["-k", "python3", "--cwd", str(source.parent), "--start-timeout", "120"]
    command += ["--log-output", "--no-progress-bar"]
    if values:
        # YAML reads JSON, and keeps the types that papermill's -p would guess.
        command += ["-y", json.dumps(dict(values))]
    with log.open("wb") as sink:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=_environment(environment),
        )
    # papermill adds one cell for the parameters it was given.
    cells = copies.count_cells(source) + bool(values)
    process = _Process(source, target, popen, log.open(errors="replace"), cells)
    told = ", ".join(f"{name}={value!r}" for name, value in values.items())
    process.say(f"started{' with ' + told if told else ''}")
    return process


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """One thread each, absolute folders, and the kernel of this very environment."""
    folders = {
        "FEDLIB_FIGURES": paths.figures(),
        "FEDLIB_RUNS": paths.runs(),
        "FEDLIB_RESULTS": paths.results(),
        "FEDLIB_CACHE": paths.cache(),
    }
    if os.environ.get("FEDLIB_DATA"):
        folders["FEDLIB_DATA"] = Path(os.environ["FEDLIB_DATA"]).expanduser().absolute()
    return {
        **os.environ,
        "FEDLIB_QUIET": "1",
        **{name: str(folder) for name, folder in folders.items()},
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        **extra,
    }


def _table(outcomes: list[Outcome], waiting: list[str]) -> str:
    rows = [(o.notebook.stem, str(o.cells), f"{o.seconds:.1f}", o.result) for o in outcomes]
    rows += [(stem, "-", "-", "not started") for stem in waiting]
    rows.insert(0, ("notebook", "cells", "seconds", "result"))
    wide = max(len(row[0]) for row in rows)
    return "\n".join(f"{a:<{wide}}  {b:>5}  {c:>7}  {d}" for a, b, c, d in rows)
