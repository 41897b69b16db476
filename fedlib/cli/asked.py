"""From words to experiments: code, files, names and FIELD=VALUE."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.cli.app import Usage
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import UnknownName, from_code, from_dict, one_of


class Parts(NamedTuple):
    """An experiment by its parts, as they were said; ``seeds`` are numbers between commas."""

    task: str
    algorithms: Sequence[str]
    fields: Sequence[str]
    rounds: int | None
    cohort: str
    evaluate_every: int | None
    seeds: str


def one(code: str, spec: str, parts: Parts, said: str) -> Experiment:
    """Return the experiment that `run` is asked for; ``said`` names a part that is given."""
    if sum(map(bool, (code, spec, parts.task))) != 1:
        raise Usage("name one experiment: CODE, --spec FILE, or --task and --algorithm")
    if said and not parts.task:
        raise Usage(f"{said} says nothing beside {'CODE' if code else '--spec'}")
    if code:
        return _experiment(code, "")
    found = _of_text(_read(spec), spec) if spec else by_parts(parts)
    if len(found) != 1:
        raise Usage(f"run trains one experiment, got {len(found)}; use sweep")
    return found[0]


def several(file: str, parts: Parts, said: str) -> list[Experiment]:
    """Return the experiments that `sweep` is asked for."""
    if bool(file) == bool(parts.task):
        raise Usage("name the experiments: FILE, or --task and --algorithm")
    if said and file:
        raise Usage(f"{said} says nothing beside FILE")
    found = _of_text(_read(file), file) if file else by_parts(parts)
    if not found:
        raise Usage("there is no experiment in it")
    return found


def by_parts(parts: Parts) -> list[Experiment]:
    """Return one experiment per algorithm and seed."""
    if not parts.algorithms or not parts.rounds:
        raise Usage("an experiment by its parts needs --task, --algorithm and --rounds")
    more: dict[str, Any] = {"cohort": _cohort(parts.cohort)} if parts.cohort else {}
    if parts.evaluate_every:
        more["evaluate_every"] = parts.evaluate_every
    seeds = [_whole(part) for part in parts.seeds.split(",")]
    try:
        task = from_code(parts.task)
        if not isinstance(task, Task):
            raise Usage(f"--task is no task: {task!r}")
        chosen = [_algorithm(name, parts.fields) for name in parts.algorithms]
        return [Experiment(task, a, parts.rounds, seed=s, **more) for a in chosen for s in seeds]
    except (UnknownName, Usage):
        raise
    except (TypeError, ValueError) as error:  # a wrong value in the question
        raise Usage(str(error)) from error


def algorithm_kinds() -> dict[str, type[FedAvg]]:
    """Return the algorithms by name."""
    found = {name: getattr(algorithms, name) for name in algorithms.__all__}
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, FedAvg)}


def first_seeds(text: str) -> str:
    """Return that many seeds, from 0."""
    return ",".join(map(str, range(_whole(text)))) or "none"


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


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise Usage(f"seeds must be whole numbers, got {text!r}")
    return int(text)


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
