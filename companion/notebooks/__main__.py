"""The command line behind `make figures`, `make notebooks` and the last step of `make test`."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence

from companion.notebooks import Failure, check, run, select
from companion.notebooks.copies import write_back
from companion.notebooks.verdicts import compare
from fedlib import paths

_STANDARD = {
    "scale": "quick, standard or paper",
    "dataset": "one data set instead of the scale's own",
    "seeds": "number of seeds",
    "rounds": "communication rounds",
    "device": "auto, cpu, cuda or cuda:N",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or compare the notebooks; 0 if all is well, 1 if one is not, 2 for bad arguments."""
    asked = _parser().parse_args(arguments)
    if asked.command == "verdicts":
        drawn = paths.figures() / "quick"
        return 0 if compare(sorted(paths.notebooks().glob("*.ipynb")), drawn) else 1
    try:
        jobs = _jobs(asked.jobs)
        notebooks = select(asked.only, sorted(paths.notebooks().glob("*.ipynb")))
        given = _given(asked) if asked.command == "figures" else {}
        todo = {notebook: check(notebook, given) for notebook in notebooks}
    except ValueError as error:
        print(f"fedlib: {error}", file=sys.stderr)
        return 2
    if not todo:
        print(f"there are no notebooks in {paths.notebooks()}")
        return 0
    try:
        if asked.command == "figures":
            run(todo, paths.build() / given.get("scale", "quick"), jobs)
        else:
            with tempfile.TemporaryDirectory(prefix="fedlib-runs-") as empty:
                store = {"FEDLIB_RUNS": empty}
                run(todo, paths.build() / "refresh", jobs, store, finished=write_back)
    except Failure as failure:
        print(f"fedlib: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m companion.notebooks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    figures = commands.add_parser("figures", help="run the notebooks into executed copies")
    refresh = commands.add_parser("refresh", help="write quick-scale outputs into the sources")
    commands.add_parser("verdicts", help="compare stored verdicts with those of the figures folder")
    for command in (figures, refresh):
        command.add_argument("--only", default="", help="names or numbers, as in 00,01")
        command.add_argument("--jobs", default="", help="notebooks at once (one per core)")
    for name, meaning in _STANDARD.items():
        figures.add_argument(f"--{name}", help=meaning)
    figures.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any other parameter"
    )
    return parser


def _given(asked: argparse.Namespace) -> dict[str, str]:
    given = {n: getattr(asked, n) for n in _STANDARD if getattr(asked, n) is not None}
    for text in asked.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
        given[name] = value
    return given


def _jobs(text: str) -> int:
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"jobs must be a whole number of at least 1, got {text!r}")
    return int(text)


def _terminated(*_: object) -> None:
    """Let `kill` end this process as ^C does, so that no notebook outlives it."""
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
