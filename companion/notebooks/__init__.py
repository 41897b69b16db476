"""Runs the notebooks: `python -m companion.notebooks figures` or `refresh`.

papermill executes a notebook and nothing more: it passes parameters of any name and type,
keeps no order and knows no other notebook. What is added here: parameters are checked before
anything runs (`parameters`), notebooks run side by side, one process each, and the first
failure stops them all (`processes`), and what an executed copy says is read, or written back
to its source (`copies`).
"""

from companion.notebooks.copies import Failure
from companion.notebooks.parameters import check, select
from companion.notebooks.processes import run

__all__ = ["Failure", "check", "run", "select"]
