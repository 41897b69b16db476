"""Values: frozen dataclasses that check their fields, print as code, and have a key.

A value is stored by the fields that differ from their defaults, so that a new field with a default
changes no existing key. Therefore a default must never change its meaning
(``tests/fedlib/values.csv`` lists all defaults).
"""

import ast
import dataclasses
import difflib
import hashlib
import json
import math
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, overload

PACKAGES = ("fedlib", "fedrun")  # of the library, as opposed to user-defined code
_KINDS: dict[str, type] = {}
_BITS = 63  # largest size of an integer: enough for seeds, and accepted by all JSON readers
_MOST_SHOWN = 200  # number of characters of a value in an error message
_PLAIN = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
T = TypeVar("T")
# Types of fields with the interval of legal numbers.
PositiveInt = Annotated[int, ">= 1"]
NonNegativeInt = Annotated[int, ">= 0"]
PositiveFloat = Annotated[float, "> 0"]
NonNegativeFloat = Annotated[float, ">= 0"]
Share = Annotated[float, "[0, 1]"]
READING = ContextVar("READING", default=False)  # whether a value is read from untrusted text
ALLOWED = {"torchvision.models"}  # modules whose functions text may name; --import adds others


@overload
def value(cls: type[T]) -> type[T]: ...
@overload
def value(*, kind: str) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: Any = None, *, kind: str = "") -> Any:
    """Decorate a class as a frozen dataclass whose fields are type-checked and whose repr is code.

    The type of a field may include what is legal: ``PositiveInt``, ``Annotated[float, "[0, 1)"]``
    or ``Annotated[str, ("last", "best")]``. An interval applies to a number that is not None, or to
    all numbers of a tuple, which must not be empty. These limits are checked after the types, and
    then the method ``check(self)`` is called, of every class that has one, base classes first.

    Args:
        cls: a class with annotated fields. Fields may be numbers, texts, booleans, tuples of these,
            or values. Its attribute ``stored_as``, a dict, has the stored names of renamed fields,
            so that their keys do not change.
        kind: name of the class in stored specs, so that the class can be renamed. Default: the name
            of the class, or "module.name" if a class of the library has the same name.

    Returns:
        the decorated class.

    Raises:
        TypeError: if another class has the same kind, or a field has another type.

    >>> @value
    ... class Halved(FedAvg):
    ...     "FedAvg whose server takes half a step."
    ...     server: Optimizer = sgd(0.5)
    >>> Halved(epochs=2)
    Halved(epochs=2)
    """
    if cls is None:
        return partial(value, kind=kind)
    module, name = _place(cls)
    if not kind:
        taken = _is_ours(_KINDS.get(name, cls)) and not _is_ours(cls)
        kind = f"{module}.{cls.__name__}" if taken else cls.__name__
    other = _KINDS.get(kind, cls)
    if _place(other) != (module, name) and _is_ours(other) >= _is_ours(cls):
        where = ".".join(_place(other))
        raise TypeError(f"the kind {kind} is {where}: give {name} another, @value(kind=...)")
    cls.__post_init__, cls.__repr__, cls.__kind__ = _validate, as_code, kind
    made = dataclasses.dataclass(frozen=True, repr=False)(cls)
    _wrap_init(made)
    with suppress(NameError):  # a type that is defined later is checked when a value is made
        _require_types(made)
    _KINDS[kind] = made
    return made


def _wrap_init(cls: Any) -> None:
    """Accept old names of renamed fields as arguments, and suggest a name for an unknown one."""
    init, new = cls.__init__, {old: now for now, old in vars(cls).get("stored_as", {}).items()}
    known = [field.name for field in dataclasses.fields(cls) if field.init]

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        for old in given.keys() & new.keys():
            what = f"{cls.__name__}.{old} is {new[old]} now"
            warnings.warn(what, DeprecationWarning, stacklevel=2)
            given[new[old]] = given.pop(old)
        for name in given.keys() - known:
            if "__kind__" not in vars(type(self)):
                own = type(self).__name__
                raise TypeError(f"{own} has no argument {name!r}; decorate {own} with @value")
            rate = name.endswith(("lr", "learning_rate")) and "client" in known
            what = f"{cls.__name__} has no argument {name!r}; {suggest(name, known)}"
            raise TypeError(what + "; write client=sgd(lr)" * rate)
        init(self, *args, **given)

    if new or _is_ours(cls):  # the digest of a user-defined class would change
        cls.__init__ = wraps(init)(__init__)


