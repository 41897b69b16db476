"""From words to experiments: code, files, names and FIELD=VALUE."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.cli import Usage
from fedlib.runs import Experiment
from fedlib.values import UnknownName, from_code, from_dict, one_of


def experiments(source: str, parts: Mapping[str, Any]) -> list[Experiment]:
    """Return the experiments of a source, code or the name of a file, or else by their parts.

    ``parts`` are what was said of an experiment, by option. A part says nothing beside a source:
    nobody may train something else unawares.
    """
    said = [name for name, part in parts.items() if part]
    if source and said:
        raise Usage(f"--{said[0]} says nothing beside {source}")
    found = _of_source(source) if source else _by_parts(parts)
    if not found:
        raise Usage("there is no experiment in it")
    return found


def _by_parts(parts: Mapping[str, Any]) -> list[Experiment]:
    """Return one experiment per algorithm and seed."""
    task, rounds = parts["task"], parts["rounds"]
    if not (task and parts["algorithm"] and rounds):
        raise Usage("name experiments: CODE, FILE, or --task, --algorithm and --rounds")
    told = {name.replace("-", "_"): parts[name] for name in ("cohort", "evaluate-every")}
    more = fields([f"{name}={part}" for name, part in told.items() if part])
    try:
        texts = (parts["seed"] or "0").split(",")
        if not all(text.isdecimal() for text in texts):
            raise Usage(f"--seed must be whole numbers, got {parts['seed']!r}")
        seeds = range(parts["seeds"]) if parts["seeds"] else [*map(int, texts)]
        chosen = [_algorithm(name, parts["set"]) for name in parts["algorithm"]]
        pairs = itertools.product(chosen, seeds)
        return [Experiment(from_code(task), a, rounds, seed=s, **more) for a, s in pairs]
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


def _of_source(name: str) -> list[Experiment]:
    """Return the experiments of code, or of a file: JSON, or one printed experiment per line."""
    if "(" in name:
        return [_experiment(name, "")]
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        data = json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except OSError as error:
        raise Usage(f"cannot read {name}: {error}") from error
    except ValueError as error:
        raise Usage(f"{name} is no JSON: {error}") from error
    if data is not None:
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
