"""Runs the notebooks into executed copies (`figures`) or back into their sources (`refresh`).

papermill executes a notebook and nothing more. What is added here: parameters are checked before
anything runs, notebooks run side by side, and the first failure stops them all; what an executed
copy says is read, or written back to its source, its verdicts with it. One papermill process each,
and not threads, because kernels started from one process race for ports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from companion import claims
from companion.sections import SCALES
from fedlib import paths
from fedlib.values import one_of

_ERROR, _TOLD = "Exception encountered at", 30  # how papermill names the cell; lines of its error
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Failure(RuntimeError):
    """A notebook failed; the message says which, where and why."""


def figures(
    scale: str, dataset: str, seeds: int, rounds: int, device: str, *, only: str, jobs: int
) -> None:
    """Run notebooks with these parameters into copies in the build folder.

    ``only`` names some of them, as in "00,01"; ``jobs`` run at once, one per core for 0.
    ValueError for what does not exist, before anything runs; Failure where a notebook fails.
    """
    from fedlib import data
    from fedlib.tasks import pick_device

    one_of("scale", scale, SCALES)
    one_of("dataset", dataset, ("", *data.names()))
    try:
        pick_device(device)
    except RuntimeError as error:  # here a wrong question
        raise ValueError(error) from error
    given = {"scale": scale, "dataset": dataset, "seeds": seeds, "rounds": rounds, "device": device}
    values = {name: v for name, v in given.items() if v not in ("quick", "", 0, "auto")}
    run(select(only), values, paths.build() / scale, jobs)


def refresh(only: str = "", jobs: int = 0) -> None:
    """Run notebooks at the quick scale from an empty store; keep their outputs and verdicts."""

    def finished(source: Path, copy: Path) -> None:
        write_back(source, copy)
        claims.keep(source, paths.figures() / "quick")

    with tempfile.TemporaryDirectory(prefix="fedlib-runs-") as empty:
        folder, store = paths.build() / "refresh", {"FEDLIB_RUNS": empty}
        run(select(only), {}, folder, jobs, store, finished)


def select(only: str) -> list[Path]:
    """Return the notebooks that ``only`` names, by full name or number, as in "01" or "00,02_x".

    All of them for "". ValueError for a name that no notebook has.
    """
    known = {notebook.stem: notebook for notebook in sorted(paths.notebooks().glob("*.ipynb"))}
    numbers = {stem.partition("_")[0]: stem for stem in known}
    names = re.findall(r"[^,\s]+", only)
    wanted = {numbers.get(name, name.removesuffix(".ipynb")) for name in names} or {*known}
    for stem in wanted:
        one_of("notebook", stem, known)
    return [known[stem] for stem in known if stem in wanted]


def run(
    sources: Sequence[Path],
    values: Mapping[str, object],
    folder: Path,
    jobs: int = 0,
    environment: Mapping[str, str] | None = None,
    finished: Callable[[Path, Path], None] = lambda source, copy: None,
) -> None:
    """Execute notebooks with the parameters ``values`` into `folder`, `jobs` at once.

    Sources are only read. A copy appears under its final name when it is complete;
    `finished(source, copy)` is then called. The first failure terminates the others and
    raises Failure; its copy is kept as `NAME.failed.ipynb`.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    waiting, running = [*sources], list[_Process]()
    try:
        while waiting or running:
            while waiting and len(running) < (jobs or here):
                running.append(_Process(waiting.pop(0), folder, values, environment or {}))
            time.sleep(0.1)
            for process in list(running):
                if process.popen.poll() is not None:
                    running.remove(process)
                    process.close()
                    finished(process.source, process.target)
    finally:
        for process in running:
            process.stop()
        if waiting:
            print(f"not started: {', '.join(source.stem for source in waiting)}", flush=True)


@dataclass
class _Process:
    """One papermill process and its log."""

    source: Path
    folder: Path
    values: Mapping[str, object]
    environment: Mapping[str, str]
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.target = self.folder / self.source.name
        self.scratch = self.target.with_suffix(".running.ipynb")
        self.failed = self.target.with_suffix(".failed.ipynb")
        self.failed.unlink(missing_ok=True)
        command = [sys.executable, "-m", "papermill", str(self.source), str(self.scratch)]
        command += ["-k", "python3", "--cwd", str(self.source.parent), "--start-timeout", "120"]
        command += ["--log-output", "--no-progress-bar"]
        # YAML reads JSON, and keeps the types that papermill's -p would guess.
        command += ["-y", json.dumps(dict(self.values))] if self.values else []
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        self.log = self.target.with_suffix(".log")
        with self.log.open("wb") as sink:
            environment = _environment(self.environment)
            self.popen = subprocess.Popen(command, stdout=sink, env=environment, **how)
        told = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        self.say(f"started{' with ' + told if told else ''}")

    def say(self, text: str) -> None:
        passed = time.monotonic() - self.started
        print(f"[{passed:5.0f} s] {self.source.stem}: {text}", flush=True)

    def close(self) -> None:
        """Give the copy of an ended process the name that it deserves; Failure if it failed."""
        bad = self.popen.returncode != 0
        if self.scratch.exists():
            os.replace(self.scratch, self.failed if bad else self.target)
        self.say("failed" if bad else "done")
        if bad:
            log = self.log.read_text(errors="replace")
            cell, *error = log[max(log.rfind(_ERROR), 0) :].strip().splitlines() or ["no message"]
            said = [f"{self.source.stem} failed: {cell}", *error[-_TOLD:]]
            raise Failure("\n".join([*said, f"executed copy: {self.failed}"]))

    def stop(self) -> None:
        """Terminate it; its kernel follows within a second of losing its parent."""
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.scratch.unlink(missing_ok=True)
        self.say("stopped")


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """One thread each, absolute folders, and the kernel of this very environment."""
    names = ("figures", "runs", "results", "cache")
    folders = {f"FEDLIB_{name.upper()}": str(getattr(paths, name)()) for name in names}
    if data := os.environ.get("FEDLIB_DATA"):
        folders["FEDLIB_DATA"] = str(Path(data).expanduser().absolute())
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    return {**os.environ, **folders, **alone, "FEDLIB_QUIET": "1", **extra}


def write_back(source: Path, copy: Path) -> None:
    """Give the cells of `source` the outputs and counts of its executed `copy`, atomically.

    What differs between two equal executions is left out: metadata of papermill and of the
    execution, names of kernels, and views of widgets, which are dead without a kernel.
    """
    notebook, executed = _read(source), _read(copy)
    if [c.source for c in notebook.cells] != [c.source for c in executed.cells]:
        raise Failure(f"{source.name} changed while it was executed: run it again")
    for cell, done in zip(notebook.cells, executed.cells, strict=True):
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.execution_count = done.execution_count
            cell.outputs = _kept(done.outputs)
    notebook.metadata = {"kernelspec": dict(_KERNEL), "language_info": {"name": "python"}}
    scratch = source.with_suffix(".writing")
    nbformat.write(notebook, scratch)
    os.replace(scratch, source)


def _kept(outputs: list[Any]) -> list[Any]:
    """Return outputs without widgets, with the pieces of a printed stream joined.

    A stream is cut into pieces by the clock, so that equal runs would differ.
    """
    kept: list[Any] = []
    for output in (o for o in outputs if _WIDGET not in o.get("data", {})):
        last = kept[-1] if kept else None
        if last and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            kept.append(output)
    return kept


def _read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4)
