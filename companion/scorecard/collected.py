"""The verdicts that notebooks have written, one per claim."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from companion.sections import SCALES
from fedlib import paths

LARGEST_FIRST = SCALES[::-1]
COLUMNS = ("notebook", "tested on", "claim", "source", "measured", "seeds", "verdict", "clear")


def collected(folder: Path | None = None) -> pd.DataFrame:
    """Return every claim that some notebook has tested: ``COLUMNS``.

    A claim that was tested on the same data at the same scale by runs of several scales' notebooks
    is taken from the largest. No rows where no notebook has been run.
    """
    home = folder or paths.figures()
    files = [f for scale in LARGEST_FIRST for f in sorted((home / scale).glob("*_claims.csv"))]
    parts = [pd.read_csv(f, keep_default_na=False).assign(notebook=_notebook(f)) for f in files]
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat(parts, ignore_index=True)
    unique = rows.drop_duplicates(["notebook", "tested on", "claim"])
    order = ["notebook", "tested on"]
    return unique.sort_values(order, kind="stable")[list(COLUMNS)].reset_index(drop=True)


def _notebook(file: Path) -> str:
    """Return the name of the notebook that wrote a file "NN_claims.csv"."""
    number = file.name[:2]
    there = sorted((paths.ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    return there[0].stem if there else number
