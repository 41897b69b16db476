"""What the library offers at its front door: names, their examples, and how little it imports."""

import ast
import dataclasses
import doctest
import inspect
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import alone

import fedlib
import fedlib.algorithms
import fedrun
from fedlib import paths

PACKAGES = fedlib, fedrun
OFFERED = {
    name: getattr(package, name) for package in PACKAGES for name in dir(package) if name[0] != "_"
}
SHOWN = {n: thing for n, thing in OFFERED.items() if callable(thing)}
MORE = {"np": np, "Path": Path, "tempfile": tempfile}


def test_the_front_door_offers_every_algorithm_and_tells_type_checkers_the_same():
    assert {*fedlib.algorithms.__all__} <= OFFERED.keys(), "a line in fedlib/__init__.py and .pyi"
    told = set()
    for package in ("fedlib", "fedrun"):
        stub = ast.parse((paths.ROOT / package / "__init__.pyi").read_text())
        lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
        told |= {alias.asname for line in lines for alias in line.names}
    assert told == OFFERED.keys() - {"PINNED"}
    with pytest.raises(AttributeError, match="no attribute 'FedNothing'"):
        _ = fedlib.FedNothing


def test_the_command_line_and_the_front_door_import_no_torch():
    code = "import sys, fedlib, fedrun.cli; dir(fedlib); print('torch' in sys.modules)"
    assert alone(code).stdout.strip() == "False"


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_offered_is_explained(name):
    """Fields and arguments by name; algorithms have their equations instead."""
    thing, text = SHOWN[name], inspect.getdoc(SHOWN[name]) or ""
    assert text.split("\n\n")[0].endswith((".", ":")), "one sentence first"
    fields = [f.name for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
    given = [*inspect.signature(thing).parameters] if inspect.isfunction(thing) else []
    assert not given or "Args:" in text
    if inspect.isclass(thing) and issubclass(thing, (fedlib.FedAvg, Exception)):
        return
    assert not [n for n in (*fields, *given) if not re.search(rf"\b{n}\b", text)]


def test_papers_have_their_names_and_not_the_numbers_of_tasks_and_readings():
    code = [p for package in PACKAGES for p in (paths.ROOT / package.__name__).rglob("*.py")]
    number = re.compile(r"(?<![\w,.-])(A\d\d|00[0-4])\b")
    assert [(p.name, n) for p in code for n in number.findall(p.read_text("utf-8"))] == []


@pytest.mark.parametrize("name", sorted(OFFERED.keys() - {"PINNED"}))
def test_help_of_what_is_offered_has_an_example_that_runs_as_it_stands(name, places):
    """A stranger who copied one met names that no public module had."""
    globs = {"__name__": __name__}
    exec("from fedlib import *", globs)
    if name in dir(fedrun):
        exec("from fedrun import *", globs)
    (example,) = doctest.DocTestFinder(recurse=False).find(OFFERED[name], name, globs=globs)
    assert example.examples and not doctest.DocTestRunner().run(example).failed


TEXTS = fedlib, fedlib.partition.Partitioner  # the manual refers to the second


@pytest.mark.parametrize("thing", TEXTS, ids=lambda thing: thing.__name__)
def test_examples_of_the_package_and_of_a_partition_of_ones_own_run(thing, places):
    globs = {**OFFERED, **MORE, "__name__": __name__}
    (example,) = doctest.DocTestFinder(recurse=False).find(thing, "example", globs=globs)
    assert example.examples and not doctest.DocTestRunner().run(example).failed


def test_the_text_of_the_front_door_names_what_there_is():
    names = re.findall(r"``(\w+)(?:[(`])|``fedrun\.(\w+)", fedlib.__doc__)
    assert len(names) > 12 and {a or b for a, b in names} <= OFFERED.keys() | {"dir"}
