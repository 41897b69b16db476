"""The command line: everything that a machine without Jupyter needs.

Exit codes: 0 all went well, 1 something failed, 2 the question was wrong, 130 interrupted.
Commands import what they need when they run: `--help` must be quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.main import get_command

from fedlib.values import UnknownName

__all__ = ["Usage", "app", "main"]
NAME = "python -m fedlib"
# Words of this command line before the papers had one of their own.
MOVED = {"tune", "tasks", "--recipe", "--scale", "--dataset", "--method", "--task-set"}
# What typer raises when a question is wrong: every version calls it something else.
Refused: Any = typer.BadParameter.__mro__[-4]


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

Names = Annotated[list[str], Option(metavar="NAME", help="its name or code; any number of them")]
Fields = Annotated[list[str], Option("--set", metavar="FIELD=VALUE", help="of the algorithm")]
Count = Annotated[int | None, Option(min=1, metavar="N")]
Wish = Annotated[str, Option(metavar="NAME", help="only of this one")]


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
    seed: Annotated[str, Option(metavar="A,B", help="0 where it is not given")] = "",
    seeds: Annotated[int, Option(min=1, metavar="N", help="as many as that")] = 1,
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
    sweep --task "Task(...)" --algorithm FedAvg --algorithm FedMix --rounds 100 --seeds 3
    """
    from fedlib.cli import asked, told

    parts: dict[str, Any] = {"task": task, "algorithm": algorithm, "set": fields, "rounds": rounds}
    parts |= {"cohort": cohort, "evaluate-every": evaluate_every, "seed": seed}
    parts |= {"seeds": seeds if seeds > 1 else None}
    how: dict[str, Any] = {"workers": workers, "address": address, "chunk": chunk, "retry": retry}
    told.train(asked.experiments(source, parts), plan, device, **how)


@app.command()
def runs(
    algorithm: Wish = "",
    dataset: Wish = "",
    state: Annotated[str, Option(metavar="NAME", help="only complete, diverged, ...")] = "",
    json: Annotated[bool, Option("--json", help="for a program to read")] = False,
) -> None:
    """List what is stored."""
    from fedlib.cli import told

    told.runs({"state": state, "algorithm": algorithm, "dataset": dataset}, json)


@app.command()
def show(
    key: Annotated[str, Argument(metavar="KEY", help="a run's key, or how it begins")],
    curve: Annotated[str, Option(metavar="METRIC", help="draw a metric over the rounds")] = "",
) -> None:
    """Show one stored run.

    \b
    show 4f8a --curve test_accuracy
    """
    from fedlib.cli import told

    told.show(key, curve)


@app.command()
def algorithms(name: Annotated[str, Argument(metavar="NAME")] = "") -> None:
    """List the algorithms, or show the fields of one."""
    from fedlib.cli import told

    told.algorithms(name)


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
    from fedlib.cli import told

    return told.data(action, names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask and return the exit code; errors of ours are one message."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        code = _answer([word for word in words if word != "--debug"], "--debug" in words)
        sys.stdout.flush()  # here, where it can still be caught that nobody reads on
        return code
    except (BrokenPipeError, SystemExit) as stop:  # `fedlib runs | head`, and that is no error
        broken = isinstance(stop.__context__, BrokenPipeError)  # Rich exits with 1 because of it
        if not broken and not isinstance(stop, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _answer(words: list[str], debug: bool) -> int:
    try:
        # Not typer's own main, which forgets what an interruption has said.
        command = get_command(app)
        with command.make_context(NAME, words) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "interrupted: the same command continues from what is stored"
        print(f"\nfedlib: {said}", file=sys.stderr)
        return 130
    except Refused as error:
        said = " ".join(error.format_message().split())
        moved = [word for word in words if word.partition("=")[0] in MOVED]
        said += f" ({moved[0]} is a word of `python -m papers`)" if moved else ""
        print(f"fedlib: {said}\n(see {NAME} --help)", file=sys.stderr)
        return 2
    except Exception as error:
        # A message is enough where it is ours, or of a value out of range.
        ours = isinstance(error, ValueError) or type(error).__module__.startswith("fedlib.")
        if debug or not ours:
            raise
        print(f"fedlib: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownName | Usage) else 1
