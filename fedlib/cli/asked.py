"""From arguments to experiments: code, files, names and FIELD=VALUE."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.cli.parser import Usage
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import UnknownName, from_code, from_dict, one_of
from papers import named, recipes

# Options that say what to train, and what they go with.
PARTS = {"scale", "task_set", "algorithm", "set", "rounds", "cohort", "evaluate_every", "seeds"}
OPTIONS = {"task": PARTS, "recipe": {"scale", "dataset", "method", "rounds", "seeds"}}


def one(asked: Namespace) -> Experiment:
    """Return the experiment that `run` is asked for."""
    if not _source(asked, "code", "spec", "task"):
        raise Usage("name one experiment: CODE, --spec FILE, or --task and --algorithm")
    if asked.code:
        return _experiment(asked.code, "")
    found = _of_text(_read(asked.spec), asked.spec) if asked.spec else by_parts(asked)
    if len(found) != 1:
        raise Usage(f"run trains one experiment, got {len(found)}; use sweep")
    return found[0]


def several(asked: Namespace) -> list[Experiment]:
    """Return the experiments that `sweep` is asked for."""
    if not _source(asked, "file", "recipe", "task"):
        raise Usage("name the experiments: FILE, --recipe, or --task and --algorithm")
    if asked.file:
        return _of_text(_read(asked.file), asked.file)
    return _of_recipe(asked) if asked.recipe else by_parts(asked)


def _source(asked: Namespace, *names: str) -> str:
    """Return the one that is given of some options, "" if none or several.

    Usage if an option is given that says nothing there: nobody may train something else unawares.
    """
    given = [n for n in names if getattr(asked, n)]
    if len(given) != 1:
        return ""
    for name in sorted((PARTS | OPTIONS["recipe"]) - OPTIONS.get(given[0], set())):
        if getattr(asked, name, None) != asked.parser.get_default(name):
            option = next(a for a in asked.parser._actions if a.dest == name).option_strings[0]
            raise Usage(f"{option} says nothing beside {given[0]}")
    return given[0]


def by_parts(asked: Namespace) -> list[Experiment]:
    """Return one experiment per algorithm and seed of --task, --algorithm and what goes along."""
    if not asked.algorithm or not asked.rounds:
        raise Usage("an experiment by its parts needs --task, --algorithm and --rounds")
    task = named_task(asked.task, asked.scale, asked.task_set)
    with usage():
        more: dict[str, Any] = {"cohort": _cohort(asked.cohort)} if asked.cohort else {}
        if asked.evaluate_every:
            more["evaluate_every"] = asked.evaluate_every
        seeds = _seeds(asked)
        chosen = [_algorithm(name, asked.set) for name in asked.algorithm]
        return [Experiment(task, a, asked.rounds, seed=s, **more) for a in chosen for s in seeds]


def named_task(name: str, scale: str, options: Sequence[str]) -> Task:
    """Return the task of a name or of a code."""
    with usage():
        if "(" in name:
            task = from_code(name)
            if not isinstance(task, Task):
                raise Usage(f"--task is no task: {task!r}")
            return task
        return named.named(name, scale, **fields(options))


def algorithm_kinds() -> dict[str, type[FedAvg]]:
    """Return the algorithms by name."""
    found = {name: getattr(algorithms, name) for name in algorithms.__all__}
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, FedAvg)}


def fields(texts: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE texts as a dict; a value is code, a literal, or else a string."""
    said = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals or not name:
            raise Usage(f"expected NAME=VALUE, got {text!r}")
        try:
            said[name] = from_code(written)
        except ValueError:
            if re.search(r"[()\[\]{}]", written):
                raise
            said[name] = written
    return said


@contextmanager
def usage() -> Iterator[None]:
    """Make a wrong value in the question an error of the question."""
    try:
        yield
    except (UnknownName, Usage):
        raise
    except (TypeError, ValueError) as error:
        raise Usage(str(error)) from error


def _algorithm(name: str, options: Sequence[str]) -> Any:
    if "(" in name:
        if options:
            raise Usage("--set goes with the name of an algorithm, not with its code")
        return from_code(name)
    one_of("algorithm", name, algorithm_kinds())
    return from_dict({"kind": name, **fields(options)})


def _cohort(text: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise Usage(f"--cohort must be a number or a fraction, got {text!r}") from None


def _seeds(asked: Namespace) -> list[int]:
    text = asked.seeds or ("0" if asked.command == "run" else "1")
    numbers = [_whole(part) for part in text.split(",")]
    counted = asked.command == "sweep" and len(numbers) == 1 and "," not in text
    return list(range(numbers[0])) if counted else numbers


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise Usage(f"seeds must be whole numbers, got {text!r}")
    return int(text)


def _of_recipe(asked: Namespace) -> list[Experiment]:
    one_of("recipe", asked.recipe, recipes.SECTIONS)
    section = recipes.SECTIONS[asked.recipe]
    with usage():
        chosen = section.settings(asked.scale, asked.dataset)
        length = {"seeds": _whole(asked.seeds or "0"), "rounds": asked.rounds or 0}
    return [
        experiment
        for dataset in chosen
        for method in asked.method or section.methods(asked.scale, dataset)
        for experiment in section.experiments(asked.scale, dataset, method, **length)
    ]


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"cannot read {name}: {error}") from error


def _of_text(text: str, name: str) -> list[Experiment]:
    """Return the experiments of a file: JSON, or one printed experiment per line."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(text)
        except ValueError as error:
            raise Usage(f"{name} is no JSON: {error}") from error
        specs = data if isinstance(data, list) else [data]
        return [_experiment(spec, f"{name}: ") for spec in specs]
    lines = enumerate(text.splitlines(), 1)
    told = [(i, line) for i, line in lines if line.strip() and line.strip()[0] != "#"]
    return [_experiment(line, f"{name}, line {i}: ") for i, line in told]


def _experiment(said: Any, where: str) -> Experiment:
    try:
        made = from_code(said) if isinstance(said, str) else from_dict(said)
    except (TypeError, ValueError) as error:
        raise Usage(f"{where}{error}") from error
    if not isinstance(made, Experiment):
        raise Usage(f"{where}not an experiment: {made!r}")
    return made
