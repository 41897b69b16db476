"""Digests of user-defined code, which a spec contains only by name.

A digest covers the normalised source of functions, classes with their bases and attributes, and
whatever these refer to by name in modules that are not installed packages, and in installed
packages that define a part of the value. Other installed code counts by its name only; the versions
of fedlib, PyTorch and NumPy are in the provenance. Code that is found in other ways (by a string,
in a file) is not covered, nor are changes made to classes of the library from outside.
"""

import ast
import dis
import hashlib
import linecache
import marshal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedlib.models import FromFunction
from fedlib.values import PACKAGES

_VERSIONED = {*PACKAGES, "torch", "numpy"} | sys.stdlib_module_names
_SCRIPT = {"__main__", "__mp_main__"}  # also a notebook, whose ``__file__`` is that of its kernel
_PLAIN = (int, float, complex, str, bytes, type(None), type(...))
_WHOLE = (nn.Module, SimpleNamespace)  # their attributes are part of the digest
_AROUND = ("__wrapped__", "__func__", "func", "args", "keywords", "fget", "fset")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Used = list[tuple[str, Any]]  # names and values that code refers to
_sources: dict[CodeType, str] = {}  # of code that runs here, as read before its file was edited


def user_code(value: Any) -> list[Any]:
    """Return the user-defined classes and functions of which a value consists."""
    roots: dict[Any, None] = {}
    for part in _parts(value):
        if any(_outside(base.__module__) for base in type(part).__mro__):
            roots[type(part)] = None
        if isinstance(part, FromFunction) and _outside(part.function):
            module, _, name = part.function.partition(":")
            function: Any = part.function  # if it is missing, building the task raises
            with suppress(Exception):
                function = getattr(import_module(module), name)
            roots[function] = None
    return [*roots]


def digest(roots: Iterable[Any]) -> str:
    """Return a digest of the code of classes and functions and of everything they refer to.

    Comments, docstrings and layout do not count.

    Args:
        roots: the classes and functions, as returned by ``user_code``.

    Returns:
        16 hexadecimal digits.
    """
    todo: Used = [("", root) for root in roots]
    homes = {_top(getattr(root, "__module__", "")) for _, root in todo} | _SCRIPT
    lines, seen = [], dict[int, Any]()  # values by id; keeping them prevents reuse of their ids
    while todo:
        name, item = todo.pop()
        line, used = _described(item, homes)
        lines.append(f"{name}: {line}")
        if used and id(item) not in seen:
            seen[id(item)] = item
            todo += used
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and all values nested in it."""
    if is_dataclass(value):
        yield value
        value = tuple(getattr(value, field.name) for field in fields(value))
    for part in value if isinstance(value, tuple) else ():
        yield from _parts(part)


def _top(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]


def _outside(module: str) -> bool:
    """Return whether a module belongs to no package whose version the provenance records."""
    return _top(module) not in _VERSIONED


def _followed(module: str | None, homes: set[str]) -> bool:
    """Return whether the code of a module is digested itself, not only by name."""
    if not module or not _outside(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _top(module) in homes or not ("site-packages" in file or "dist-packages" in file)


def _described(item: Any, homes: set[str]) -> tuple[str, Used]:
    """Return a description of an object, and the objects it refers to or consists of."""
    if isinstance(item, _PLAIN):
        return repr(item), []
    if isinstance(item, np.ndarray | np.generic | Tensor):
        a = np.asarray(item.detach().cpu() if isinstance(item, Tensor) else item)
        return f"{a.dtype}{a.shape} {hashlib.sha256(a.tobytes()).hexdigest()}", []
    if isinstance(item, dict):
        return "dict", [(str(name), part) for name, part in item.items()]
    if isinstance(item, list | tuple | set | frozenset):
        ordered = item if isinstance(item, list | tuple) else sorted(item, key=repr)
        return type(item).__name__, [("", part) for part in ordered]
    if isinstance(item, type | FunctionType) and _followed(item.__module__, homes):
        return _of_class(item) if isinstance(item, type) else _of_function(item, homes)
    kind = item if isinstance(item, type) else type(item)
    name = f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', kind.__qualname__)}"
    used = [] if item is kind else [(n, getattr(item, n)) for n in _AROUND if hasattr(item, n)]
    if item is not kind and (_followed(kind.__module__, homes) or isinstance(item, _WHOLE)):
        used += [("", kind), *sorted(getattr(item, "__dict__", {}).items())]
    return name, used


def _of_class(item: type) -> tuple[str, Used]:
    """Return the name of a class, with its bases, defaults and what is written in its body."""
    made = [(f.name, f.default_factory) for f in fields(item)] if is_dataclass(item) else []
    own = [(n, v) for n, v in sorted(vars(item).items()) if not _generated(item, n, v)]
    return item.__qualname__, [*[("", base) for base in item.__bases__], *made, *own]


def _generated(item: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a class was added by Python or a decorator."""
    if not isinstance(value, FunctionType) or value.__module__ != item.__module__:
        return name.startswith(("__", "_abc_"))
    return is_dataclass(item) and value.__code__.co_filename == "<string>"


def _of_function(item: FunctionType, homes: set[str]) -> tuple[str, Used]:
    """Return the source of a function, with its defaults, closure, globals and imports."""
    around, given, names = item.__globals__, dict[str, Any](), list[str]()
    for code in _nested(item.__code__):
        names += code.co_names
        steps = [*dis.get_instructions(code)]
        for i, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in around:
                given[step.argval] = around[step.argval]
            if step.opname == "IMPORT_NAME":
                name = "." * steps[i - 2].argval + step.argval
                with suppress(Exception):  # calling the function raises
                    given[name] = import_module(name, around.get("__package__"))
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            given[name] = cell.cell_contents
    defaults = item.__defaults__, item.__kwdefaults__, getattr(item, "__wrapped__", None)
    used = [("", defaults), *_attributes(sorted(given.items()), {*names}, homes, set())]
    return _source(item.__code__), used


def _attributes(given: Used, names: set[str], homes: set[str], seen: set[str]) -> Used:
    """Replace each module by its attributes, also of submodules, that code may use by ``names``."""
    used: Used = []
    for name, item in given:
        if not isinstance(item, ModuleType):
            used.append((name, item))
        elif item.__name__ not in seen:
            seen.add(item.__name__)
            used.append((item.__name__, None))
            if _followed(item.__name__, homes):
                inner = [(n, v) for n, v in sorted(vars(item).items()) if n in names]
                used += _attributes(inner, names, homes, seen)
    return used


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _source(code: CodeType) -> str:
    """Return the normalised source of code that runs in this process.

    If there is none, or its file was edited after the import, this is the compiled code instead.
    """
    if code not in _sources:
        linecache.checkcache(code.co_filename)
        found = _definitions("".join(linecache.getlines(code.co_filename))).get(code)
        if not found:
            return marshal.dumps(code, 2).hex()
        _sources[code] = found
    return _sources[code]


@cache
def _definitions(text: str) -> dict[CodeType, str]:
    """Return the normalised source of all functions in a file by their code objects."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        codes, tree = _nested(compile(text, "", "exec", dont_inherit=True)), ast.parse(text)
        sources: dict[tuple[str, int], str] = {}
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                first = min(n.lineno for n in [node, *getattr(node, "decorator_list", ())])
                place = getattr(node, "name", "<lambda>"), first
                sources[place] = sources.get(place, "") + ast.unparse(node)
        return {c: sources.get((c.co_name, c.co_firstlineno), "") for c in codes}
    return {}
