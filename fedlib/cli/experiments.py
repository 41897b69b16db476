"""From words to experiments: code, a file of code or of specs, or the parts of some."""

import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlib.runs import Experiment
from fedlib.values import from_code, from_dict


class Usage(ValueError):
    """The question was wrong: the command line ends with code 2."""


def experiments(source: str, parts: Mapping[str, Any]) -> list[Experiment]:
    """Return the experiments of a source, code or the name of a file, or else by their parts.

    ``parts`` are what was said of an experiment, by option. A part says nothing beside a source:
    nobody may train something else unawares.
    """
    said = {name: part for name, part in parts.items() if part}
    if source and said:
        raise Usage(f"--{next(iter(said))} says nothing beside {source}")
    try:
        found = [_experiment(*told) for told in _told(source)] if source else _by_parts(said)
    except (OSError, TypeError, ValueError) as error:
        raise Usage(str(error)) from error
    if not found:
        raise Usage("there is no experiment in it")
    return found


def _told(name: str) -> Iterator[tuple[Any, str]]:
    """Yield code and specs of a source, and where each stands."""
    if "(" in name:
        yield name, ""
        return
    text = sys.stdin.read() if name == "-" else Path(name).read_text()
    if text.lstrip()[:1] in ("{", "["):
        specs = json.loads(text)
        yield from ((spec, f"{name}: ") for spec in (specs if isinstance(specs, list) else [specs]))
        return
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip() and line.strip()[0] != "#":
            yield line, f"{name}, line {i}: "


def _experiment(said: Any, where: str) -> Experiment:
    try:
        made = from_code(said) if isinstance(said, str) else from_dict(said)
    except (TypeError, ValueError) as error:
        raise Usage(f"{where}{error}") from error
    if not isinstance(made, Experiment):
        raise Usage(f"{where}not an experiment: {made!r}")
    return made


def _by_parts(said: Mapping[str, Any]) -> list[Experiment]:
    """Return one experiment per algorithm and seed."""
    if not said.keys() >= {"task", "algorithm", "rounds"}:
        raise Usage("name experiments: CODE, FILE, or --task, --algorithm and --rounds")
    told = [f"{name}={said[name]}" for name in ("cohort", "evaluate-every") if name in said]
    more = {name.replace("-", "_"): value for name, value in fields(told).items()}
    task, options = from_code(said["task"]), fields(said.get("set", ()))
    chosen = [from_dict({"kind": name, **options}) for name in said["algorithm"]]
    pairs = itertools.product(chosen, said.get("seed") or [0])
    return [Experiment(task, a, said["rounds"], seed=s, **more) for a, s in pairs]


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
