"""The command line, ``python -m fedrun``.

Exit codes: 0 success, 1 a command failed, 2 invalid arguments, 130 interrupted.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option
from typer.main import get_command

from fedlib.processor import keep_freed_memory
from fedlib.values import ALLOWED, UnknownName, as_code, check_choice, from_code, is_kind, to_dict

# Modules that import torch are imported inside the commands, so that --help is fast.
if TYPE_CHECKING:
    from fedrun import Experiment, Result
    from fedrun.store import Entry

NAME = "python -m fedrun"
WIDE = 1000  # columns of output that is not a terminal, so that nothing is wrapped in a file

app = typer.Typer(
    help="Federated mixtures of experts: run experiments and inspect stored runs.",
    epilog="Runs are stored in $FEDLIB_RUNS, data in $FEDLIB_DATA. Repeat an interrupted command "
    "to continue it. For the settings of the papers: python -m papers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


_IMPORT = Option("--import", metavar="MODULE", help="module that defines your own classes")
Imported = Annotated[list[str], _IMPORT]
Key = Annotated[str, Argument(metavar="KEY", help="the key of a run, or its first characters")]


class Usage(ValueError):
    """The arguments are invalid: the command line exits with code 2."""


def main(
    arguments: Sequence[str] | None = None,
    commands: typer.Typer = app,
    name: str = NAME,
    ours: Sequence[str] = ("fedlib", "fedrun"),
    wrong: tuple[type[Exception], ...] = (UnknownName, Usage),
) -> int:
    """Run a command and return the exit code.

    Args:
        arguments: the arguments of the command line. Default: None, those of this process.
        commands: the application. Default: that of fedrun.
        name: how the application is called, for its usage message.
        ours: packages whose errors are printed without a traceback.
        wrong: types of errors that mean invalid arguments, exit code 2.
    """
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding may lack characters of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # typer's own main would drop the notes of a KeyboardInterrupt.
        command = get_command(commands)
        words = [*(sys.argv[1:] if arguments is None else arguments)]
        with command.make_context(name, words) as context:
            command.invoke(context)
        sys.stdout.flush()  # so that a BrokenPipeError is raised here and caught
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:  # `python -m fedrun runs | head` is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        done = str(stop).partition(";")[0]  # "the same call continues" follows
        told = f"{done and done + '; '}the same command continues from what is stored"
        print(f"\nfedlib: interrupted: {told}", file=sys.stderr)
        return 130
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's error, whose module depends on the version
            message = " ".join(error.format_message().split())
            print(f"fedlib: {message}\n(see {name} --help)", file=sys.stderr)
            return 2
        # Our own errors, invalid values and errors of the system need no traceback.
        of = type(error).__module__.partition(".")[0]
        if not (of in ours or isinstance(error, ValueError | OSError)):
            raise
        print("\n".join([f"fedlib: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 2 if isinstance(error, wrong) else 1


@app.command("sweep")
@app.command("run")
def train(
    sources: Annotated[list[str], Argument(metavar="CODE|FILE", help="experiments or files")],
    workers: Annotated[int, Option(min=1, metavar="N", help="number of processes")] = 1,
    address: Annotated[str | None, Option(help="Ray cluster: auto, or HOST:PORT")] = None,
    plan: Annotated[bool, Option("--plan", help="only list which runs are stored")] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    chunk: Annotated[int | None, Option(min=1, help="clients trained at once")] = None,
    retry: Annotated[bool, Option("--retry", help="train diverged runs again")] = False,
    modules: Imported = [],  # noqa: B006
) -> None:
    """Train experiments, or continue their training.

    \b
    run "Experiment(Task('digits', IID(10), MLP((32,)), LocalHoldout()), FedAvg(), rounds=20)"
    run "Experiment($TASK, FedMix(experts=2), rounds=100, cohort=0.1, seed=1)"
    run runs/79bf746aa162056e/spec.json
    sweep experiments.txt --workers 4     one printed experiment per line, # for comments
    sweep specs.json                      a JSON list of specs
    """
    from fedrun import find_result, run
    from fedrun.sweeps import sweep

    _import(modules)
    asked = [e for source in sources for e in experiments(source)]
    how: dict[str, Any] = {"device": device, "chunk": chunk, "retry": retry}
    if plan:
        found = [find_result(e) is not None for e in asked]
        for experiment, stored in zip(asked, found, strict=True):
            print(f"{experiment.key}  {'stored ' if stored else 'missing'}  {experiment}")
        print(f"{len(found)} experiments, {sum(found)} stored")
    elif len(asked) > 1 or address:
        _summarise(sweep(asked, workers=workers, address=address, **how))
    else:
        print(f"{asked[0]}\nkey {asked[0].key}", flush=True)
        _summarise([run(asked[0], **how)])


def experiments(source: str) -> list[Experiment]:
    """Return the experiments of a source, which is code or the name of a file of code or specs."""
    from fedrun.experiment import experiment_of

    made, where = [], ""
    try:
        for given, where in _sources(source):  # noqa: B007
            spec = to_dict(from_code(given)) if isinstance(given, str) else given
            made.append(experiment_of(spec))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        in_file = "(" not in source and not isinstance(error, OSError)  # which names the file
        raise Usage(f"{where or (f'{source}: ' if in_file else '')}{error}") from error
    if not made:
        raise Usage(f"there is no experiment in {source!r}")
    return made


def _sources(source: str) -> Iterator[tuple[Any, str]]:
    """Yield the code or spec of each experiment, and its place in a file for error messages."""
    if "(" in source:
        yield source, ""
        return
    text = Path(source).read_text("utf-8-sig") if source else ""  # Windows writes a BOM
    if text.lstrip()[:1] in ("{", "["):
        specs = json.loads(text)
        yield from ((s, f"{source}: ") for s in (specs if isinstance(specs, list) else [specs]))
        return
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip() and line.strip()[0] != "#":
            yield line, f"{source}, line {i}: "


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        try:
            import_module(name)
        except (ImportError, TypeError) as error:  # a TypeError for a relative name, ".x"
            raise Usage(f"{name} cannot be imported: {error}") from error
        ALLOWED.add(name)


def _summarise(results: Sequence[Result]) -> None:
    """Print a table with the mean test accuracy over clients of each run's final state."""
    rows = []
    for result in results:
        e = result.experiment
        what, end = shorten(f"{e.task.dataset} {e.algorithm}", 60), result.final("test_accuracy")
        rows.append((e.key[:8], what, e.seed, e.rounds, f"{end:.4f}"))
    show_table(("key", "run", "seed", "rounds", "test accuracy"), rows)


