"""Experiments are values: frozen dataclasses that check themselves, print as code and have a key.

A value is written down by the fields that differ from their defaults, so that adding an option
with a default leaves every existing key alone. The price is a rule: a default never changes its
meaning (``tests/test_values.py`` keeps the list).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

_KINDS: dict[str, type] = {}
_PLAIN = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass whose fields are type-checked and whose repr is code.

    A method ``check(self)``, where there is one, runs after the type checks and raises
    ValueError for a value out of range.
    """
    cls.__post_init__ = _validate  # type: ignore[attr-defined]
    cls.__repr__ = as_code  # type: ignore[assignment]
    made = dataclasses.dataclass(frozen=True, repr=False)(cls)
    _KINDS[cls.__name__] = made
    return made


def suggest(name: str, known: Iterable[str]) -> str:
    """Finish an error message: the legal names, and the nearest one to ``name`` if any."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"allowed: {', '.join(names)}{hint}"


def one_of(what: str, given: str, known: Iterable[str]) -> None:
    """Raise ValueError naming ``what``, the value given and the legal ones, unless it is legal."""
    names = tuple(known)
    if given not in names:
        raise ValueError(f"unknown {what} {given!r}; {suggest(given, names)}")


def as_code(item: Any) -> str:
    """Return the Python expression that makes ``item``, without the fields left at their default."""
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return repr(item)
    fields = ", ".join(f"{name}={as_code(v)}" for name, v in _told(item))
    return f"{type(item).__name__}({fields})"


def to_dict(item: Any) -> Any:
    """Return ``item`` as JSON-able data; a value becomes ``{"kind": ..., told fields}``."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {"kind": type(item).__name__, **{n: to_dict(v) for n, v in _told(item)}}
    if isinstance(item, tuple | list):
        return [to_dict(v) for v in item]
    return item


def from_dict(data: Any) -> Any:
    """Rebuild what ``to_dict`` wrote; unknown kinds and fields raise ValueError. Runs no code."""
    if isinstance(data, list):
        return tuple(from_dict(v) for v in data)
    if not isinstance(data, dict):
        return data
    rest = dict(data)
    kind = rest.pop("kind", None)
    one_of("kind of value", str(kind), _KINDS)
    cls = _KINDS[str(kind)]
    legal = [f.name for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
    for name in rest:
        one_of(f"field of {kind}", name, legal)
    return cls(**{n: from_dict(v) for n, v in rest.items()})


def key_of(item: Any, *, version: int) -> str:
    """Return the 16-hex-digit name of a value, the same on every machine."""
    text = json.dumps([version, to_dict(item)], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _told(item: Any) -> list[tuple[str, Any]]:
    told = []
    for field in dataclasses.fields(item):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        now = getattr(item, field.name)
        if default is dataclasses.MISSING or now != default:
            told.append((field.name, now))
    return told


def _validate(self: Any) -> None:
    hints = typing.get_type_hints(type(self))
    for field in dataclasses.fields(self):
        _check_plain(self, field.name, hints[field.name])
    if hasattr(self, "check"):
        self.check()


def _check_plain(self: Any, name: str, hint: Any) -> None:
    given = getattr(self, name)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    allowed = typing.get_args(hint) if union else (hint,)
    if given is None and type(None) in allowed:
        return
    plain = [_PLAIN[t] for t in allowed if t in _PLAIN]
    if not plain or len(plain) != len([t for t in allowed if t is not type(None)]):
        return
    legal = {t for group in plain for t in group}
    where = f"{type(self).__name__}.{name}"
    if type(given) not in legal:
        names = " or ".join(sorted(t.__name__ for t in legal))
        raise TypeError(f"{where} must be {names}, got {given!r} ({type(given).__name__})")
    if isinstance(given, float) and not math.isfinite(given):
        raise ValueError(f"{where} must be finite, got {given!r}")
    if type(given) is int and float in allowed and int not in allowed:
        object.__setattr__(self, name, float(given))  # 1 and 1.0 are one value with one key
