"""The packages, their modules and the arrows between them: nothing imports upwards."""

import ast
import builtins
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fedlib import paths

ARCHITECTURE = (paths.ROOT / "docs" / "ARCHITECTURE.md").read_text()
PICTURE = ARCHITECTURE.split("## Packages and modules")[1].split("```")[1]
PACKAGES = ("papers", "companion", "fedrun", "fedlib")
# "package  module ...", lower lines last; a module may import modules of lower lines, and itself.
LINES = [line.split() for line in PICTURE.strip().splitlines() if line.split()[:1]]
KNOWN = [line for line in reversed(LINES) if line[0] in PACKAGES]
LAYERS = [[f"{line[0]}.{module}" for module in line[1:]] for line in KNOWN]
SOURCES = [file for package in PACKAGES for file in sorted((paths.ROOT / package).rglob("*.py"))]


# What fedrun offers at its front door, by its module.
STUB = (paths.ROOT / "fedrun" / "__init__.pyi").read_text()
DOOR = {
    name: module for module, name in re.findall(r"^from fedrun\.(\S+) import (\w+)", STUB, re.M)
}


@cache
def imports(code: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in PACKAGES:
            door = DOOR if node.module == "fedrun" else {}
            found |= {f"{node.module}.{door.get(a.name, a.name)}" for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level != 1:  # of a module's own folder
            found.add(node.module or "")
    return found


def owner(file: Path) -> str:
    """Return the module of a file, "package.module"; of a package's own __init__, "package"."""
    parts = file.relative_to(paths.ROOT).with_suffix("").parts
    return ".".join(parts[:2]) if parts[1] not in ("__init__", "__main__") else parts[0]


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f.relative_to(paths.ROOT).as_posix())
def test_nothing_imports_upwards(file):
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    mine = owner(file)
    ours = [m for m in imports(file.read_text()) if m.split(".")[0] in PACKAGES]
    if mine in PACKAGES:  # what a package offers, and its command line: all of it, and below
        below = PACKAGES[PACKAGES.index(mine) :]
        assert not [m for m in ours if m.split(".")[0] not in below]
        return
    assert mine in level, f"{mine} is in no layer"
    used = {".".join(m.split(".")[:2]) for m in ours if "." in m} - {mine}
    upward = {u for u in used if level.get(u, -1) >= level[mine]}
    assert not upward, f"{mine} imports {upward}, which do not lie below it"
    assert not used - level.keys(), f"{mine} imports {used - level.keys()}, which are no modules"


def test_no_modules_import_each_other_in_a_circle():
    """Neither in a function nor for type checkers only; an ``__init__`` is no module here."""
    modules = [f.relative_to(paths.ROOT) for f in SOURCES if f.stem != "__init__"]
    files = {".".join(f.with_suffix("").parts): paths.ROOT / f for f in modules}
    graph = {}
    for name, file in files.items():
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
        pairs = [(n.module or "", alias.name) for n in nodes for alias in n.names]
        doors = {
            f"fedrun.{DOOR[what]}" for module, what in pairs if module == "fedrun" and what in DOOR
        }
        found = (
            {module for module, _ in pairs} | {f"{module}.{what}" for module, what in pairs} | doors
        )
        graph[name] = found & files.keys() - {name}
    TopologicalSorter(graph).prepare()  # raises CycleError
    assert {"fedrun.store", "fedlib.engine.protocol"} <= graph["fedrun.train"]


def test_every_module_has_a_place_and_a_line():
    """The picture and the table name the modules that there are, each once."""
    there = {owner(file) for file in SOURCES} - {*PACKAGES}
    placed = [name for names in LAYERS for name in names]
    assert sorted(placed) == sorted(there)
    table = ARCHITECTURE.split("| module | what it holds |")[1]
    first = " ".join(line.split("|")[1] for line in table.split("\n\n")[0].splitlines()[2:])
    named = set(re.findall(r"`([\w.]+)/?`", first))
    small = {"fedlib.randomness", "fedlib.paths", "fedlib.progress"}
    assert named >= there - small, there - small - named


KEPT_APART = {
    "fedlib": "matplotlib seaborn IPython ipywidgets",
    "fedlib.engine fedlib.algorithms fedlib.models fedlib.optim fedlib.federation":
        "pathlib os pandas",
    "fedlib.partition companion.plotting companion.frames companion.claims": "torch",
}  # fmt: skip


@pytest.mark.parametrize("modules", KEPT_APART)
def test_modules_keep_to_their_trade(modules):
    modules, foreign = {*modules.split()}, {*KEPT_APART[modules].split()}
    for file in SOURCES:
        if {owner(file), owner(file).split(".")[0]} & modules:
            used = imports(file.read_text())
            found = {*used, *(m.split(".")[0] for m in used)} & foreign
            assert not found, f"{file.name} imports {found}"


def test_the_companion_names_no_paper():
    for file in SOURCES:
        if owner(file).startswith("companion"):
            assert not re.search(r"\b(FedMix|IFCA|PM-MoE|PMMoE)\b", file.read_text()), file


def test_models_speak_no_federated_word():
    words = {"client", "federat", "server", "cohort", "round"}
    for file in (paths.ROOT / "fedlib" / "models").glob("*.py"):
        code = ast.parse(file.read_text())
        names = {n.id for n in ast.walk(code) if isinstance(n, ast.Name)} - set(dir(builtins))
        names |= {a.arg for a in ast.walk(code) if isinstance(a, ast.arg)}
        assert not {n for n in names for w in words if w in n.lower()}, file.name


def test_no_function_is_longer_than_fifty_five_lines():
    """Docstrings aside, whose length is that of what there is to say."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                told = node.body[0].end_lineno - node.body[0].lineno + 1
                length = (node.end_lineno or 0) - node.lineno + 1
                length -= told if ast.get_docstring(node) else 0
                assert length <= 55, f"{file}: {node.name} has {length} lines"


def _without_encoding(code: str) -> list[str]:
    """The calls that read or write text in whatever encoding the machine has."""
    found = []
    for node in (n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call)):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        keywords, bare = {k.arg for k in node.keywords}, isinstance(node.func, ast.Name)
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        modes = [word for word in words if isinstance(word, str)]
        text = not any("b" in mode for mode in modes) and not {"encoding", "formats"} & keywords
        opens = name == "open" and (bare or not node.args or modes or "newline" in keywords)
        positional = {"read_text": 1, "write_text": 2}.get(name, 0)
        handed = {getattr(a, "attr", "") for a in node.args} & {"read_text", "write_text"}
        reads = (positional > len(node.args) or handed) and "encoding" not in keywords
        if (opens and text) or reads or {"text", "universal_newlines"} & keywords:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_text_is_read_and_written_in_utf_8_whatever_the_machine_would():
    assert len(_without_encoding("open(f)\np.read_text()\nq.open('w')\nrun(c, text=True)")) == 4
    assert len(_without_encoding("partial(p.write_text, data=s)")) == 1
    assert not _without_encoding("open(f, 'rb')\np.read_text('utf-8')\nq.open('wb')\nself.open(h)")
    folders = ("fedlib", "companion", "papers", "docs", "benchmarks", "examples")
    for file in (f for folder in folders for f in (paths.ROOT / folder).rglob("*.py")):
        assert not (found := _without_encoding(file.read_text("utf-8"))), f"{file}: {found}"
