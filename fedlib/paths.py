"""Where things are kept: absolute folders, each with an environment variable.

Notebooks are run from several working directories (JupyterLab, papermill, nbval), so no
path may depend on the current one. Folders are named here, and created by whoever writes.
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
    if os.path.isfile(place):  # False, too, for a folder that one may not look into
        raise NotADirectoryError(f"{variable}: {place} is a file, and no folder")
    if given:  # a relative one stays where it was read first, for processes that are started, too
        os.environ[variable] = str(place)
    return place


def notebooks() -> Path:
    """The source notebooks: `$FEDLIB_NOTEBOOKS`, else `ROOT/notebooks`."""
    return _folder("FEDLIB_NOTEBOOKS", ROOT / "notebooks")


def build() -> Path:
    """Executed copies of the notebooks, by scale: `$FEDLIB_BUILD`, else `ROOT/build`."""
    return _folder("FEDLIB_BUILD", ROOT / "build")


def figures() -> Path:
    """Figures and the numbers behind them, by scale: `$FEDLIB_FIGURES`, else `ROOT/figures`."""
    return _folder("FEDLIB_FIGURES", ROOT / "figures")


def runs() -> Path:
    """The store of training runs, one folder each: `$FEDLIB_RUNS`, else `ROOT/runs`."""
    return _folder("FEDLIB_RUNS", ROOT / "runs")


def results() -> Path:
    """Exported runs that are kept with the project: `$FEDLIB_RESULTS`, else `ROOT/results`."""
    return _folder("FEDLIB_RESULTS", ROOT / "results")


def cache() -> Path:
    """Decoded data sets: `$FEDLIB_CACHE`, else `fedlib` in the user's cache folder."""
    if os.environ.get("FEDLIB_CACHE"):
        return _folder("FEDLIB_CACHE", ROOT)
    try:  # a user of a container may have no home
        return _folder("XDG_CACHE_HOME", Path("~/.cache")) / "fedlib"
    except RuntimeError as error:
        raise RuntimeError(f"{error}: set FEDLIB_CACHE to a folder that can be written") from error