def _require_types(cls: type) -> None:
    """Raise TypeError, with an alternative, for a field whose type is not supported."""
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        for kind in _unfit(hints[field.name]):
            of = ", ".join(getattr(part, "__name__", repr(part)) for part in typing.get_args(kind))
            instead = {
                list: f"tuple[{of or 'int'}, ...]",
                tuple: "tuple[int, ...]",
                dict: f"tuple[tuple[{of or 'str, int'}], ...]",
                typing.Literal: f"Annotated[str, ({of})]",
                Path: "str",
            }.get(typing.get_origin(kind) or kind)
            may = "a field may be int, float, str, bool, a tuple of these or a value"
            where = f"{cls.__name__}.{field.name} is {getattr(kind, '__name__', kind)}"
            raise TypeError(f"{where}: {may}{f'; write {instead}' if instead else ''}")


def _unfit(hint: Any) -> Iterator[Any]:
    """Yield the parts of an annotation whose types are not supported."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        for part in typing.get_args(hint):
            yield from _unfit(part)
    elif hint not in (Any, type(None), Ellipsis, *_PLAIN) and not dataclasses.is_dataclass(hint):
        yield hint


def former(old: str, new: str) -> Any:
    """Return a property for the former name of an attribute, which warns that it is ``new`` now."""

    def read(item: Any) -> Any:
        what = f"{type(item).__name__}.{old} is {new} now"
        warnings.warn(what, DeprecationWarning, stacklevel=2)
        return getattr(item, new)

    return property(read, doc=f"The former name of ``{new}``.")


def wrapped(name: str) -> Any:
    """Return a property that is the attribute ``name`` of ``self.of``, the wrapped value."""
    return property(lambda outer: getattr(outer.of, name), doc=f"The ``{name}`` of ``of``.")


def refuse_old_hooks(
    cls: type, methods: Mapping[str, str], attributes: Mapping[str, str] | None = None
) -> None:
    """Raise TypeError if a new class defines a hook of an earlier version, which has no effect.

    Args:
        cls: the class.
        methods: what to override now, by the name of the method. A field of a value, which is no
            method, may have such a name.
        attributes: the same for attributes, whose names no field may have. Default: None.
    """
    for old, now in {**methods, **(attributes or {})}.items():
        note = str(vars(cls).get("__annotations__", {}).get(old, "ClassVar"))
        if old in vars(cls) and ("ClassVar" in note or old not in methods):
            raise TypeError(f"{cls.__name__}.{old} has no effect since 0.3: override {now}")


def refuse_misspelt_hooks(cls: type, hooks: Iterable[str]) -> None:
    """Raise TypeError if a new class defines a method whose name is nearly that of a hook.

    A hook's name with a number, such as "loss2", may be that of a second one.
    """
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    own = {n for n, item in vars(cls).items() if callable(item) and not n.startswith("_")}
    known = sorted(hooks)
    for name in own - inherited:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near and name.rstrip("_0123456789") not in known:
            why = f"is no hook and would never be called; did you mean {near[0]}?"
            raise TypeError(f"{cls.__name__}.{name} {why}")


class UnknownName(ValueError):
    """An unknown name; the message lists the legal names and the nearest one."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the legal names, and the one nearest to ``name``."""
    if not (names := sorted(known)):
        return "there is none"
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"allowed: {', '.join(names)}{hint}"


