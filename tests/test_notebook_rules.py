"""The rules for source notebooks, as one function that lists complaints, and its own tests.

The rules keep notebooks readable (size, no machinery), runnable from any folder (no paths,
no installs), safe under papermill (parameters) and comparable by nbval (outputs).
"""

import ast
import copy
import io
import re
import runpy
import subprocess
import sys
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fedlib import paths
from papers import notebook as offered

PARAMETERS = [
    'scale: str = "quick"', 'dataset: str = ""', "seeds: int = 0", "rounds: int = 0",
    'device: str = "auto"',
]  # fmt: skip
MOST_CELLS, MOST_LINES, MOST_FUNCTION_LINES, MOST_IMPORTS = 44, 220, 10, 10
FORBIDDEN = {
    r"\b(sys\.exit|os\._exit|exit|quit)\(": "ends the kernel, which papermill takes for success",
    r"\.\./": "has a path relative to the working directory",
    r"(?m)^\s*[!%]\s*(pip|conda|mamba)\b": "installs packages",
    r"\bos\.chdir\b|(?m:^\s*%cd\b)": "changes the working directory",
    r"\bsys\.path\b": "changes the import path",
}
BARE_PLOTS = re.compile(r"^(plt|sns|axs?|axes)\b")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
MACHINE = re.compile(r"/(home|tmp|root|Users)/|site-packages|[A-Z]:\\")


def complaints(path: Path) -> list[str]:
    """What is wrong with a notebook, one sentence each; empty for a good one."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = _of_metadata(notebook) + _of_parameters(code) + _of_size(notebook, code)
    for count, cell in enumerate(code, start=1):
        said = _of_source(cell.source) + _of_outputs(cell, count)
        found += [f"code cell {count} {what}" for what in said]
    return found


def _tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def _of_metadata(notebook: Any) -> list[str]:
    found = []
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernelspec is not python3")
    if "version" in notebook.metadata.get("language_info", {}):
        found.append("the metadata holds the version of Python")
    places = [notebook, *notebook.cells]
    for key in ("papermill", "execution"):
        if any(key in place.metadata for place in places):
            found.append(f"the metadata holds traces of {key}")
    return found


def _of_parameters(code: list[Any]) -> list[str]:
    """The first code cell, and no other, holds the companion's, a line and a comment each."""
    if ["parameters" in _tags(cell) for cell in code] != [cell is code[0] for cell in code]:
        return ["the first code cell and no other is to be tagged parameters"]
    lines = [line.split("  # ") for line in code[0].source.splitlines()]
    if [line[0] for line in lines] != PARAMETERS or any(len(line) != 2 for line in lines):
        return ["the parameters are not the companion's, with a comment each"]
    return []


def _of_size(notebook: Any, code: list[Any]) -> list[str]:
    found = []
    if len(notebook.cells) > MOST_CELLS:
        found.append(f"there are {len(notebook.cells)} cells, at most {MOST_CELLS} are allowed")
    lines = sum(bool(line.strip()) for cell in code for line in cell.source.splitlines())
    if lines > MOST_LINES:
        found.append(f"there are {lines} lines of code, at most {MOST_LINES} are allowed")
    if not any("nbval-check-output" in _tags(cell) for cell in code):
        found.append("no cell is tagged nbval-check-output")
    return found


