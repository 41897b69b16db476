"""Folders of data and results, as absolute paths; an environment variable can change each.

Notebooks are run from several working directories (JupyterLab, papermill, nbval), so no path may
depend on the current one. Folders are not created here, but when something is written.
"""

import os
from pathlib import Path

_PARENT = Path(__file__).resolve().parent.parent

IN_CHECKOUT: bool = (_PARENT / "pyproject.toml").is_file()
ROOT: Path = _PARENT if IN_CHECKOUT else Path.cwd()
"""The checkout that holds the package, or the working directory of an installed copy."""


def _folder(variable: str, default: Path) -> Path:
    given = os.environ.get(variable)
    place = Path(given or default).expanduser().absolute()
    if os.path.isfile(place):  # unlike Path.is_file, False for a folder without permission
        raise NotADirectoryError(f"{variable}: {place} is a file, not a folder")
    if given:  # a relative path must not change with the working directory or in child processes
        os.environ[variable] = str(place)
    return place


def notebooks() -> Path:
    """Return the folder of source notebooks: `$FEDLIB_NOTEBOOKS`, else `ROOT/notebooks`."""
    return _folder("FEDLIB_NOTEBOOKS", ROOT / "notebooks")


def build() -> Path:
    """Return the folder of executed notebooks, by scale: `$FEDLIB_BUILD`, else `ROOT/build`."""
    return _folder("FEDLIB_BUILD", ROOT / "build")


def figures() -> Path:
    """Return the folder of figures and their data, by scale: `$FEDLIB_FIGURES`, else `figures`."""
    return _folder("FEDLIB_FIGURES", ROOT / "figures")


def runs() -> Path:
    """Return the folder of training runs, one folder each: `$FEDLIB_RUNS`, else `ROOT/runs`."""
    return _folder("FEDLIB_RUNS", ROOT / "runs")


def results() -> Path:
    """Return the folder of exported results: `$FEDLIB_RESULTS`, else `ROOT/results`."""
    return _folder("FEDLIB_RESULTS", ROOT / "results")


def cache() -> Path:
    """Return the folder of cached datasets: `$FEDLIB_CACHE`, else `fedlib` in the user's cache.

    Raises:
        RuntimeError: if there is neither the variable nor a home folder.
    """
    if os.environ.get("FEDLIB_CACHE"):
        return _folder("FEDLIB_CACHE", ROOT)
    try:  # the user of a container may have no home folder
        return _folder("XDG_CACHE_HOME", Path("~/.cache")) / "fedlib"
    except RuntimeError as error:
        raise RuntimeError(f"{error}: set FEDLIB_CACHE to a folder that can be written") from error
