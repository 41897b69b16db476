"""JupyterLab's settings for `make lab`: it serves the checkout, and saves as is kept.

What a notebook is saved with beyond its cells and outputs (the version of Python, states of
widgets, times of executions) differs between machines, and `make check` refuses it.
"""

from pathlib import Path

KEPT = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tidied(model, **_):
    """Take out of a notebook what is about to be saved and is of this machine only."""
    if model["type"] == "notebook" and model["content"]:
        model["content"]["metadata"] = dict(KEPT)
        for cell in model["content"]["cells"]:
            tags = cell["metadata"].get("tags")
            cell["metadata"] = {"tags": tags} if tags else {}


if "get_config" in globals():  # read by JupyterLab
    settings = get_config()  # noqa: F821
    settings.ServerApp.root_dir = str(Path(__file__).parents[1])
    settings.FileContentsManager.pre_save_hook = tidied
