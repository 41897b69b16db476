"""What can be asked. Commands import what they need when they run: `--help` must be quick."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument, Option


class Usage(ValueError):
    """The question was wrong: the command line ends with code 2."""


app = typer.Typer(
    help="Federated mixtures of experts: run experiments and look at what is stored.",
    epilog="Runs live in $FEDLIB_RUNS, data in $FEDLIB_DATA; an interrupted command continues when "
    "given again. With --debug an error shows its traceback. Settings of the papers by name: "
    "python -m papers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

Task = Annotated[str, Option(metavar="CODE", help="a task as it prints")]
Algorithms = Annotated[
    list[str], Option(metavar="NAME", help="its name or code; a sweep takes several")
]
Fields = Annotated[list[str], Option("--set", metavar="FIELD=VALUE", help="of the algorithm")]
Count = Annotated[int | None, Option(min=1, metavar="N")]
Cohort = Annotated[str, Option(metavar="N|F", help="clients per round, or a fraction as 0.1")]
Device = Annotated[str, Option(help="auto, cpu, cuda or cuda:N")]
Chunk = Annotated[int | None, Option(min=1, metavar="N", help="clients that share one program")]
Retry = Annotated[bool, Option("--retry", help="train again what diverged before")]
Wish = Annotated[str, Option(metavar="NAME", help="only of this one")]


@app.command()
def run(
    code: Annotated[str, Argument(metavar="CODE", help="an experiment as it prints")] = "",
    spec: Annotated[str, Option(metavar="FILE", help="it as JSON (- for stdin)")] = "",
    task: Task = "",
    algorithm: Algorithms = [],  # noqa: B006  # typer reads defaults, nobody changes them
    fields: Fields = [],  # noqa: B006
    rounds: Count = None,
    cohort: Cohort = "",
    evaluate_every: Count = None,
    seed: Annotated[str, Option(metavar="S", help="0 where it is not given")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="say what would be trained")] = False,
    device: Device = "auto",
    chunk: Chunk = None,
    retry: Retry = False,
) -> None:
    """Train one experiment, or continue it.

    \b
    run "Experiment(task=Task(...), algorithm=FedAvg(), rounds=100)"
    run --spec runs/79bf746aa162056e/spec.json
    run --task "Task(...)" --algorithm FedMix --set experts=2 --rounds 100 --cohort 0.1 --seed 1
    """
    from fedlib.cli import asked, train

    parts = asked.Parts(task, algorithm, fields, rounds, cohort, evaluate_every, seed)
    train.run(asked.one(code, spec, parts), dry_run, device, chunk=chunk, retry=retry)


@app.command()
def sweep(
    file: Annotated[str, Argument(metavar="FILE", help="experiments (- for stdin)")] = "",
    task: Task = "",
    algorithm: Algorithms = [],  # noqa: B006
    fields: Fields = [],  # noqa: B006
    rounds: Count = None,
    cohort: Cohort = "",
    evaluate_every: Count = None,
    seeds: Annotated[str, Option(metavar="N|A,B", help="how many, or which: 0,3,4")] = "",
    workers: Annotated[int, Option(min=1, metavar="N", help="processes at once")] = 1,
    address: Annotated[str | None, Option(help="a Ray cluster: auto, or HOST:PORT")] = None,
    plan: Annotated[bool, Option("--plan", help="list the runs and which are stored")] = False,
    device: Device = "auto",
    chunk: Chunk = None,
    retry: Retry = False,
) -> None:
    """Train many experiments, or continue.

    \b
    sweep experiments.txt --workers 4     one printed experiment per line, # for comments
    sweep specs.json                      a JSON list of specs
    sweep --task "Task(...)" --algorithm FedAvg --algorithm FedMix --rounds 100 --seeds 3
    """
    from fedlib.cli import asked, train

    parts = asked.Parts(task, algorithm, fields, rounds, cohort, evaluate_every, seeds)
    how: dict[str, Any] = {"workers": workers, "address": address, "chunk": chunk, "retry": retry}
    train.sweep(asked.several(file, parts), plan, device, **how)


@app.command()
def runs(
    algorithm: Wish = "",
    dataset: Wish = "",
    state: Annotated[str, Option(metavar="NAME", help="only complete, diverged, ...")] = "",
    json: Annotated[bool, Option("--json", help="for a program to read")] = False,
) -> None:
    """List what is stored."""
    from fedlib.cli import stored

    stored.runs({"state": state, "algorithm": algorithm, "dataset": dataset}, json)


@app.command()
def show(
    key: Annotated[str, Argument(metavar="KEY", help="a run's key, or how it begins")],
    curve: Annotated[str, Option(metavar="METRIC", help="draw a metric over the rounds")] = "",
    export: Annotated[str, Option(metavar="FILE", help="write metrics: .csv, .parquet")] = "",
) -> None:
    """Show one stored run.

    \b
    show 4f8a --curve test_accuracy
    show 4f8a --export metrics.csv
    """
    from fedlib.cli import stored

    stored.show(key, curve, export)


@app.command()
def algorithms(name: Annotated[str, Argument(metavar="NAME")] = "") -> None:
    """List the algorithms, or show the fields of one."""
    from fedlib.cli import lists

    lists.algorithms(name)


@app.command()
def data(
    action: Annotated[str, Argument(metavar="list|fetch|verify")] = "list",
    names: Annotated[list[str], Argument(metavar="NAME")] = [],  # noqa: B006
) -> int:
    """List, fetch or verify data sets.

    \b
    data                         where every data set is, or would come from
    data fetch cifar10 mnist     bring them here
    data verify                  check those that are here
    """
    from fedlib.cli import lists

    return lists.data(action, names)
