"""From words to experiments: code, files, names and FIELD=VALUE."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.cli.app import Usage
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import UnknownName, from_code, from_dict, one_of


class Parts(NamedTuple):
    """An experiment by its parts, as they were said: named as their options are."""

    task: str
    algorithm: Sequence[str]
    set: Sequence[str]
    rounds: int | None
    cohort: str
    evaluate_every: int | None
    seeds: str

    def alone(self, beside: str) -> None:
        """Usage if a part is given without a task: nobody may train something else unawares."""
        for name, said in self._asdict().items():
            if said and not self.task:
                raise Usage(f"--{name.replace('_', '-')} says nothing beside {beside}")


def one(code: str, spec: str, parts: Parts) -> Experiment:
    """Return the experiment that `run` is asked for."""
    if sum(map(bool, (code, spec, parts.task))) != 1:
        raise Usage("name one experiment: CODE, --spec FILE, or --task and --algorithm")
    parts.alone("CODE" if code else "--spec")
    if code:
        return _experiment(code, "")
    one_seed = [_whole(parts.seeds or "0")]
    found = _of_text(_read(spec), spec) if spec else by_parts(parts, one_seed)
    if len(found) != 1:
        raise Usage(f"run trains one experiment, got {len(found)}; use sweep")
    return found[0]


def several(file: str, parts: Parts) -> list[Experiment]:
    """Return the experiments that `sweep` is asked for."""
    if bool(file) == bool(parts.task):
        raise Usage("name the experiments: FILE, or --task and --algorithm")
    parts.alone("FILE")
    numbers = [_whole(part) for part in (parts.seeds or "1").split(",")]
    seeds = numbers if "," in parts.seeds else range(numbers[0])
    found = _of_text(_read(file), file) if file else by_parts(parts, seeds)
    if not found:
        raise Usage("there is no experiment in it")
    return found


def by_parts(parts: Parts, seeds: Iterable[int]) -> list[Experiment]:
    """Return one experiment per algorithm and seed."""
    if not parts.algorithm or not parts.rounds:
        raise Usage("an experiment by its parts needs --task, --algorithm and --rounds")
    more: dict[str, Any] = {"cohort": _cohort(parts.cohort)} if parts.cohort else {}
    if parts.evaluate_every:
        more["evaluate_every"] = parts.evaluate_every
    try:
        task = from_code(parts.task)
        if not isinstance(task, Task):
            raise Usage(f"--task is no task: {task!r}")
        chosen = [_algorithm(name, parts.set) for name in parts.algorithm]
        pairs = itertools.product(chosen, seeds)
        return [Experiment(task, a, parts.rounds, seed=s, **more) for a, s in pairs]
    except (UnknownName, Usage):
        raise
    except (TypeError, ValueError) as error:  # a wrong value in the question
        raise Usage(str(error)) from error


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
