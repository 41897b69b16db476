"""What the papers' settings share: three scales side by side, and the digits of the quick one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from companion.sections import SCALES, Setting
from fedlib.models import MLP, LeNet
from fedlib.partition import Mirrored, Own, Request
from fedlib.tasks import Task

S = TypeVar("S", bound=Setting)
Row = tuple[Any, ...]
Known = Mapping[str, Mapping[str, Setting]]  # by scale and data set, as a section has it

# 1,437 training and 360 test digits, 36 per class: parts must be small.
FEW = Mirrored(pool=200, validation=20, test=30)
OWN_FIFTH = Own(test=0.2, validation=0.1)
OWN_TENTHS = Own(test=0.1, validation=0.1)
SMALL = LeNet(channels=(8, 8), hidden=(32,))


def digits(partition: Request, held_out: Mirrored | Own = FEW) -> Task:
    """Return a quick task; small dense nets of all clients share a program."""
    return Task("digits", partition, MLP((32,)), held_out)


def scaled(scale: str, *, quick: Task | None, standard: Task, paper: Task) -> Task | None:
    """Return the task of a scale; texts have no quick one."""
    return {"quick": quick, "standard": standard, "paper": paper}[scale]


def side_by_side(kind: type[S], names: Row, rows: Mapping[str, Row]) -> dict[str, dict[str, S]]:
    """Return settings by scale, of which ``rows`` have each field at quick, standard and paper.

    ``names`` are those of the data set at the three scales, None where it has no such scale.
    """
    return {
        scale: {name: kind(**{field: row[i] for field, row in rows.items()})} if name else {}
        for i, (scale, name) in enumerate(zip(SCALES, names, strict=True))
    }


def merged(*known: Known) -> Known:
    """Return the settings of several data sets."""
    return {scale: {n: s for each in known for n, s in each[scale].items()} for scale in SCALES}


def with_seeds(known: Known, scale: str, seeds: int) -> Known:
    """Return settings with another number of seeds at one scale."""
    return {**known, scale: {n: replace(s, seeds=seeds) for n, s in known[scale].items()}}
