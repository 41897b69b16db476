"""What the library offers at its front door: names, their examples, and how little it imports."""

import ast
import dataclasses
import doctest
import importlib
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
from fedlib.values import from_code, from_dict, to_dict

HOME = paths.ROOT / "fedlib"
OFFERED = {
    name: getattr(room, name) for room in (fedlib, fedrun) for name in dir(room) if name[0] != "_"
}
SHOWN = {n: thing for n, thing in OFFERED.items() if callable(thing)}
MORE = {"np": np, "Path": Path, "tempfile": tempfile}


def test_the_front_door_offers_every_algorithm_and_tells_type_checkers_the_same():
    assert {*fedlib.algorithms.__all__} <= OFFERED.keys(), "a line in fedlib/__init__.py and .pyi"
    stubs = [
        ast.parse((paths.ROOT / room / "__init__.pyi").read_text()) for room in ("fedlib", "fedrun")
    ]
    told = {
        a.asname
        for stub in stubs
        for n in stub.body
        if isinstance(n, ast.ImportFrom)
        for a in n.names
    }
    assert told == OFFERED.keys() - {"PINNED"}
    with pytest.raises(AttributeError, match="no attribute 'FedNothing'"):
        _ = fedlib.FedNothing


RENAMED = {"Majority": "MajorityClasses", "Mirrored": "MatchedHoldout", "Own": "LocalHoldout"}


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_renamed_values_keep_their_old_names_and_their_keys(old, new):
    kind = getattr(fedlib, new)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        assert getattr(fedlib, old) is kind
    assert from_code(f"{old}()") == from_code(f"{new}()") == from_dict({"kind": old}) == kind()
    assert to_dict(kind()) == {"kind": old} and repr(kind()) == f"{new}()"


def test_a_former_address_names_the_example_that_is_there_now():
    with pytest.raises(ImportError, match=r"examples/flower/ .* fedlib_flower\.py"):
        importlib.import_module("fedlib.flower")
    folder = paths.ROOT / "examples" / "flower"
    assert (folder / "fedlib_flower.py").is_file() and (folder / "README.md").is_file()


def test_the_command_line_and_the_front_door_import_no_torch():
    code = "import sys, fedlib, fedrun.cli; dir(fedlib); print('torch' in sys.modules)"
    assert alone(code).stdout.strip() == "False"


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_offered_is_explained(name, places):
    """Fields and arguments by name, and how it is used in an example that runs.

    Algorithms have their equations, and examples that test_algorithms runs.
    """
    thing, text = SHOWN[name], inspect.getdoc(SHOWN[name]) or ""
    assert text.split("\n\n")[0].endswith((".", ":")), "one sentence first"
    fields = [f.name for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
    given = [*inspect.signature(thing).parameters] if inspect.isfunction(thing) else []
    assert not given or "Args:" in text
    if inspect.isclass(thing) and issubclass(thing, (fedlib.FedAvg, Exception)):
        return
    assert not [n for n in (*fields, *given) if not re.search(rf"\b{n}\b", text)]
    globs = {**OFFERED, **MORE, "__name__": __name__}
    examples = doctest.DocTestFinder(recurse=False).find(thing, name, globs=globs)
    assert any(test.examples for test in examples)
    for test in examples:
        assert not doctest.DocTestRunner().run(test).failed


def test_an_example_of_a_run_is_played_with_nothing_but_the_front_door(tmp_path):
    """`run(tiny)` stood in examples, and nobody was told what `tiny` was."""
    code = (
        "from fedlib import *; from fedrun import *; "
        "print(run(tiny, progress=False).experiment == find_result(tiny).experiment)"
    )
    assert alone(code, FEDLIB_RUNS=str(tmp_path)).stdout.strip() == "True"


def test_the_text_of_the_front_door_runs_and_names_what_there_is(places):
    """Its example was of names that had moved, and it named nothing of fedrun."""
    (example,) = doctest.DocTestFinder(recurse=False).find(fedlib, "fedlib")
    assert example.examples and not doctest.DocTestRunner().run(example).failed
    names = re.findall(r"``(\w+)(?:[(`])|``fedrun\.(\w+)", fedlib.__doc__)
    assert len(names) > 12 and {a or b for a, b in names} <= OFFERED.keys() | {"dir"}


def test_the_example_of_a_partition_of_ones_own_runs(places):
    """The manual refers to it; only its base said how, and without an example."""
    globs = {**OFFERED, **MORE, "__name__": __name__}
    base = fedlib.partition.Partitioner
    (example,) = doctest.DocTestFinder(recurse=False).find(base, "Request", globs=globs)
    assert example.examples and not doctest.DocTestRunner().run(example).failed
