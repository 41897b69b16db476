"""Hostile hyper-parameters: every field of every value is refused by name, or the value is one.

Every field of every public value is given numbers (negative, zero, not finite, huge), texts,
containers, arrays and objects. It must refuse by name with a ValueError or a TypeError, or be a
value that prints as code, has a key and reads back from code and from JSON.
"""

import dataclasses
import importlib
import json
import types
import typing
from typing import Any

import numpy as np
import torch

from benchmarks.robustness.plan import Plan, Row
from fedlib import values
from fedlib.algorithms import FedAvg
from fedlib.models import MLP, Architecture, FromFunction
from fedlib.partition import IID, Partitioner
from fedlib.values import as_code, from_code, from_dict, key_of, to_dict
from papers.adaptive.tuning import Choice

PACKAGES = ("fedlib", "companion", "papers")
HUGE = (2**63, -(2**64), 10**400, 10**5000, 1e308, 1e-320)
NUMBERS = (-1, 0, -0.0, -0.5, 1.5, float("nan"), float("inf"), -float("inf"), True, False)
OTHERS: tuple[Any, ...] = (
    "", "x", "os.system", "\ud800", b"x", None, (), [], {}, [[]], (None,), ("",), (-1,),
    (float("nan"),), ((1, 2), (3,)), {"kind": "FedAvg"}, 1j, object(), FedAvg, len, "x" * 10_000,
    {1, 2}, np.float64(0.5), np.array([0.1, 0.2]), torch.tensor(0.5),
)  # fmt: skip
HOSTILE = (*NUMBERS, *HUGE, *OTHERS)
# Values of the classes that fields ask for.
PLAIN: dict[Any, Any] = {
    FedAvg: FedAvg(),
    Architecture: MLP((4,)),
    FromFunction: FromFunction("torch.nn:Identity"),
    Partitioner: IID(3),
}


def kinds() -> list[type]:
    """Return every value dataclass of the three packages, sorted by name."""
    importlib.import_module("papers.registry")  # registers all of them
    ours = [c for c in values._KINDS.values() if c.__module__.partition(".")[0] in PACKAGES]
    return sorted(ours, key=lambda c: c.__name__)


def plain(cls: type) -> Any:
    """Return a value of a kind: its defaults, and something small for each field without one."""
    if cls in PLAIN:
        return PLAIN[cls]
    hints = typing.get_type_hints(cls)
    needed = [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    return cls(**{f.name: _small(hints[f.name], i + 1) for i, f in enumerate(needed)})


def _small(hint: Any, number: int) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        items = [item for item in typing.get_args(hint) if item is not Ellipsis]
        return tuple(_small(item, number) for item in items)
    simple = {int: number, float: float(number), str: "digits", bool: True, Any: Choice((1,))}
    return simple[hint] if hint in simple else plain(hint)


def fields() -> list[tuple[type, str]]:
    """Return every field of every kind."""
    return [(cls, f.name) for cls in kinds() for f in dataclasses.fields(cls)]


def judged(cls: type, name: str, hostile: Any) -> str:
    """Return how a field reacts to a hostile value; "!" marks a broken promise."""
    try:
        said = repr(hostile)[:40]
    except ValueError:  # an integer with too many digits
        said = type(hostile).__name__
    base = plain(cls)
    try:
        item = dataclasses.replace(base, **{name: hostile})
    except Exception as error:
        refused = isinstance(error, ValueError | TypeError) and name in str(error)
        broken = "" if refused and len(str(error)) < 20_000 else f": {error!r}"
    else:
        broken = _lost(item)
        refused = False
    if broken:
        return f"!{cls.__name__}({name}={said}){broken}"[:300]
    return "refused by name" if refused else "accepted, and reads back the same"


def _lost(item: Any) -> str:
    """Return "" if a value prints as its code, has a key, and can be read back; else what fails."""
    try:
        written = json.dumps(to_dict(item), allow_nan=False)
        again = (from_code(as_code(item)), from_dict(json.loads(written)))
        keys = {key_of(i, version=1) for i in (item, *again)}
        hash(item)
    except Exception as error:
        return f" is a value, but {error!r}"
    same = all(i == item and type(i) is type(item) for i in again) and len(keys) == 1
    return "" if same else " reads back as another value"


def measure(plan: Plan) -> list[Row]:
    """Assign every hostile value to every field."""
    row = Row(f"hostile values in {len(fields())} fields of {len(kinds())} kinds of value")
    for cls, name in fields():
        for hostile in HOSTILE:
            row.note(judged(cls, name, hostile))
    return [row]
