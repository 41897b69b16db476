"""Whether two executions tell the same verdicts, as far as rounding lets them.

Training amplifies the last bit of a float, so that a processor with other instructions trains
other models of the same quality, and an interval near its boundary may come near enough to be
told as a close call, or cease to be one. A clear verdict must not turn into another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from companion.claims import CLOSE, FAILS, HOLDS, Told

_ANEW = "(quick)"  # in the name of a place: runs of the other scales are stored with the project


def contradictions(old: Sequence[Told], new: Sequence[Told]) -> list[str]:
    """Return what two executions tell that both cannot be true, one line each; empty if nothing.

    Beside another verdict that is a claim that only one of them tests.
    """
    before, after = _by_claim(old), _by_claim(new)
    found = [f"{where}: {claim} is tested no longer" for where, claim in before.keys() - after]
    found += [f"{where}: {claim} was not tested" for where, claim in after.keys() - before]
    return sorted(found) + [line for line, near in _changed(before, after) if not near]


def moved(old: Sequence[Told], new: Sequence[Told]) -> list[str]:
    """Return the claims that are a close call in only one of two executions, one line each.

    Only where runs are trained anew: stored ones give the same numbers everywhere.
    """
    return [line for line, near in _changed(_by_claim(old), _by_claim(new)) if near]


def trained(told: Sequence[Told]) -> int:
    """Return the number of verdicts on runs that every execution trains anew."""
    return sum(_ANEW in where for where, _, _ in told)


def _by_claim(told: Sequence[Told]) -> dict[tuple[str, str], str]:
    return {(where, claim): verdict for where, claim, verdict in told}


def _changed(
    before: dict[tuple[str, str], str], after: dict[tuple[str, str], str]
) -> Iterator[tuple[str, bool]]:
    """Yield what changed as a line, and whether it only came near its boundary or left it."""
    for (where, claim), old in before.items():
        new = after.get((where, claim), old)
        if new != old:
            near = _ANEW in where and CLOSE in (old, new) and {old, new} <= {CLOSE, HOLDS, FAILS}
            yield f"{where}: {claim}: was {old!r}, is {new!r}", near