def check_choice(what: str, given: str, known: Iterable[str]) -> None:
    """Raise UnknownName unless ``given`` is one of ``known``; ``what`` names the argument."""
    names = tuple(known)
    if given not in names:
        raise UnknownName(f"unknown {what} {given!r}; {suggest(given, names)}")


def is_kind(name: str) -> bool:
    """Return whether there is a kind of value of this name, so that its data can be rebuilt."""
    return name in _KINDS


def as_code(item: Any) -> str:
    """Return the Python expression of a value, without fields that have their defaults.

    Args:
        item: a value, or its data as returned by ``to_dict``, whose kinds need not be known.
    """
    if isinstance(item, dict):
        kind = str(item.get("kind"))
        name = _printed(_KINDS[kind]) if kind in _KINDS else kind
        now = _renamed(_KINDS.get(kind))
        fields = [(now.get(str(n), str(n)), v) for n, v in item.items() if n != "kind"]
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        name, fields = _printed(type(item)), _changed(item)
    elif isinstance(item, list):
        return f"({', '.join(map(as_code, item))}{',' * (len(item) == 1)})"
    else:
        return repr(item)
    return f"{name}({', '.join(f'{field}={as_code(v)}' for field, v in fields)})"


def to_dict(item: Any) -> Any:
    """Return JSON-serialisable data; a value becomes ``{"kind": ..., field: ...}``.

    Args:
        item: a value.

    Raises:
        TypeError: if its class is not decorated with ``value`` (which is not inherited).
    """
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        cls = type(item)
        if "__kind__" not in vars(cls):
            raise TypeError(f"{cls.__name__} is not a kind of value: decorate it with @value")
        kind = vars(cls)["__kind__"]
        _KINDS.setdefault(kind, cls)  # on a cluster, classes of a notebook are unpickled
        names = getattr(cls, "stored_as", {})
        return {"kind": kind, **{names.get(n, n): to_dict(v) for n, v in _changed(item)}}
    return [to_dict(v) for v in item] if isinstance(item, tuple | list) else item


def from_dict(data: Any) -> Any:
    """Return the value of data that ``to_dict`` returned. No code is run.

    Raises:
        ValueError: for unknown kinds or fields, or values out of range.
    """
    try:
        return _rebuilt(data)
    except RecursionError as error:
        raise ValueError("not the data of a value: nested too deeply") from error


def _rebuilt(data: Any) -> Any:
    """Return the value, or a part of one, of JSON-serialisable data."""
    if isinstance(data, list):
        return tuple(_rebuilt(v) for v in data)
    if not isinstance(data, dict):
        return data
    rest = dict(data)
    kind = rest.pop("kind", None)
    if str(kind) not in _KINDS:
        raise _unknown(f"unknown kind of value {str(kind)!r}", str(kind))
    return _make(_KINDS[str(kind)], {name: _rebuilt(v) for name, v in rest.items()})


def from_code(text: str) -> Any:
    """Return the value that prints as ``text``; the code is parsed but not evaluated.

    It may contain kinds of value with positional or keyword arguments, numbers, strings, True,
    False, None, tuples and lists.

    Raises:
        ValueError: for anything else; it names the part.
    """
    if "\0" in text:  # a ValueError of ast in some versions of Python, a SyntaxError in others
        raise ValueError(f"not the code of a value: null bytes in {short_repr(text)}")
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, text.strip())
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not the code of a value: {error} in {short_repr(text)}") from error


