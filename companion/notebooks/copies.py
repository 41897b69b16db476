"""Executed copies of notebooks: why one failed, and its outputs written back to the source."""

import os
from pathlib import Path
from typing import Any

import nbformat

_ADDED_BY_PAPERMILL = {"injected-parameters", "papermill-error-cell-tag"}
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Failure(RuntimeError):
    """A notebook failed; the message says which, where and why."""


def count_cells(notebook: Path) -> int:
    """How many cells a notebook has."""
    return len(_read(notebook).cells)


def explain(copy: Path, log: Path) -> str:
    """Where and why a copy failed: the cell's number in its source, its first lines, the error.

    A kernel that died leaves no error in the notebook: the end of the log stands in for it.
    """
    number = 0
    for cell in _read(copy).cells if copy.exists() else []:
        if _ADDED_BY_PAPERMILL & set(cell.metadata.get("tags", [])):
            continue
        number += 1
        errors = [o for o in cell.get("outputs", []) if o.output_type == "error"]
        status = cell.metadata.get("papermill", {}).get("status")
        if cell.cell_type == "code" and (errors or status in ("running", "failed")):
            why = f"{errors[0].ename}: {errors[0].evalue}" if errors else _end_of(log)
            return f"in cell {number}\n{_first_lines(cell.source)}\n{why}"
    return f"before its first cell\n{_end_of(log)}"


def write_back(source: Path, copy: Path) -> None:
    """Give the cells of `source` the outputs and counts of its executed `copy`, atomically.

    What differs between two equal executions is left out: metadata of papermill and of the
    execution, names of kernels, and views of widgets, which are dead without a kernel.
    """
    notebook, executed = _read(source), _read(copy)
    if [c.source for c in notebook.cells] != [c.source for c in executed.cells]:
        raise Failure(f"{source.name} changed while it was executed: run it again")
    for cell, done in zip(notebook.cells, executed.cells, strict=True):
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.execution_count = done.execution_count
            cell.outputs = _kept(done.outputs)
    notebook.metadata = {"kernelspec": dict(_KERNEL), "language_info": {"name": "python"}}
    scratch = source.with_suffix(".writing")
    nbformat.write(notebook, scratch)
    os.replace(scratch, source)


def _kept(outputs: list[Any]) -> list[Any]:
    """Outputs without widgets, with the pieces of a printed stream joined.

    A stream is cut into pieces by the clock, so that equal runs would differ.
    """
    kept: list[Any] = []
    for output in outputs:
        if _WIDGET in output.get("data", {}):
            continue
        last = kept[-1] if kept else None
        if last and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            kept.append(output)
    return kept


def _read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4)


def _first_lines(source: str, most: int = 5) -> str:
    lines = source.strip().splitlines()
    shown = lines[:most] + (["..."] if len(lines) > most else [])
    return "\n".join(f"    {line}" for line in shown)


def _end_of(log: Path, lines: int = 8) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.strip().splitlines()[-lines:]) or "no message"
