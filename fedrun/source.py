"""Digests of user-defined code, which a spec contains only by name.

A digest covers classes with their bases and functions, and whatever these refer to by name in
modules that are not installed packages, and in installed packages that define a part of the value.
Other installed code counts by its name only; the versions of fedlib, PyTorch and NumPy are in the
provenance. Code that is found in other ways (by a string, in a file) is not covered, nor are
changes made to classes of the library from outside.
"""

import ast
import dis
import hashlib
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedlib.models import FromFunction

_VERSIONED = ("fedlib", "fedrun", "torch", "numpy")
_SCRIPT = {"__main__", "__mp_main__"}  # also a notebook, whose ``__file__`` is that of its kernel
_PLAIN = (int, float, complex, str, bytes, type(None), type(...))
_WHOLE = (nn.Module, SimpleNamespace)  # their attributes are part of the digest
_AROUND = ("__wrapped__", "__func__", "func", "args", "keywords", "fget", "fset")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_Place = tuple[str, int]  # name and first line of a function in a file
Used = list[tuple[str, Any]]  # names and values that code refers to


def user_code(value: Any) -> list[Any]:
    """Return the user-defined classes and functions of which a value consists."""
    roots: dict[Any, None] = {}
    for part in _parts(value):
        if any(_outside(base.__module__) for base in type(part).__mro__):
            roots[type(part)] = None
        if isinstance(part, FromFunction) and _outside(part.function.partition(":")[0]):
            package, _, name = part.function.partition(":")
            function: Any = part.function  # if it is missing, building the task raises
            with suppress(Exception):
                function = getattr(import_module(package), name)
            roots[function] = None
    return [*roots]


def digest(roots: Iterable[Any], *, readable: bool = True) -> str:
    """Return a digest of the code of classes and functions and of everything they refer to.

    Args:
        roots: the classes and functions, as returned by ``user_code``.
        readable: if True, source without comments, docstrings and layout is digested, or bytecode
            if the source is missing or differs from the code that runs, because the file was edited
            after its import. If False, bytecode is always digested. Default: True.

    Returns:
        16 hexadecimal digits.
    """
    todo: Used = [("", root) for root in roots]
    homes = {_top(getattr(root, "__module__", "")) for _, root in todo} | _SCRIPT
    lines, seen = [], dict[int, Any]()  # values by id; keeping them prevents reuse of their ids
    while todo:
        name, item = todo.pop()
        line, used = _described(item, homes, readable)
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
    return module.partition(".")[0]


def _outside(module: str) -> bool:
    """Return whether a module belongs to no package whose version the provenance records."""
    return _top(module) not in _VERSIONED and _top(module) not in sys.stdlib_module_names


