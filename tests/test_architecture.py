"""The rooms and their arrows: nothing imports upwards, and each room keeps to its trade."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from fedlib import paths

PICTURE = (paths.ROOT / "ARCHITECTURE.md").read_text().split("## The rooms")[1].split("```")[1]
# A room may import rooms of lower lines, and itself; the first line has those who call.
LAYERS = [line.split() for line in reversed(PICTURE.strip().splitlines()[1:]) if line]
SOURCES = sorted((paths.ROOT / "fedlib").rglob("*.py"))


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "fedlib":
            found |= {f"fedlib.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def owner(file: Path) -> str:
    return file.relative_to(paths.ROOT / "fedlib").with_suffix("").parts[0]


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f.relative_to(paths.ROOT).as_posix())
def test_nothing_imports_upwards(file):
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    mine = owner(file)
    if mine in ("__init__", "__main__"):
        return
    assert mine in level, f"{mine} is in no layer"
    used = {room(m) for m in imports(file) if m.startswith("fedlib.")} - {mine}
    upward = {u for u in used if level[u] >= level[mine]}
    assert not upward, f"{mine} imports {upward}, which do not lie below it"


def test_every_room_has_a_place_and_a_line():
    """The picture and the table name the rooms that there are, each once."""
    there = {owner(file) for file in SOURCES} - {"__init__", "__main__"}
    placed = [name for names in LAYERS for name in names]
    assert sorted(placed) == sorted(there)
    table = (paths.ROOT / "ARCHITECTURE.md").read_text().split("| room | what it holds |")[1]
    first = " ".join(line.split("|")[1] for line in table.split("\n\n")[0].splitlines()[2:])
    named = re.findall(r"`(\w+)/?`", first)
    assert set(named) >= there - {"randomness", "paths", "progress", "memory"}


@pytest.mark.parametrize(
    ("rooms", "foreign"),
    [
        ({"engine", "algorithms", "models", "optim", "federation"}, {"pathlib", "os", "pandas"}),
        ({"datasets", "partition"}, {"fedlib.engine", "fedlib.algorithms"}),
        ({"partition"}, {"torch"}),
        ({"plotting", "frames", "claims"}, {"torch", "fedlib.engine", "fedlib.sweep"}),
    ],
)
def test_rooms_keep_to_their_trade(rooms, foreign):
    for file in SOURCES:
        if owner(file) in rooms:
            assert not imports(file) & foreign, f"{file.name} imports {imports(file) & foreign}"


def test_the_engine_names_no_algorithm():
    for file in SOURCES:
        if owner(file) in {"engine", "federation", "models", "metrics"}:
            tree = ast.parse(file.read_text())
            names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            assert not names & {"FedAvg", "FedMix", "Local"}, file.name


def test_models_speak_no_federated_word():
    words = {"client", "federat", "server", "cohort", "round"}
    for file in (paths.ROOT / "fedlib" / "models").glob("*.py"):
        code = ast.parse(file.read_text())
        names = {n.id for n in ast.walk(code) if isinstance(n, ast.Name)} - set(dir(builtins))
        names |= {a.arg for a in ast.walk(code) if isinstance(a, ast.arg)}
        assert not {n for n in names for w in words if w in n.lower()}, file.name
