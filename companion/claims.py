"""A paper's claims, tested on runs: verdicts are computed, never typed.

The rule. A claim is an inequality about one number per seed. Its 95% Student interval over the
seeds decides: wholly on the claim's side it ``holds``, wholly on the other it ``does not hold``,
and an interval that contains the boundary leaves it ``undecided``. With fewer than three seeds it
is ``not tested at this scale``.

Verdicts are stored with the notebooks, and compared with what another execution tells. Training
amplifies the last bit of a float, so that a processor with other instructions trains other models
of the same quality, and an interval near its boundary may come near enough to be told as a close
call, or cease to be one. A clear verdict must not turn into another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from companion.frames import LEAST_SEEDS, interval
from fedlib import paths

HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "undecided", "not tested at this scale"
CLOSE = "close call, see table"
POINT = 0.01  # accuracies that differ by less than a percentage point count as the same
BySeed = Mapping[int, float]
Told = tuple[str, str, str]
MOST_MOVED = 0.05
"""The share of trained verdicts that may become a close call, or cease to be one, by chance."""
COLUMNS = ("notebook", "tested on", "claim", "verdict", "clear")
_ANEW = "(quick)"  # in the name of a place: runs of the other scales are stored with the project


@dataclass(frozen=True)
class Claim:
    """One claim: what the paper says, where, what was measured, and the verdict.

    ``clear`` is false for a close call: the interval ends within half its width of the boundary, so
    that another machine's rounding might give another verdict.
    """

    text: str
    source: str
    measured: str
    verdict: str
    seeds: int
    clear: bool = True


def above(text: str, source: str, values: BySeed | Sequence[float], bound: float) -> Claim:
    """Test that a number, one per seed, lies above ``bound``."""
    return _judge(text, source, values, bound, sign=1)


def below(text: str, source: str, values: BySeed | Sequence[float], bound: float) -> Claim:
    """Test that a number, one per seed, lies below ``bound``."""
    return _judge(text, source, values, bound, sign=-1)


def greater(text: str, source: str, a: BySeed, b: BySeed) -> Claim:
    """Test a > b on the same seeds, by the paired differences."""
    claim, seeds = above(text, source, differences(a, b), 0.0), sorted(a.keys() & b.keys())
    if not seeds:
        return claim
    first, second = (interval([side[s] for s in seeds])[0] for side in (a, b))
    return replace(claim, measured=f"{first:.3f} vs {second:.3f}; difference {claim.measured}")


def on_par(text: str, source: str, a: BySeed, b: BySeed) -> Claim:
    """Test that a is at most one percentage point below b on the same seeds."""
    return above(text, source, differences(a, b), -POINT)


def alike(text: str, source: str, a: BySeed, b: BySeed) -> Claim:
    """Test that a and b differ by less than a percentage point either way on the same seeds.

    It holds if the interval lies within the margin and does not if it lies wholly outside.
    """
    high, low = below(text, source, differences(a, b), POINT), on_par(text, source, a, b)
    found = {side.verdict for side in (high, low)}
    verdict = next(v for v in (UNTESTED, FAILS, OPEN, HOLDS) if v in found)
    measured = high.measured.partition(" (asked")[0] + f" (asked: within {POINT:g} of 0)"
    clear = all(side.clear for side in (high, low) if side.verdict == verdict)
    return Claim(text, source, measured, verdict, high.seeds, clear)


def differences(a: BySeed, b: BySeed) -> list[float]:
    """Return a - b on every seed that both have, seeds in order."""
    return [a[s] - b[s] for s in sorted(a.keys() & b.keys())]


def equal(text: str, source: str, measured: object, expected: object) -> Claim:
    """Test an identity that no seed can change: a count, or the same bits."""
    said = f"{measured} (asked: {expected})"
    return Claim(text, source, said, HOLDS if measured == expected else FAILS, 0)


def table(claims: Mapping[str, Sequence[Claim]]) -> pd.DataFrame:
    """Return claims by where they were tested (data set and scale) as a frame for a notebook."""
    rows = [{"tested on": where, **vars(c)} for where, tested in claims.items() for c in tested]
    names = ["tested on", "text", "source", "measured", "seeds", "verdict", "clear"]
    return pd.DataFrame(rows, columns=names).rename(columns={"text": "claim"})


def told(frame: pd.DataFrame) -> list[Told]:
    """Return where, claim and verdict of each row, close calls as such: what a reader is told."""
    verdicts = frame["verdict"].where(frame["clear"].astype(bool), CLOSE)
    return list(zip(frame["tested on"], frame["claim"], verdicts, strict=True))


def _judge(
    text: str, source: str, numbers: BySeed | Sequence[float], bound: float, sign: int
) -> Claim:
    values = [*(numbers.values() if isinstance(numbers, Mapping) else numbers)]
    if not values:
        return Claim(text, source, "no runs", UNTESTED, 0)
    mean, low, high = interval(values)
    asked = f"(asked: {'>' if sign > 0 else '<'} {bound:.3g})"
    if len(values) < LEAST_SEEDS:
        return Claim(text, source, f"{mean:.3f} {asked}", UNTESTED, len(values))
    near, far = (low, high) if sign > 0 else (-high, -low)
    edge = sign * bound
    verdict = HOLDS if near > edge else FAILS if far < edge else OPEN
    clear = min(abs(near - edge), abs(far - edge)) > (high - low) / 2
    measured = f"{mean:.3f} [{low:.3f}, {high:.3f}] {asked}"
    return Claim(text, source, measured, verdict, len(values), clear)


# What notebooks have told, and whether another execution tells the same.


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
