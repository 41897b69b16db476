"""What the command line can be asked: to train, to say what is stored, and what there is."""

import dataclasses
import inspect
import json
import sys
from collections import ChainMap
from collections.abc import Sequence
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from typer import Argument, Option

from fedlib import algorithms as known_algorithms
from fedlib import data as datasets
from fedlib.algorithms import FedAvg
from fedlib.cli.experiments import Usage, experiments
from fedlib.progress import duration
from fedlib.runs import Entry, Result, find, inventory, run, store
from fedlib.runs.exported import read_run
from fedlib.runs.sweep import sweep
from fedlib.tasks import pick_device
from fedlib.values import UnknownName, as_code, one_of

MOST_ROUNDS = 20  # of a curve
WIDE = 1000  # columns of what is no terminal: a file or a program gets words whole
KINDS: dict[str, type[FedAvg]] = {
    name: kind
    for name in known_algorithms.__all__
    if isinstance(kind := getattr(known_algorithms, name), type) and issubclass(kind, FedAvg)
}

app = typer.Typer(
    help="Federated mixtures of experts: run experiments and look at what is stored.",
    epilog="Runs live in $FEDLIB_RUNS, data in $FEDLIB_DATA; an interrupted command continues when "
    "given again. With --debug an error shows its traceback. Settings of the papers by name: "
    "python -m papers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

Names = Annotated[list[str], Option(metavar="NAME", help="any number of them")]
Fields = Annotated[list[str], Option("--set", metavar="FIELD=VALUE", help="of the algorithm")]
Count = Annotated[int | None, Option(min=1, metavar="N")]


@app.command("run")
@app.command("sweep")
def train(
    source: Annotated[str, Argument(metavar="CODE|FILE", help="as printed, or a file of it")] = "",
    task: Annotated[str, Option(metavar="CODE", help="a task as it prints")] = "",
    algorithm: Names = [],  # noqa: B006  # typer reads defaults, nobody changes them
    fields: Fields = [],  # noqa: B006
    rounds: Count = None,
    cohort: Annotated[str, Option(metavar="N|F", help="clients, or a fraction as 0.1")] = "",
    evaluate_every: Count = None,
    seed: Annotated[list[int], Option(min=0, metavar="N", help="any number of them")] = [],  # noqa: B006
    workers: Annotated[int, Option(min=1, metavar="N", help="processes at once")] = 1,
    address: Annotated[str | None, Option(help="a Ray cluster: auto, or HOST:PORT")] = None,
    plan: Annotated[bool, Option("--plan", help="list the runs and which are stored")] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    chunk: Annotated[int | None, Option(min=1, help="clients that share one program")] = None,
    retry: Annotated[bool, Option("--retry", help="train again what diverged before")] = False,
) -> None:
    """Train experiments, or continue.

    \b
    run "Experiment(task=Task(...), algorithm=FedAvg(), rounds=100)"
    run --task "Task(...)" --algorithm FedMix --set experts=2 --rounds 100 --cohort 0.1 --seed 1
    run runs/79bf746aa162056e/spec.json
    sweep experiments.txt --workers 4     one printed experiment per line, # for comments
    sweep specs.json                      a JSON list of specs; - reads from stdin
    sweep --task "Task(...)" --algorithm FedAvg --algorithm FedMix --rounds 100 --seed 0 --seed 1
    """
    parts = {"task": task, "algorithm": algorithm, "set": fields, "rounds": rounds, "seed": seed}
    asked = experiments(source, parts | {"cohort": cohort, "evaluate-every": evaluate_every})
    how: dict[str, Any] = {"device": device, "chunk": chunk, "retry": retry}
    if address is None:  # a cluster has devices of its own
        pick_device(device)
    if plan:
        found = [find(e) is not None for e in asked]
        for experiment, stored in zip(asked, found, strict=True):
            print(f"{experiment.key}  {'stored ' if stored else 'missing'}  {experiment}")
        print(f"{len(found)} experiments, {sum(found)} stored")
    elif len(asked) > 1 or address:
        _summarise(sweep(asked, workers=workers, address=address, **how))
    else:
        print(f"{asked[0]}\nkey {asked[0].key}", flush=True)
        _summarise([run(asked[0], **how)])


def _summarise(results: Sequence[Result]) -> None:
    """Print the clients' mean test accuracy at the end of runs."""
    rows = []
    for result in results:
        e = result.experiment
        what, end = shorten(f"{e.task.dataset} {e.algorithm}", 60), result.curve("test_accuracy")
        rows.append((e.key[:8], what, e.seed, e.rounds, f"{end[e.rounds]:.4f}"))
    show_table(("key", "run", "seed", "rounds", "test accuracy"), rows)


@app.command()
def runs() -> None:
    """List what is stored."""
    entries = inventory()
    rows = []
    for entry in entries:
        e = entry.experiment
        what = (type(e.algorithm).__name__, e.task.dataset, e.seed, e.rounds) if e else (None,) * 4
        sizes = decimal(entry.bytes), duration(entry.age)
        rows.append((entry.key, *what, entry.completed, entry.state, *sizes))
    head = ("key", "algorithm", "dataset", "seed", "rounds", "completed", "state", "size", "age")
    show_table(head, rows)
    notes = [f"{entry.key}: {entry.note}" for entry in entries if entry.note]
    print("\n".join([f"{len(rows)} runs, {decimal(sum(e.bytes for e in entries))}", *notes]))


@app.command()
def show(
    key: Annotated[str, Argument(metavar="KEY", help="a run's key, or how it begins")],
    curve: Annotated[str, Option(metavar="METRIC", help="a metric over the rounds")] = "",
) -> None:
    """Show one stored run.

    \b
    show 4f8a --curve test_accuracy
    """
    entry = _entry(key)
    result = _read(entry)
    names = sorted(result.metrics["metric"].unique().to_pylist())
    curves = {name: result.curve(name) for name in names}
    if curve:
        one_of("metric", curve, names)
        course = [*curves[curve].items()]
        step = -(-len(course) // MOST_ROUNDS)
        show_table(("round", curve), course[::-step][::-1])  # the last one is among them
        return
    e = result.experiment
    print(f"{e}\nkey {entry.key}, {entry.completed}/{e.rounds} rounds, {entry.state}, {entry.path}")
    if entry.note:
        print(entry.note)
    for name, what in result.provenance.items():
        print(f"  {name}: {what if isinstance(what, str) else json.dumps(what)}")
    show_table(("metric", "round", "mean"), [(n, max(c), c[max(c)]) for n, c in curves.items()])


def _entry(prefix: str) -> Entry:
    found = [entry for entry in inventory() if entry.key.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        lines = [f"  {entry.key}  {entry.experiment}" for entry in found[:10]]
        raise Usage(f"{prefix!r} is the beginning of {len(found)} keys:\n" + "\n".join(lines))
    raise UnknownName(f"no stored run begins with {prefix!r}; `runs` lists what is stored")


def _read(entry: Entry) -> Result:
    """Return what is stored of a run, its failure in place of a provenance if it has one."""
    if entry.experiment is None:
        raise ValueError(f"{entry.key} cannot be read: {entry.note}")
    if entry.path.is_file() and (result := read_run(entry.path, entry.key)):
        return result
    told = (entry.path / name for name in (store.PROVENANCE, store.FAILURE))
    said = [store.read_json(path) for path in told if path.exists()]
    return Result(entry.experiment, store.read_metrics(entry.path), dict(ChainMap(*said)))


@app.command()
def algorithms(name: Annotated[str, Argument(metavar="NAME")] = "") -> None:
    """List the algorithms, or show the fields of one."""
    if not name:
        rows = [(n, (inspect.getdoc(kind) or "").split("\n")[0]) for n, kind in KINDS.items()]
        show_table(("algorithm", "what it is"), rows)
        return
    one_of("algorithm", name, KINDS)
    print(f"{name}\n\n{inspect.getdoc(KINDS[name])}\n")
    fields = [(f.name, str(f.type), as_code(f.default)) for f in dataclasses.fields(KINDS[name])]
    show_table(("field", "type", "default"), fields)


@app.command()
def data(
    action: Annotated[str, Argument(metavar="list|fetch")] = "list",
    names: Annotated[list[str], Argument(metavar="NAME")] = [],  # noqa: B006
) -> int:
    """List or fetch data sets.

    \b
    data                         where every data set is, or would come from
    data fetch cifar10 mnist     bring them here
    """
    one_of("action", action, ("list", "fetch"))
    for name in names:
        one_of("dataset", name, datasets.names())
    if action == "fetch":
        if not names:
            raise Usage("data fetch needs the names of data sets")
        for name in names:
            found = datasets.load(name)
            sizes = f"{len(found.train.labels):,} + {len(found.test.labels):,}"
            print(f"{name}: {sizes} examples, {found.source}")
        return 0
    rows = [(name, *datasets.describe(name)) for name in names or datasets.names()]
    show_table(("dataset", "state", "where"), rows)
    return 0


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
