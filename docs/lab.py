"""JupyterLab's settings for `make lab`: it serves the checkout, and saves as is kept.

What a notebook is saved with beyond its cells and outputs (the version of Python, states of
widgets, times of executions) differs between machines, and `make check` refuses it. A notebook that
was only run keeps the outputs that it is stored with, which the site shows.
"""

from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
KEPT = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tidied(model, path="", **_):
    """Take out of a notebook what is about to be saved and is of this machine only."""
    if model["type"] == "notebook" and model["content"]:
        model["content"]["metadata"] = dict(KEPT)
        for cell in model["content"]["cells"]:
            tags, folded = cell["metadata"].get("tags"), _is_folded(cell)
            cell["metadata"] = {"tags": tags} if tags else {}
            cell["metadata"] |= {"jupyter": {"source_hidden": True}} if folded else {}
        if path and (ROOT / path).is_file():
            _keep_outputs(model["content"]["cells"], nbformat.read(ROOT / path, as_version=4).cells)


def _is_folded(cell):
    """Return whether a cell's code is hidden, as that of parameters and imports is."""
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def _keep_outputs(cells, stored):
    """Give cells their stored outputs, unless a cell was edited, added or removed."""
    if [cell["source"] for cell in cells] != [cell["source"] for cell in stored]:
        return
    for cell, before in zip(cells, stored, strict=True):
        for key in {"outputs", "execution_count"} & before.keys():
            cell[key] = before[key]


if "get_config" in globals():  # read by JupyterLab
    settings = get_config()  # noqa: F821
    settings.ServerApp.root_dir = str(ROOT)
    settings.FileContentsManager.pre_save_hook = tidied
