"""The command line: everything that a machine without Jupyter needs.

Exit codes: 0 all went well, 1 something failed, 2 the question was wrong, 130 interrupted.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
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

# Whatever needs torch is imported by the command that needs it: --help answers at once.
if TYPE_CHECKING:
    from fedrun import Experiment, Result
    from fedrun.store import Entry

NAME = "python -m fedrun"
WIDE = 1000  # columns of what is no terminal: a file or a program gets words whole

app = typer.Typer(
    help="Federated mixtures of experts: run experiments and look at what is stored.",
    epilog="Runs live in $FEDLIB_RUNS, data in $FEDLIB_DATA; an interrupted command continues when "
    "given again. Settings of the papers by name: python -m papers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


_IMPORT = Option("--import", metavar="MODULE", help="with classes of your own")
Imported = Annotated[list[str], _IMPORT]
Key = Annotated[str, Argument(metavar="KEY", help="a run's key, or how it begins")]


class Usage(ValueError):
    """The question was wrong: the command line ends with code 2."""


def main(
    arguments: Sequence[str] | None = None,
    commands: typer.Typer = app,
    name: str = NAME,
    ours: Sequence[str] = ("fedlib", "fedrun"),
    wrong: tuple[type[Exception], ...] = (UnknownName, Usage),
) -> int:
    """Do what the arguments ask of some ``commands`` and return the exit code.

    Errors of ``ours``, packages, are one message; ``wrong`` are those of a wrong question.
    """
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may lack the letters of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Not typer's own main, which forgets what an interruption has said.
        command = get_command(commands)
        words = [*(sys.argv[1:] if arguments is None else arguments)]
        with command.make_context(name, words) as context:
            command.invoke(context)
        sys.stdout.flush()  # here, where it can still be caught that nobody reads on
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:  # `fedlib runs | head`, and that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(
            "\nfedlib: interrupted: the same command continues from what is stored", file=sys.stderr
        )
        return 130
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's, which every version has elsewhere
            message = " ".join(error.format_message().split())
            print(f"fedlib: {message}\n(see {name} --help)", file=sys.stderr)
            return 2
        # A message is enough where it is ours, of a value out of range, or of the system.
        of = type(error).__module__.partition(".")[0]
        if not (of in ours or isinstance(error, ValueError | OSError)):
            raise
        print("\n".join([f"fedlib: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 2 if isinstance(error, wrong) else 1


@app.command("sweep")
@app.command("run")
def train(
    sources: Annotated[list[str], Argument(metavar="CODE|FILE", help="as printed, or files of it")],
    workers: Annotated[int, Option(min=1, metavar="N", help="processes at once")] = 1,
    address: Annotated[str | None, Option(help="a Ray cluster: auto, or HOST:PORT")] = None,
    plan: Annotated[bool, Option("--plan", help="list the runs and which are stored")] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    chunk: Annotated[int | None, Option(min=1, help="clients that share one program")] = None,
    retry: Annotated[bool, Option("--retry", help="train again what diverged before")] = False,
    modules: Imported = [],  # noqa: B006
) -> None:
    """Train experiments, or continue.

    \b
    run "Experiment(task=Task(...), algorithm=FedAvg(), rounds=100)"
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
    """Return the experiments of a source: code, or the name of a file of code or specs."""
    from fedrun.experiment import experiment_of

    made, where = [], ""
    try:
        for given, where in _sources(source):  # noqa: B007
            spec = to_dict(from_code(given)) if isinstance(given, str) else given
            made.append(experiment_of(spec))
    except (OSError, TypeError, ValueError) as error:
        raise Usage(f"{where}{error}") from error
    if not made:
        raise Usage(f"there is no experiment in {source!r}")
    return made


def _sources(source: str) -> Iterator[tuple[Any, str]]:
    """Yield code and specs of a source, and where each stands."""
    if "(" in source:
        yield source, ""
        return
    text = Path(source).read_text("utf-8-sig") if source else ""  # Windows writes a mark before it
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
        except ImportError as error:
            raise Usage(f"{name} cannot be imported: {error}") from error
        ALLOWED.add(name)


def _summarise(results: Sequence[Result]) -> None:
    """Print the clients' mean test accuracy of the state that each run ended with."""
    rows = []
    for result in results:
        e = result.experiment
        what, end = shorten(f"{e.task.dataset} {e.algorithm}", 60), result.final("test_accuracy")
        rows.append((e.key[:8], what, e.seed, e.rounds, f"{end:.4f}"))
    show_table(("key", "run", "seed", "rounds", "test accuracy"), rows)


@app.command()
def runs() -> None:
    """List what is stored."""
    from fedrun import list_runs

    rows, entries = [], list_runs()
    for entry in entries:
        what = _words(entry.spec) if entry.spec else (None,) * 4
        rows.append((entry.key, *what, entry.completed, entry.state))
    show_table(("key", "algorithm", "dataset", "seed", "rounds", "completed", "state"), rows)
    notes = [f"{entry.key}: {entry.note}" for entry in entries if entry.note]
    print("\n".join([f"{len(rows)} runs", *notes]))


def _words(spec: dict[str, Any]) -> tuple[object, ...]:
    kind = spec["algorithm"]["kind"]
    name = kind if is_kind(kind) else f"{kind}, not imported here"
    return name, spec["task"]["dataset"], spec.get("seed", 0), spec["rounds"]


@app.command()
def show(
    key: Key,
    curve: Annotated[str, Option(metavar="METRIC", help="a metric over the rounds")] = "",
    modules: Imported = [],  # noqa: B006
) -> None:
    """Show one stored run.

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
    """Delete one run folder: its result, its state, or why it stopped."""
    from fedrun import store

    entry = _only(key)
    if entry.path.is_file():
        raise Usage(f"{entry.key} is exported: it lies with others in {entry.path}")
    store.delete(entry.key)
    print(f"{entry.key} is forgotten")


def _only(key: str) -> Entry:
    """Return the stored run whose key begins so."""
    from fedrun import list_runs

    entries = list_runs(key)
    if len(entries) != 1:
        names = ", ".join(entry.key for entry in entries[:10]) or f"see {NAME} runs"
        raise Usage(f"{len(entries)} stored runs begin with {key!r}: {names}")
    return entries[0]


def _read(entry: Entry) -> Result:
    """Return what is stored of a run, its failure in place of a provenance if it has one."""
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
    show_table(("algorithm", "what it is"), rows)


@app.command()
def data(
    action: Annotated[str, Argument(metavar="list|fetch")] = "list",
    names: Annotated[list[str], Argument(metavar="NAME")] = [],  # noqa: B006
) -> None:
    """List or fetch data sets.

    \b
    data                         where every data set is, or would come from
    data fetch cifar10 mnist     bring them here
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
    """Print an aligned table; numbers to the right, words to the left."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        numbers = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
        grid.add_row(*("" if cell is None else str(cell) for cell in cells))
    width = None if sys.stdout.isatty() else WIDE
    Console(width=width, markup=False, highlight=False, emoji=False).print(grid)