def _followed(module: str | None, homes: Collection[str]) -> bool:
    """Return whether the code of a module is digested itself, not only by name."""
    if not module or not _outside(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _top(module) in homes or not ("site-packages" in file or "dist-packages" in file)


def _described(item: Any, homes: Collection[str], readable: bool) -> tuple[str, Used]:
    """Return a description of an object, and the objects it refers to or consists of."""
    if isinstance(item, _PLAIN):
        return repr(item), []
    if isinstance(item, np.ndarray | np.generic | Tensor):
        a = np.ascontiguousarray(item.detach().cpu() if isinstance(item, Tensor) else item)
        return f"{a.dtype}{a.shape} {hashlib.sha256(a.tobytes()).hexdigest()}", []
    if isinstance(item, dict):
        return "dict", [(str(name), part) for name, part in item.items()]
    if isinstance(item, list | tuple | set | frozenset):
        ordered = item if isinstance(item, list | tuple) else sorted(item, key=repr)
        return type(item).__name__, [("", part) for part in ordered]
    if isinstance(item, type | FunctionType) and _followed(item.__module__, homes):
        return _of_class(item) if isinstance(item, type) else _of_function(item, homes, readable)
    kind = item if isinstance(item, type) else type(item)
    name = f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', kind.__qualname__)}"
    used = [] if item is kind else [(n, getattr(item, n)) for n in _AROUND if hasattr(item, n)]
    if item is not kind and (_followed(kind.__module__, homes) or isinstance(item, _WHOLE)):
        used += [("", kind), *sorted(getattr(item, "__dict__", {}).items())]
    return name, used


def _of_class(item: type) -> tuple[str, Used]:
    made = [(f.name, f.default_factory) for f in fields(item)] if is_dataclass(item) else []
    own = [(n, v) for n, v in sorted(vars(item).items()) if not _generated(item, n, v)]
    return item.__qualname__, [*[("", base) for base in item.__bases__], *made, *own]


def _generated(item: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a class was added by Python or a decorator."""
    if not (name.startswith("__") and name.endswith("__")):
        return name.startswith("_abc_")
    written = isinstance(value, FunctionType) and value.__module__ == item.__module__
    return not written or (is_dataclass(item) and value.__code__.co_filename == "<string>")


def _of_function(item: FunctionType, homes: Collection[str], readable: bool) -> tuple[str, Used]:
    code, globals_ = _read(item.__code__), item.__globals__
    given = {name: globals_[name] for name in code.globals if name in globals_}
    for name in code.imports:
        with suppress(Exception):  # calling the function raises
            given[name] = import_module(name, globals_.get("__package__"))
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            given[name] = cell.cell_contents
    used: Used = [
        ("", (item.__defaults__, item.__kwdefaults__, getattr(item, "__wrapped__", None)))
    ]
    for name, value in given.items():
        module = isinstance(value, ModuleType)
        used += _of_module(value, code.names, homes) if module else [(name, value)]
    return code.source if readable else code.bare, used


def _of_module(module: ModuleType, names: Iterable[str], homes: Collection[str]) -> Used:
    """Return the attributes of a module, and of its submodules, that code may use by ``names``."""
    used: Used = []
    todo, seen = [module], {module}
    while todo:
        one = todo.pop()
        used.append((one.__name__, None))
        found = {n: vars(one).get(n) for n in names} if _followed(one.__name__, homes) else {}
        inner = {m for m in found.values() if isinstance(m, ModuleType)} - seen
        todo, seen = [*todo, *sorted(inner, key=lambda m: m.__name__)], seen | inner
        used += [(n, v) for n, v in found.items() if not isinstance(v, ModuleType)]
    return used


class _Code(NamedTuple):
    """Contents of a code object: source, bytecode, globals, imported modules and all names."""

    source: str
    bare: str
    globals: tuple[str, ...]
    imports: tuple[str, ...]
    names: tuple[str, ...]


@cache
def _read(code: CodeType) -> _Code:
    """Analyse the code of a function; cached, since code objects are immutable."""
    globals_, imports, names = set[str](), set[str](), set[str]()
    for each in _nested(code):
        names.update(each.co_names)
        steps = [*dis.get_instructions(each)]
        for i, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                globals_.add(step.argval)
            if step.opname == "IMPORT_NAME":
                imports.add("." * steps[i - 2].argval + step.argval)
    sets = (tuple(sorted(found)) for found in (globals_, imports, names))
    return _Code(_source(code) or _bare(code), _bare(code), *sets)


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _bare(code: CodeType) -> str:
    """Return the bytecode as text, without docstrings and line numbers."""
    steps = [f"{step.opname} {_constant(step.argval)}" for step in dis.get_instructions(code)]
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "\n".join([f"{taken} {code.co_argcount} {code.co_flags}", *steps])


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _bare(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _source(code: CodeType) -> str:
    """Return the normalised source of a function, "" if missing or not the code that runs."""
    linecache.checkcache(code.co_filename)
    place = code.co_name, code.co_firstlineno
    try:
        compiled, definitions = _compiled("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    same = any(_bare(one) == _bare(code) for one in compiled.get(place, ()))
    return "\n".join(definitions.get(place, ())) if same else ""


@cache
def _compiled(text: str) -> tuple[dict[_Place, list[CodeType]], dict[_Place, list[str]]]:
    """Return code and normalised source of all functions in a file, by name and first line."""
    compiled, definitions = dict[_Place, list[CodeType]](), dict[_Place, list[str]]()
    for code in _nested(compile(text, "", "exec", dont_inherit=True)):
        compiled.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = [node, *getattr(node, "decorator_list", [])]
            place = getattr(node, "name", "<lambda>"), min(n.lineno for n in first)
            definitions.setdefault(place, []).append(ast.unparse(node))
    return compiled, definitions