def key_of(item: Any, *more: str, version: int) -> str:
    """Return the key of a value, 16 hexadecimal digits, the same on every machine.

    Args:
        item: a value, or its data as returned by ``to_dict``.
        more: further texts to include in the hash.
        version: version of the keys.
    """
    text = json.dumps([version, to_dict(item), *more], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _unknown(what: str, kind: str) -> UnknownName:
    """Return the error for an unknown kind, whose module may not have been imported."""
    names = {_printed(cls) for cls in _KINDS.values()}
    more = "a class of your own is known when its module is imported, --import MODULE"
    return UnknownName(f"{what}; {suggest(kind, names)} ({more})")


def _make(cls: Any, given: dict[str, Any]) -> Any:
    """Return a value of ``cls`` with the given fields, by their stored names or their names."""
    given = {_renamed(cls).get(name, name): v for name, v in given.items()}
    for name in given:
        check_choice(f"field of {_printed(cls)}", name, [f.name for f in dataclasses.fields(cls)])
    before = READING.set(True)
    try:
        return cls(**given)
    finally:
        READING.reset(before)


def _read(node: ast.expr, text: str) -> Any:
    """Return the value of one part of the code of a value."""
    kinds = _KINDS | {_printed(cls): cls for cls in _KINDS.values()}  # kinds and current names
    match node:
        case ast.Call(func=func) if isinstance(func, ast.Name) or ast.unparse(func) in kinds:
            kind = ast.unparse(func)
            if kind not in kinds:
                raise _unknown(f"unknown kind of value {kind!r}", kind)
            names = [f.name for f in dataclasses.fields(kinds[kind]) if not f.kw_only]
            parts = [(str(word.arg), word.value) for word in node.keywords]
            parts += zip(names, node.args, strict=False)
            given = {name: _read(part, text) for name, part in parts}
            if len(given) < len(node.args) + len(node.keywords):
                raise ValueError(f"{kind} has too many arguments, or one twice")
            return _make(kinds[kind], given)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_read(item, text) for item in items)
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            with suppress(ValueError):  # such as -"text"
                if isinstance(found := ast.literal_eval(node), int | float | str | None):
                    return found
        case ast.Name(id=name):
            raise _unknown(f"{name!r} is not a value: write Kind(...)", name)
    part = short_repr(ast.get_source_segment(text, node) or text)
    raise ValueError(f"{part} is not allowed in a value's code: only Kind(...) and literals are")


def _changed(item: Any) -> list[tuple[str, Any]]:
    """Return names and values of the fields that differ from their defaults."""
    hints, now = _hints(item.__class__), vars(item)
    fields = dataclasses.fields(item)
    return [(f.name, now[f.name]) for f in fields if not _is_default(f, now[f.name], hints[f.name])]


def _is_default(field: dataclasses.Field[Any], now: Any, hint: Any) -> bool:
    if field.default is dataclasses.MISSING:
        return False
    default = check_type(field.name, field.default, hint)
    return type(now) is type(default) and now == default  # 1 client is not a fraction of 1.0


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _renamed(cls: type | None) -> dict[str, str]:
    """Return the names of renamed fields by the names under which they are stored."""
    return {old: new for new, old in getattr(cls, "stored_as", {}).items()}


def _place(cls: type) -> tuple[str, str]:
    # A spawned process imports a script as __mp_main__.
    return cls.__module__.replace("__mp_main__", "__main__"), cls.__qualname__


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in PACKAGES


def _printed(cls: type) -> str:
    """Return the name of a class in code, or its kind if that includes the module."""
    kind = str(vars(cls).get("__kind__", ""))
    return kind if "." in kind else cls.__name__


def _validate(self: Any) -> None:
    hints = _hints(self.__class__)
    for field in dataclasses.fields(self):
        where = f"{type(self).__name__}.{field.name}"
        try:
            made = check_type(where, getattr(self, field.name), hints[field.name])
        except TypeError as error:
            raise TypeError("; ".join([str(error), *field.metadata.values()])) from None
        object.__setattr__(self, field.name, made)
    for name, limit in _limits(self.__class__):
        _limit(self, name, limit)
    for cls in reversed(type(self).__mro__):
        if "check" in vars(cls):
            vars(cls)["check"](self)


