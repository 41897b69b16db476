"""The verdicts that the notebooks store, compared with those of an execution elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nbformat
import pandas as pd

from companion.agreement import contradictions, moved, trained
from companion.claims import Told, printed, told

MOST_MOVED = 0.05
"""The share of trained verdicts that may become a close call, or cease to be one, by chance."""


def compare(notebooks: Sequence[Path], drawn: Path) -> bool:
    """Print in what the claims in the folder ``drawn`` differ from what the notebooks have printed.

    Returns whether they agree: none contradicts, and few have come near their boundary.
    """
    wrong: list[str] = []
    near: list[str] = []
    count = anew = 0
    for notebook in notebooks:
        old = stored(notebook)
        if not old:
            continue
        number = notebook.name[:2]
        count, anew = count + len(old), anew + trained(old)
        new = _claims(drawn / f"{number}_claims.csv")
        wrong += [f"{number}, {line}" for line in contradictions(old, new)]
        near += [f"{number}, {line}" for line in moved(old, new)]
    for line in near:
        print(f"near its boundary: {line}")
    for line in wrong:
        print(f"contradiction: {line}")
    agree = not wrong and len(near) <= MOST_MOVED * anew
    print(
        f"{count} verdicts, {anew} of them on runs trained anew: {len(wrong)} contradict those "
        f"stored, {len(near)} came near their boundary or left it ({MOST_MOVED:.0%} of those "
        f"trained anew may): {'they agree' if agree else 'THEY DO NOT AGREE'}"
    )
    return agree


def stored(notebook: Path) -> list[Told]:
    """Return the verdicts that a notebook has printed, where it has a cell that prints them."""
    cells = nbformat.read(notebook, as_version=4).cells
    tellers = [c for c in cells if c.cell_type == "code" and "print_verdicts(" in c.source]
    return printed("".join(o.get("text", "") for c in tellers for o in c.outputs))


def _claims(file: Path) -> list[Told]:
    if not file.exists():
        return []
    words = dict.fromkeys(("tested on", "claim", "verdict"), str)
    return told(pd.read_csv(file, keep_default_na=False, dtype=words))
