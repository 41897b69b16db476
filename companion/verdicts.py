"""The verdicts that are stored with the notebooks, and whether another execution tells the same.

Training amplifies the last bit of a float, so that a processor with other instructions trains
other models of the same quality, and an interval near its boundary may come near enough to be
told as a close call, or cease to be one. A clear verdict must not turn into another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from companion.claims import CLOSE, FAILS, HOLDS, Told, told
from fedlib import paths

MOST_MOVED = 0.05
"""The share of trained verdicts that may become a close call, or cease to be one, by chance."""
COLUMNS = ("notebook", "tested on", "claim", "verdict", "clear")
_ANEW = "(quick)"  # in the name of a place: runs of the other scales are stored with the project


def file() -> Path:
    """Return the table of stored verdicts; `make notebooks` writes it."""
    return paths.notebooks() / "verdicts.csv"


def stored() -> pd.DataFrame:
    """Return the stored verdicts: ``COLUMNS``, the notebook by its number ("07")."""
    return _read(file()) if file().exists() else pd.DataFrame(columns=list(COLUMNS))


def drawn(folder: Path) -> pd.DataFrame:
    """Return the verdicts that notebooks have written into a folder of figures."""
    files = sorted(folder.glob("[0-9][0-9]_claims.csv"))
    parts = [_read(one).assign(notebook=one.name[:2]) for one in files]
    return pd.concat(parts)[list(COLUMNS)] if parts else pd.DataFrame(columns=list(COLUMNS))


def keep(notebook: Path, folder: Path) -> None:
    """Store the verdicts that an executed notebook has just written in place of its old ones."""
    old, new, number = stored(), drawn(folder), notebook.name[:2]
    there = {path.name[:2] for path in paths.notebooks().glob("*.ipynb")} - {number}
    parts = [old[old["notebook"].isin(there)], new[new["notebook"] == number]]
    rows = pd.concat(parts).sort_values("notebook", kind="stable")
    if len(rows) or len(old):
        scratch = file().with_suffix(".writing")
        rows.to_csv(scratch, index=False, lineterminator="\n")
        scratch.replace(file())


def compare(folder: Path) -> bool:
    """Print in what the verdicts in a folder of figures differ from the stored ones.

    Returns whether they agree: none contradicts, and few have come near their boundary.
    """
    old, new = (
        told(table.assign(**{"tested on": table["notebook"] + ", " + table["tested on"]}))
        for table in (stored(), drawn(folder))
    )
    anew = trained(old)
    wrong, near = changed(old, new)
    for line in near:
        print(f"near its boundary: {line}")
    for line in wrong:
        print(f"contradiction: {line}")
    agree = not wrong and len(near) <= MOST_MOVED * anew
    print(
        f"{len(old)} verdicts, {anew} of them on runs trained anew: {len(wrong)} contradict those "
        f"stored, {len(near)} came near their boundary or left it ({MOST_MOVED:.0%} of those "
        f"trained anew may): {'they agree' if agree else 'THEY DO NOT AGREE'}"
    )
    return agree


def changed(old: Sequence[Told], new: Sequence[Told]) -> tuple[list[str], list[str]]:
    """Return what two executions tell that both cannot be true, and what only came near, as lines.

    The former are another verdict, and a claim that only one of them tests. The latter are a close
    call in only one of them, where runs are trained anew: stored ones give the same numbers
    everywhere.
    """
    before, after = ({(where, claim): v for where, claim, v in told} for told in (old, new))
    wrong: list[str] = []
    near: list[str] = []
    for where, claim in sorted(before.keys() | after.keys()):
        was, now = before.get((where, claim)), after.get((where, claim))
        if was is None or now is None:
            said = "was not tested" if was is None else "is tested no longer"
            wrong.append(f"{where}: {claim} {said}")
        elif was != now:
            close = _ANEW in where and CLOSE in (was, now) and {was, now} <= {CLOSE, HOLDS, FAILS}
            (near if close else wrong).append(f"{where}: {claim}: was {was!r}, is {now!r}")
    return wrong, near


def trained(told: Sequence[Told]) -> int:
    """Return the number of verdicts on runs that every execution trains anew."""
    return sum(_ANEW in where for where, _, _ in told)


def _read(table: Path) -> pd.DataFrame:
    words = dict.fromkeys(COLUMNS[:-1], str)
    return pd.read_csv(table, keep_default_na=False, dtype=words)
