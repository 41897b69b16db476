"""What can be asked on the command line. Imports nothing heavy: `--help` must be quick."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from fedlib.values import suggest


class Usage(ValueError):
    """The question was wrong: the command line ends with code 2."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what was probably meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"unknown {value!r}; {suggest(value, names)}")

    def error(self, message: str) -> NoReturn:
        """Leave with code 2 and one message."""
        self.exit(2, f"fedlib: {message}\n(see {self.prog} --help)\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse, or leave with code 2; an unknown option is answered with the nearest one."""
        asked, unknown = self.parse_known_args(args, namespace)
        if unknown:
            own = getattr(asked, "parser", self)
            options = [o for a in own._actions for o in a.option_strings]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], options, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            own.error(f"unknown argument {unknown[0]!r}{hint}")
        return asked


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return int(text)


def make_parser() -> Parser:
    """Return the parser of `python -m fedlib`."""
    parser = Parser(
        prog="python -m fedlib",
        description="Federated mixtures of experts: run experiments and look at what is stored.",
        epilog="Runs live in $FEDLIB_RUNS, data in $FEDLIB_DATA; an interrupted command continues "
        "when given again.",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_run, _sweep, _tune, _runs, _show, _tasks, _algorithms, _data):
        add(commands)
    return parser


def _command(commands: Any, name: str, module: str, what: str, example: str = "") -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(module=module, parser=parser)
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    return parser


def _run(commands: Any) -> None:
    example = """examples:
  run "Experiment(task=Task(...), algorithm=FedAvg(), rounds=100)"
  run --spec runs/79bf746aa162056e/spec.json
  run --task NAME --algorithm FedMix --set experts=2 --set 'server=Optimizer("adam", lr=0.003)' \\
      --rounds 100 --cohort 0.1 --seed 1"""
    parser = _command(commands, "run", "train", "train one experiment, or continue it", example)
    parser.add_argument("code", nargs="?", metavar="CODE", help="an experiment as it prints")
    parser.add_argument("--spec", metavar="FILE", help="an experiment as JSON (- for stdin)")
    _of_options(parser, many=False)
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained")
    _how(parser)


def _sweep(commands: Any) -> None:
    example = """examples:
  sweep experiments.txt --workers 4         one printed experiment per line, # for comments
  sweep specs.json                          a JSON list of specs
  sweep --task NAME --algorithm FedAvg --algorithm FedMix --rounds 100 --seeds 3
  sweep --recipe label_skew --scale quick --method FedAvg --method FedMix --workers 2"""
    parser = _command(commands, "sweep", "train", "train many experiments, or continue", example)
    parser.add_argument("file", nargs="?", metavar="FILE", help="experiments (- for stdin)")
    parser.add_argument("--recipe", metavar="NAME", help="a paper's experiments, e.g. label_skew")
    parser.add_argument("--dataset", default="", metavar="NAME", help="one data set of the recipe")
    parser.add_argument(
        "--method", action="append", default=[], metavar="NAME", help="one method of the recipe"
    )
    _of_options(parser, many=True)
    parser.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="processes at once (1)"
    )
    parser.add_argument("--address", help="a Ray cluster instead: auto, or HOST:PORT")
    parser.add_argument("--plan", action="store_true", help="list the runs and which are stored")
    _how(parser)


def _tune(commands: Any) -> None:
    example = """examples:
  tune --trials 8 --workers 2
  tune --scale paper --trials 50 --address auto --device cuda"""
    what = "tune adaptive experts in four stages with Ray Tune, or continue"
    parser = _command(commands, "tune", "tune", what, example)
    parser.add_argument("--scale", default="standard", help="standard or paper (standard)")
    parser.add_argument("--trials", type=_count, default=8, metavar="N", help="per stage (8)")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="trials at once (1)")
    parser.add_argument("--address", help="a Ray cluster instead: auto, or ray://HOST:PORT")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")


def _of_options(parser: Parser, *, many: bool) -> None:
    group = parser.add_argument_group("an experiment by its parts")
    group.add_argument("--task", metavar="NAME", help="a named task (see tasks), or its code")
    group.add_argument("--scale", default="quick", help="quick, standard or paper (quick)")
    group.add_argument("--task-set", action="append", default=[], metavar="NAME=VALUE")
    group.add_argument(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help="see algorithms, or its code" + ("; may be repeated" if many else ""),
    )
    group.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    group.add_argument("--rounds", type=_count, metavar="N", help="communication rounds")
    group.add_argument("--cohort", metavar="N|F", help="clients per round, or a fraction as 0.1")
    group.add_argument("--evaluate-every", type=_count, metavar="N", help="rounds between scorings")
    if many:
        group.add_argument("--seeds", metavar="N|A,B", help="how many seeds, or which: 0,3,4")
    else:
        group.add_argument("--seed", dest="seeds", metavar="S", help="the seed (0)")


def _how(parser: Parser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--chunk", type=_count, metavar="N", help="clients that share one program")
    parser.add_argument("--retry", action="store_true", help="train again what diverged before")


def _runs(commands: Any) -> None:
    parser = _command(commands, "runs", "stored", "list what is stored")
    parser.add_argument("--algorithm", default="", metavar="NAME", help="only of this algorithm")
    parser.add_argument("--dataset", default="", metavar="NAME", help="only on this data set")
    parser.add_argument("--state", default="", metavar="NAME", help="only complete, diverged, ...")
    parser.add_argument("--json", action="store_true", help="for a program to read")


def _show(commands: Any) -> None:
    parser = _command(commands, "show", "stored", "show one stored run")
    parser.add_argument("key", metavar="KEY", help="a run's key, or how it begins")
    parser.add_argument("--curve", metavar="METRIC", help="draw a metric over the rounds")
    parser.add_argument("--export", metavar="FILE", help="write the metrics: .csv or .parquet")


def _tasks(commands: Any) -> None:
    parser = _command(commands, "tasks", "lists", "list the named tasks, or show one")
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--scale", default="quick", help="quick, standard or paper (quick)")
    parser.add_argument("--task-set", action="append", default=[], metavar="NAME=VALUE")


def _algorithms(commands: Any) -> None:
    parser = _command(commands, "algorithms", "lists", "list the algorithms, or show one")
    parser.add_argument("name", nargs="?", metavar="NAME")


def _data(commands: Any) -> None:
    example = """examples:
  data                         where every data set is, or would come from
  data fetch cifar10 mnist     bring them here
  data verify                  check those that are here"""
    parser = _command(commands, "data", "lists", "list, fetch or verify data sets", example)
    parser.add_argument("action", nargs="?", default="list", choices=("list", "fetch", "verify"))
    parser.add_argument("names", nargs="*", metavar="NAME")