@cache
def _limits(cls: type) -> list[tuple[str, str | Iterable[str]]]:
    """Return the limits in the annotations of fields, each with the name of its field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [(f.name, at) for f in dataclasses.fields(cls) for at in _allowed(hints[f.name])]


def _allowed(hint: Any) -> Iterator[str | Iterable[str]]:
    yield from getattr(hint, "__metadata__", ())
    for part in typing.get_args(hint):
        yield from _allowed(part)


def _limit(item: Any, name: str, limit: str | Iterable[str]) -> None:
    given = getattr(item, name)
    numbers = given if isinstance(given, tuple) else (given,)
    if not isinstance(limit, str):
        like = [known for known in limit if known.lower() == str(given).lower()]
        if given not in limit and len(like) == 1:  # "rmsprop"
            object.__setattr__(item, name, like[0])
        else:
            check_choice(name, given, limit)
    elif given is not None and not (numbers and all(_lies_in(n, limit) for n in numbers)):
        be = "be" if limit[0] == ">" else "lie in"
        raise ValueError(f"{type(item).__name__}.{name} must {be} {limit}, got {short_repr(given)}")


def _lies_in(number: float, limit: str) -> bool:
    low, high = limit[1:-1].split(",") if limit[0] != ">" else (limit.lstrip(">= "), "inf")
    ends = (low, "=" in limit or "[" in limit), (high, "]" in limit)
    at_end = any(legal and number == float(end) for end, legal in ends)
    return at_end or float(low) < number < float(high)


def check_type(where: str, given: Any, hint: Any) -> Any:
    """Return ``given`` converted to the type ``hint`` (1 to 1.0, -0.0 to 0.0, so keys are equal).

    Args:
        where: the name of the field or argument.
        given: what was given.
        hint: the type that it must have.

    Raises:
        TypeError: if it has another type.
        ValueError: if it is not finite, or an integer of more than 63 bits.
    """
    if "numpy" in sys.modules and isinstance(given, sys.modules["numpy"].generic):
        given = given.item()
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    allowed = typing.get_args(hint) if union else (hint,)
    if Any in allowed or (given is None and type(None) in allowed):
        return given
    for kind in allowed:
        if typing.get_args(kind) == (str, ...) and isinstance(given, str):
            given = (given,)
        if typing.get_origin(kind) is tuple and isinstance(given, tuple | list):
            return _checked_items(where, tuple(given), typing.get_args(kind))
        if dataclasses.is_dataclass(kind) and isinstance(given, typing.cast(type, kind)):
            return given
    legal = {t for kind in allowed for t in _PLAIN.get(kind, ())}
    if type(given) not in legal:
        names = " or ".join(sorted(_name(kind) for kind in allowed if kind is not type(None)))
        got = f"{short_repr(given)} ({type(given).__name__})"
        if isinstance(given, type):
            got = f"the class {given.__name__}; write {given.__name__}()"
        raise TypeError(f"{where} must be {names}, got {got}")
    if type(given) is int and given.bit_length() > _BITS:
        raise ValueError(f"{where} must be a number of {_BITS} bits, got {short_repr(given)}")
    if type(given) is int and int not in allowed:
        given = float(given)
    if not isinstance(given, float):
        return given
    if not math.isfinite(given):
        raise ValueError(f"{where} must be finite, got {given!r}")
    return given + 0.0


def _checked_items(where: str, items: tuple[Any, ...], hints: tuple[Any, ...]) -> tuple[Any, ...]:
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(items)
    if len(items) != len(hints):
        raise TypeError(f"{where} must hold {len(hints)} items, got {short_repr(items)}")
    pairs = enumerate(zip(items, hints, strict=True))
    return tuple(check_type(f"{where}[{i}]", item, hint) for i, (item, hint) in pairs)


def short_repr(given: Any) -> str:
    """Return ``repr(given)`` in one line, cut to 200 characters."""
    try:
        text = " ".join(line.strip() for line in repr(given).splitlines())
    except Exception as error:  # an integer of 5,000 digits, or a user-defined __repr__
        return f"what cannot be printed: {error}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _name(kind: Any) -> str:
    return "tuple" if typing.get_origin(kind) is tuple else kind.__name__
