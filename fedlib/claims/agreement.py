"""Whether two executions tell the same verdicts, as far as rounding lets them.

Training amplifies the last bit of a float, so that a processor with other instructions trains
other models of the same quality, and an interval near its boundary may come near enough to be
told as a close call, or cease to be one. A clear verdict must not turn into another.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedlib.claims.rule import CLOSE, FAILS, HOLDS, Told

_ANEW = "(quick)"  # in the name of a place: runs of the other scales are stored with the project


def contradictions(old: Sequence[Told], new: Sequence[Told]) -> list[str]:
    """Return what two executions tell that both cannot be true, one line each; empty if nothing.

    Beside another verdict that is a claim that only one of them tests.
    """
    before, after = _by_claim(old), _by_claim(new)
    found = [f"{key} is tested no longer" for key in before.keys() - after.keys()]
    found += [f"{key} was not tested" for key in after.keys() - before.keys()]
    changed = _changed(before, after)
    return sorted(found) + [_line(*c) for c in changed if not _near(*c)]


def moved(old: Sequence[Told], new: Sequence[Told]) -> list[str]:
    """Return the claims that are a close call in only one of two executions, one line each."""
    return [_line(*c) for c in _changed(_by_claim(old), _by_claim(new)) if _near(*c)]


def trained(told: Sequence[Told]) -> int:
    """Return the number of verdicts on runs that every execution trains anew."""
    return sum(_ANEW in where for where, _, _ in told)


def _by_claim(told: Sequence[Told]) -> dict[str, str]:
    return {f"{where}: {claim}": verdict for where, claim, verdict in told}


def _changed(before: dict[str, str], after: dict[str, str]) -> list[tuple[str, str, str]]:
    return [(k, v, after[k]) for k, v in before.items() if k in after and v != after[k]]


def _near(key: str, before: str, after: str) -> bool:
    """Whether a verdict has come near its boundary or left it, on runs that are trained anew."""
    return _ANEW in key and CLOSE in (before, after) and {before, after} <= {CLOSE, HOLDS, FAILS}


def _line(key: str, before: str, after: str) -> str:
    return f"{key}: was {before!r}, is {after!r}"