@app.command()
def runs(
    every: Annotated[bool, Option("--all", help="also list exported results")] = False,
) -> None:
    """List the runs of this machine, newest last."""
    from fedrun import list_runs

    entries = list_runs()
    own = [entry for entry in entries if entry.path.is_dir()]
    listed = sorted(own, key=lambda entry: entry.path.stat().st_mtime)
    rest = [entry for entry in entries if not entry.path.is_dir()]
    rows = []
    for entry in (*rest, *listed) if every else listed:
        what = _words(entry.spec) if entry.spec else (None,) * 4
        rows.append((entry.key, *what, entry.completed, entry.state, _accuracy(entry)))
    head = ("key", "algorithm", "dataset", "seed", "rounds", "completed", "state", "test accuracy")
    show_table(head, rows)
    notes = [f"{entry.key}: {entry.note}" for entry in entries if entry.note]
    more = f"; {len(rest)} exported results: --all" if rest and not every else ""
    print("\n".join([f"{len(rows)} runs{more}", *notes]))


def _accuracy(entry: Entry) -> float | None:
    """Return the test accuracy of a run's final state; None for exported or unfinished runs."""
    with suppress(ValueError, OSError):
        if entry.state == "complete":
            return _read(entry).final("test_accuracy")
    return None


def _words(spec: dict[str, Any]) -> tuple[object, ...]:
    kind = spec["algorithm"]["kind"]
    name = kind if is_kind(kind) else f"{kind}, not imported here"
    return name, spec["task"]["dataset"], spec.get("seed", 0), spec["rounds"]


