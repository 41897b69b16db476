"""A paper's claims, tested on runs: verdicts are computed, never typed.

The rule. A claim is an inequality about one number per seed. Its 95% Student interval over the
seeds decides: wholly on the claim's side it ``holds``, wholly on the other it ``does not hold``,
and an interval that contains the boundary leaves it ``undecided``. With fewer than three seeds it
is ``not tested at this scale``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from companion.frames import LEAST_SEEDS, interval

HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "undecided", "not tested at this scale"
CLOSE = "close call, see table"
POINT = 0.01  # accuracies that differ by less than a percentage point count as the same
BySeed = Mapping[int, float]
Told = tuple[str, str, str]


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
