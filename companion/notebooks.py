"""Runs the notebooks into executed copies (`figures`) or back into their sources (`refresh`).

papermill executes a notebook and nothing more. What is added here: parameters are checked before
anything runs, notebooks run side by side, and the first failure stops them all; what an executed
copy says is read, or written back to its source, its verdicts with it. One papermill process each,
and not threads, because kernels started from one process race for ports.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nbformat

from companion import claims
from companion.plotting.style import PART, of_few_colours
from companion.sections import SCALES, NothingStored, OtherData, Registry, has_data
from fedlib import paths
from fedlib.parallel import end_with_parent
from fedlib.values import check_choice
from fedrun import files

_ERROR, _LINES = "Exception encountered at", 30  # how papermill names the cell; lines of its error
_FAILED = ".failed.ipynb"  # the name of a copy until it is complete
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Failure(RuntimeError):
    """A notebook failed; the message says which, where and why."""


def figures(
    registry: Registry,
    scale: str,
    dataset: str,
    seeds: int,
    rounds: int,
    device: str,
    *,
    only: str,
    jobs: int,
    stored: bool = False,
) -> None:
    """Run notebooks with these parameters into copies in the build folder.

    ``only`` names some of them, as in "00,01"; ``jobs`` run at once, one per core for 0. With
    ``stored`` runs of a scale but the quick one are those that are there: nothing is trained, and a
    notebook of which nothing is stored is left out. So is one without the ``dataset``, unless it is
    named. Figures of one data set, or of other seeds or rounds, have a folder of their own.
    ValueError for what does not exist, before anything runs; Failure where a notebook fails.
    """
    from fedlib.tasks import pick_device

    if dataset:
        has_data(scale, dataset, registry.data(scale))
    check_choice("scale", scale, SCALES)
    if stored and (scale == "quick" or seeds or rounds):
        raise ValueError(
            "what is stored is of the standard or the paper scale, with seeds and rounds of its "
            "own: --stored is given with another scale than quick, and without --seeds and --rounds"
        )
    try:
        pick_device(device)
    except RuntimeError as error:  # here a wrong question
        raise ValueError(error) from error
    given = {"scale": scale, "dataset": dataset, "seeds": seeds, "rounds": rounds, "device": device}
    values = {name: v for name, v in given.items() if v not in ("quick", "", 0, "auto")}
    more = {"FEDLIB_STORED": "1"} if stored else {}
    if part := ",".join(f"{n}={v}" for n, v in values.items() if n not in ("scale", "device")):
        more[PART] = part
    gone = [NothingStored] * stored + [OtherData] * bool(dataset and not only)
    run(select(only), values, paths.build() / scale, jobs, more, relinked, without=gone)


def relinked(source: Path, copy: Path) -> None:
    """Have links and pictures of a copy lead where those of its source do."""
    root = os.path.relpath(source.parent.parent, copy.parent)
    text = re.sub(r'(\]\(|href=\\")\.\./', rf"\g<1>{root}/", copy.read_text("utf-8"))
    files.write(copy, lambda part: part.write_text(text, "utf-8"), "the executed copy")


def refresh(only: str, jobs: int) -> None:
    """Run notebooks at the quick scale from an empty store; keep their outputs and verdicts.

    And of their figures those that texts show, which lie in docs/figures.
    """

    def finished(source: Path, copy: Path) -> None:
        write_back(source, copy)
        drawn = paths.figures() / "quick"
        claims.store(source, drawn)
        for picture in (paths.ROOT / "docs" / "figures").glob(f"{source.name[:3]}*.png"):
            shutil.copy(drawn / picture.name, picture)

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
        check_choice("notebook", stem, known)
    return [known[stem] for stem in known if stem in wanted]


def run(
    sources: Sequence[Path],
    values: Mapping[str, object],
    folder: Path,
    jobs: int = 0,
    environment: Mapping[str, str] | None = None,
    finished: Callable[[Path, Path], None] = lambda source, copy: None,
    without: Sequence[type[Exception]] = (),
) -> None:
    """Execute notebooks with the parameters ``values`` into `folder`, `jobs` at once.

    Sources are only read. A copy appears under its final name when it is complete;
    `finished(source, copy)` is then called. The first failure terminates the others and
    raises Failure; its copy is kept as `NAME.failed.ipynb`. A notebook that ends with an error
    of a kind in ``without`` is left out and is no failure.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    waiting, running, began = [*sources], dict[Path, subprocess.Popen[bytes]](), time.monotonic()

    def say(source: Path, text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {source.stem}: {text}", flush=True)

    given = ", ".join(f"{name}={value!r}" for name, value in values.items())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or running:
            while waiting and len(running) < (jobs or here):
                source = waiting.pop(0)
                running[source] = _started(source, folder / source.name, values, environment or {})
                say(source, f"started{' with ' + given if given else ''}")
            time.sleep(0.1)
            for source in [s for s, process in running.items() if process.poll() is not None]:
                good, target = running.pop(source).returncode == 0, folder / source.name
                if good:
                    say(source, "done")
                    finished(source, target.with_suffix(_FAILED).rename(target))
                elif why := _ended_with(without, target.with_suffix(_FAILED)):
                    say(source, f"left out: {why}")
                else:
                    say(source, "failed")
                    raise Failure(_description(target))
    finally:
        for source, process in running.items():
            process.terminate()  # its kernel follows within a second of losing its parent
            process.wait()
            (folder / source.name).with_suffix(_FAILED).unlink(missing_ok=True)
            say(source, "stopped")


def _started(
    source: Path, target: Path, values: Mapping[str, object], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start papermill on a notebook, which says what it does in a log next to its copy."""
    copy = str(target.with_suffix(_FAILED))
    command = [sys.executable, "-m", "papermill", str(source), copy, "-k", "python3", "--cwd"]
    command += [str(source.parent), "--start-timeout", "120", "--log-output", "--no-progress-bar"]
    # YAML reads JSON, and keeps the types that papermill's -p would guess.
    command += ["-y", json.dumps(dict(values))] if values else []
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    how["preexec_fn"] = partial(end_with_parent, os.getpid())  # and its kernel follows it
    with target.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, env=_environment(environment), **how)


def _ended_with(kinds: Sequence[type[Exception]], copy: Path) -> str:
    """Return what a failed copy says of its error of some kinds, "" if it has another one."""
    cells = nbformat.read(copy, as_version=4).cells if copy.exists() else []
    errors = (o for c in cells for o in c.get("outputs", []) if o.output_type == "error")
    return next((e.evalue for e in errors if e.ename in {k.__name__ for k in kinds}), "")


def _description(target: Path) -> str:
    """Return why a notebook failed: the cell, its error and where the copy lies."""
    log = target.with_suffix(".log").read_text("utf-8", errors="replace")
    cell, *error = log[max(log.rfind(_ERROR), 0) :].strip().splitlines() or ["no message"]
    copy = target.with_suffix(_FAILED)
    return "\n".join([f"{target.stem} failed: {cell}", *error[-_LINES:], f"executed copy: {copy}"])


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
    notebook, executed = (nbformat.read(path, as_version=4) for path in (source, copy))
    if [c.source for c in notebook.cells] != [c.source for c in executed.cells]:
        raise Failure(f"{source.name} changed while it was executed: run it again")
    for cell, done in zip(notebook.cells, executed.cells, strict=True):
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.execution_count = done.execution_count
            cell.outputs = _kept(done.outputs)
    notebook.metadata = {"kernelspec": dict(_KERNEL), "language_info": {"name": "python"}}
    files.write(source, partial(nbformat.write, notebook), "the notebook")


def _kept(outputs: list[Any]) -> list[Any]:
    """Return outputs, of widgets their first picture, with pieces of a printed stream joined.

    A stream is cut into pieces by the clock, so that equal runs would differ.
    """
    kept: list[Any] = []
    for output in outputs:
        data = output.get("data", {})
        if data.pop(_WIDGET, None) and "image/png" not in data:
            continue
        if picture := data.get("image/png"):
            small = of_few_colours(base64.b64decode(picture))
            data["image/png"] = base64.b64encode(small).decode()
        last = kept[-1] if kept else None
        if last and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            kept.append(output)
    return kept