def _of_source(source: str) -> list[str]:
    if not source.strip():
        return ["is empty"]
    found = [why for pattern, why in FORBIDDEN.items() if re.search(pattern, source)]
    plain = re.sub(r"(?m)^\s*[!%].*$", "", source)  # IPython's commands are no Python
    body = ast.parse(plain).body
    for node in (inner for outer in body for inner in ast.walk(outer)):
        if isinstance(node, ast.ClassDef):
            found.append(f"defines the class {node.name}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MOST_FUNCTION_LINES:
                found.append(f"defines {node.name}, {length} lines long")
    tokens = tokenize.generate_tokens(io.StringIO(plain).readline)
    if any(t.type == tokenize.OP and t.string == ";" for t in tokens):
        found.append("has a semicolon, which does not silence a cell under nbval")
    for name in sorted({line.partition(":")[0] for line in PARAMETERS} & _assigned(body)):
        found.append(f"assigns {name}, a parameter, on which the folder of its figures depends")
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        called = ast.unparse(last.value.func)
        if BARE_PLOTS.match(called) and called != "plt.show":
            found.append(f"ends with {called}, whose value has a memory address: assign it to _")
    return found


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Return the names that code assigns without an annotation, which the parameters have."""
    plain = (outer for outer in body if not isinstance(outer, ast.AnnAssign))
    nodes = [inner for outer in plain for inner in ast.walk(outer)]
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _of_outputs(cell: Any, count: int) -> list[str]:
    found = []
    if cell.execution_count != count:
        found.append(f"has the execution count {cell.execution_count}: run `make notebooks`")
    if "nbval-check-output" in _tags(cell) and not cell.outputs:
        found.append("is to be compared and has no output")
    for output in cell.outputs:
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        if output.output_type == "error":
            found.append(f"ended with {output.ename}")
        if output.get("name") == "stderr":
            found.append("wrote to stderr, a warning or a progress bar")
        if ADDRESS.search(text):
            found.append("shows a memory address")
        if MACHINE.search(text) or str(paths.ROOT) in text:
            found.append("shows a path of one machine")
    return found


SOURCES = sorted(paths.notebooks().glob("*.ipynb"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_source_notebooks_keep_the_rules(path: Path):
    assert complaints(path) == []


def test_every_name_that_a_notebook_uses_is_imported_or_defined():
    """ruff knows no names of an import of everything: here it gets them one by one."""
    names = f"import {', '.join(offered.__all__)}"
    for path in SOURCES:
        code = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        text = "\n".join(code).replace("import *", names)
        assert names in text, path.name
        imports = [
            n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        assert len(imports) <= MOST_IMPORTS, path.name
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F822", "-"]
        found = subprocess.run(ruff, input=text, text=True, capture_output=True)
        assert found.returncode == 0, f"{path.name}: {found.stdout}{found.stderr}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_module_that_a_notebook_uses_has_what_it_takes(path: Path):
    """A function that only a notebook calls looks unused to who greps the packages."""
    code = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    nodes = list(ast.walk(ast.parse("\n".join(code))))
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    names: dict[str, Any] = {}
    exec("\n".join(ast.unparse(n) for n in imports), names)
    taken = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    of_modules = [(names[n.value.id], n.attr) for n in taken if n.value.id in names]
    of_modules = [(m, attr) for m, attr in of_modules if isinstance(m, ModuleType)]
    assert of_modules
    assert [f"{m.__name__}.{attr}" for m, attr in of_modules if not hasattr(m, attr)] == []


@pytest.mark.parametrize("missing", ["papers.notebook", "fedlib"])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_that_lies_alone_says_what_it_needs(path: Path, missing: str, monkeypatch):
    """It said "No module named 'papers'": the library was installed, and the papers cannot be."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "papers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"][:2]
    with pytest.raises(ModuleNotFoundError, match=rf"{missing}.*checkout \(git clone\).*make lab"):
        exec("\n".join(code), {})


# The rules' own test; good notebooks are there.

LINES = "\n".join(f"{line}  # what it is" for line in PARAMETERS)


def test_a_notebook_that_breaks_all_other_rules_is_told_of_each(tmp_path: Path):
    code = new_code_cell("seeds = 1\n" * 221, metadata={"execution": {}})
    other = {"kernelspec": {"name": "mine", "display_name": "mine"}, "papermill": {}}
    bad = new_notebook(cells=[code, *[new_markdown_cell("x") for _ in range(44)]], metadata=other)
    bad.metadata.language_info = {"name": "python", "version": "3"}
    nbformat.write(bad, tmp_path / "bad.ipynb")
    found = "; ".join(complaints(tmp_path / "bad.ipynb"))
    for said in (
        "not python3", "version of Python", "traces of papermill", "traces of execution",
        "tagged parameters", "assigns seeds", "45 cells", "221 lines", "tagged nbval", "count None",
    ):  # fmt: skip
        assert said in found


def test_a_notebook_saved_in_jupyterlab_keeps_the_rules():
    """`make lab` saves without what JupyterLab adds to the metadata of a notebook and its cells."""
    tidied = runpy.run_path(str(paths.ROOT / "docs" / "lab.py"))["tidied"]
    path = min(paths.notebooks().glob("*.ipynb"))
    kept = nbformat.read(path, as_version=4)
    saved = nbformat.from_dict(kept)
    saved.metadata = {**kept.metadata, "widgets": {}, "language_info": {"version": "3.12"}}
    for cell in saved.cells:
        cell.metadata = {**cell.metadata, "execution": {"iopub": ""}, "editable": True}
    before = [complaint for complaint in _of_metadata(saved)]
    tidied({"type": "notebook", "content": saved})
    assert before and not _of_metadata(saved) and saved == kept


def test_a_notebook_that_was_only_run_in_jupyterlab_is_saved_as_it_was():
    tidied = runpy.run_path(str(paths.ROOT / "docs" / "lab.py"))["tidied"]
    path = min(paths.notebooks().glob("*.ipynb"))
    kept, saved = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in saved.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], 99
    edited = copy.deepcopy(saved)
    edited.cells[-1].source += "!"
    for notebook in (saved, edited):
        tidied({"type": "notebook", "content": notebook}, path=str(path.relative_to(paths.ROOT)))
    assert saved == kept and all(c.get("execution_count", 99) == 99 for c in edited.cells)


def test_links_of_notebooks_and_texts_lead_to_files():
    """Those within the project, from the folder in which the text lies."""
    folders = (".", "docs", "benchmarks", "examples/*")
    pages = [page for folder in folders for page in paths.ROOT.glob(f"{folder}/*.md")]
    texts = {path: path.read_text() for path in pages}
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        texts[path] = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    links = [(p, link) for p, text in texts.items() for link in re.findall(r"\]\(([^)#\s]+)", text)]
    near = [(path, link) for path, link in links if not link.startswith(("http", "mailto"))]
    assert len(near) > 100
    assert [(p.name, link) for p, link in near if not (p.parent / link).exists()] == []
