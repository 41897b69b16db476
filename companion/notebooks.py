"""Run notebooks into executed copies (`figures`), or update their stored outputs (`refresh`).

papermill executes a single notebook. This module checks parameters beforehand, runs notebooks in
parallel, and stops all of them at the first failure. It reads executed copies, or writes their
outputs back to the sources, together with their verdicts. Each notebook has a papermill process of
its own, because kernels that threads of one process start compete for ports.
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
from companion.plotting.style import of_few_colours, part_of
from companion.sections import SCALES, NothingStored, OtherData, Registry, has_data
from fedlib import paths
from fedlib.parallel import end_with_parent
from fedlib.values import check_choice
from fedrun import files

_ERROR, _LINES = "Exception encountered at", 30  # papermill's words; the lines that are shown
_FAILED = ".failed.ipynb"  # the name of a copy until it is complete
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Failure(RuntimeError):
    """A notebook failed; the message says which one, where and why."""


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
    """Run notebooks into executed copies in the build folder, and print where these lie.

    Copies and figures of one data set, or of other seeds or rounds, have a folder of their own.

    Args:
        registry: the sections.
        scale: one of ``SCALES``.
        dataset: one data set of the scale; "" for all. Notebooks without it are left out, unless
            ``only`` names them.
        seeds, rounds: 0 takes those of the settings.
        device: where runs are trained.
        only: names or numbers of notebooks, such as "00,01"; "" for all.
        jobs: the number of notebooks at once; 0 for one per core.
        stored: whether nothing is trained. Notebooks without stored runs are left out.

    Raises:
        ValueError: for parameters that do not exist, before anything runs.
        Failure: if a notebook fails.
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
    except RuntimeError as error:  # a wrong argument of the command line
        raise ValueError(error) from error
    given = {"scale": scale, "dataset": dataset, "seeds": seeds, "rounds": rounds, "device": device}
    values = {name: v for name, v in given.items() if v not in ("quick", "", 0, "auto")}
    more = {"FEDLIB_STORED": "1"} if stored else {}
    part = Path(scale) / part_of(values)
    gone = [NothingStored] * stored + [OtherData] * bool(dataset and not only)
    run(select(only), values, paths.build() / part, jobs, more, relinked, without=gone)
    print(f"executed notebooks: {paths.build() / part}; figures: {paths.figures() / part}")


def relinked(source: Path, copy: Path) -> None:
    """Adapt the links and pictures of an executed copy to its folder."""
    root = os.path.relpath(source.parent.parent, copy.parent)
    text = re.sub(r'(\]\(|href=\\")\.\./', rf"\g<1>{root}/", copy.read_text("utf-8"))
    files.write(copy, lambda part: part.write_text(text, "utf-8"), "the executed copy")


def refresh(only: str, jobs: int) -> None:
    """Run notebooks at the quick scale with an empty store; update their outputs and verdicts.

    The pictures in docs/figures are updated, too.
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
    """Return the notebooks that ``only`` names by full name or number, such as "01" or "00,02_x".

    All notebooks for "".

    Raises:
        UnknownName: for a name that no notebook has.
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
    """Execute notebooks into a folder; the first failure terminates the others.

    Sources are only read. A copy has its final name only once it is complete; a failed one is kept
    as `NAME.failed.ipynb`.

    Args:
        sources: the notebooks.
        values: the parameters.
        folder: the folder of the copies.
        jobs: the number of notebooks at once; 0 for one per core.
        environment: further environment variables.
        finished: is called with a source and its copy once the copy is complete.
        without: kinds of errors; a notebook that ends with one of them is left out, which is no
            failure.

    Raises:
        Failure: if a notebook fails.
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
    """Start papermill on a notebook; its log lies next to the copy."""
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
    """Return the message of the error of a failed copy; "" if it is of none of the kinds."""
    cells = nbformat.read(copy, as_version=4).cells if copy.exists() else []
    errors = (o for c in cells for o in c.get("outputs", []) if o.output_type == "error")
    return next((e.evalue for e in errors if e.ename in {k.__name__ for k in kinds}), "")


def _description(target: Path) -> str:
    """Return why a notebook failed: the cell, its error, and the path of the copy."""
    log = target.with_suffix(".log").read_text("utf-8", errors="replace")
    cell, *error = log[max(log.rfind(_ERROR), 0) :].strip().splitlines() or ["no message"]
    copy = target.with_suffix(_FAILED)
    return "\n".join([f"{target.stem} failed: {cell}", *error[-_LINES:], f"executed copy: {copy}"])


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return variables for one thread, absolute folders and the kernel of this environment."""
    names = ("figures", "runs", "results", "cache")
    folders = {f"FEDLIB_{name.upper()}": str(getattr(paths, name)()) for name in names}
    if data := os.environ.get("FEDLIB_DATA"):
        folders["FEDLIB_DATA"] = str(Path(data).expanduser().absolute())
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    return {**os.environ, **folders, **alone, "FEDLIB_QUIET": "1", **extra}


def write_back(source: Path, copy: Path) -> None:
    """Write the outputs and counts of an executed copy to its source, atomically.

    Metadata of papermill and of the execution, names of kernels and views of widgets are left out:
    they differ between equal executions, or need a kernel.

    Raises:
        Failure: if the source has changed since.
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
    """Return the outputs to keep: of widgets their first picture, and printed streams in one piece.

    The pieces of a stream depend on the clock, so that equal runs would differ.
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