@app.command()
def show(
    key: Key,
    curve: Annotated[str, Option(metavar="METRIC", help="show this metric by round")] = "",
    modules: Imported = [],  # noqa: B006
) -> None:
    """Show a stored run.

    \b
    show 4f8a --curve test_accuracy
    """
    from fedrun.experiment import MADE_OF

    _import(modules)
    entry = _only(key)
    result = _read(entry)
    if curve:
        show_table(("round", curve), [*result.curve(curve).items()])
        return
    spec, end = dict(entry.spec), f"{entry.completed}/{entry.spec['rounds']} rounds"
    made_of = spec.pop(MADE_OF, [])
    print(f"{as_code(spec)}\nkey {entry.key}, {end}, {entry.state}, {entry.path}")
    for name, what in {**({MADE_OF: made_of} if made_of else {}), **result.provenance}.items():
        print(f"  {name}: {what if isinstance(what, str) else json.dumps(what)}")
    last = [(name, *[*result.curve(name).items()][-1]) for name in result.logged]
    if last:
        show_table(("metric", "round", "mean"), last)


@app.command()
def forget(key: Key) -> None:
    """Delete a run folder."""
    from fedrun import store

    entry = _only(key)
    if entry.path.is_file():
        raise Usage(f"{entry.key} is exported: {entry.path} also contains other runs")
    store.delete(entry.key)
    print(f"{entry.key} is deleted")


def _only(key: str) -> Entry:
    """Return the only stored run whose key begins with ``key``."""
    from fedrun import list_runs

    entries = list_runs(key)
    if len(entries) != 1:
        names = ", ".join(entry.key for entry in entries[:10]) or f"see {NAME} runs"
        raise Usage(f"{len(entries)} stored runs begin with {key!r}: {names}")
    return entries[0]


def _read(entry: Entry) -> Result:
    """Return what is stored of a run, finished or not; a failure takes the place of provenance."""
    from fedrun import Result, store
    from fedrun.experiment import Log
    from fedrun.results import read_metrics, read_record

    if not entry.spec:
        raise ValueError(f"{entry.key} cannot be read: {entry.note}")
    experiment: Any = entry.experiment
    if entry.path.is_file():
        _, made = read_record(entry.path, entry.key)
        return Result(experiment, read_metrics(entry.path, entry.key), made)
    records = (entry.path / name for name in (store.PROVENANCE, store.FAILURE))
    made = next((store.read_json(path) for path in records if path.exists()), {})
    there = (entry.path / store.METRICS).exists() or entry.state == "complete"
    return Result(experiment, store.read_metrics(entry.path) if there else Log().table(), made)


@app.command()
def algorithms() -> None:
    """List the algorithms."""
    from fedlib import algorithms as known_algorithms
    from fedlib.algorithms import FedAvg

    every = (getattr(known_algorithms, name) for name in known_algorithms.__all__)
    kinds = [k for k in every if isinstance(k, type) and issubclass(k, FedAvg)]
    rows = [(k.__name__, (inspect.getdoc(k) or "").split("\n")[0]) for k in kinds]
    show_table(("algorithm", "description"), rows)


@app.command()
def data(
    action: Annotated[str, Argument(metavar="list|fetch")] = "list",
    names: Annotated[list[str], Argument(metavar="NAME")] = [],  # noqa: B006
) -> None:
    """List or download data sets.

    \b
    data                         list the data sets and where they are
    data fetch cifar10 mnist     download data sets
    """
    from fedlib import data as datasets

    check_choice("action", action, ("list", "fetch"))
    if action == "list":
        rows = [(name, *datasets.describe(name)) for name in names or datasets.names()]
        show_table(("dataset", "state", "where"), rows)
    elif not names:
        raise Usage("data fetch needs the names of data sets")
    else:
        for name in names:
            found = datasets.load(name)
            sizes = f"{len(found.train.labels):,} + {len(found.test.labels):,}"
            print(f"{name}: {sizes} examples, {found.source}")


def show_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with numbers aligned to the right and text to the left."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        numbers = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
        grid.add_row(*("" if cell is None else str(cell) for cell in cells))
    width = None if sys.stdout.isatty() else WIDE
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as text:
        console.print(grid)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))
