"""What a spec does not hold: the code of classes and functions that are not the library's own.

Classes count with their bases, functions as they run here, both with what they use by name:
functions, classes and constants of modules that nobody has installed. Of installed packages those
are followed that a value is made of. Others count by name; the versions of the library, of PyTorch
and of NumPy are in the provenance. What code finds in other ways (by a string, in a file) is not
seen, nor is what was put into a class of the library from outside.
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
_SCRIPT = {"__main__", "__mp_main__"}  # a notebook, too, whatever file has started it
_PLAIN = (int, float, complex, str, bytes, type(None), type(...))
_WHOLE = (nn.Module, SimpleNamespace)  # count with all that they hold
_AROUND = ("__wrapped__", "__func__", "func", "args", "keywords", "fget", "fset")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_Place = tuple[str, int]  # of a function in a file: its name and its first line
Used = list[tuple[str, Any]]  # what code uses, each under its name


def user_code(value: Any) -> list[Any]:
    """Return the classes and functions, not of the library, that a value is made of."""
    roots: dict[Any, None] = {}
    for part in _parts(value):
        if any(_outside(base.__module__) for base in type(part).__mro__):
            roots[type(part)] = None
        if isinstance(part, FromFunction) and _outside(part.function.partition(":")[0]):
            package, _, name = part.function.partition(":")
            function: Any = part.function  # if it is not there: who builds the task is told
            with suppress(Exception):
                function = getattr(import_module(package), name)
            roots[function] = None
    return [*roots]


def digest(roots: Iterable[Any], *, readable: bool = True) -> str:
    """Return 16 hex digits that stand for the code of classes and functions, and of what they use.

    Source counts without comments, docstrings and layout. Where it cannot be read or is not what
    runs, as a file was edited after its import, the bytecode does; and everywhere if not
    ``readable``.
    """
    todo: Used = [("", root) for root in roots]
    homes = {_top(getattr(root, "__module__", "")) for _, root in todo} | _SCRIPT
    lines, seen = [], dict[int, Any]()  # things by their id, which so stays theirs
    while todo:
        name, item = todo.pop()
        line, used = _described(item, homes, readable)
        lines.append(f"{name}: {line}")
        if used and id(item) not in seen:
            seen[id(item)] = item
            todo += used
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and all values in it."""
    if is_dataclass(value):
        yield value
        value = tuple(getattr(value, field.name) for field in fields(value))
    for part in value if isinstance(value, tuple) else ():
        yield from _parts(part)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _outside(module: str) -> bool:
    """Return whether a module's code is in nobody's version that the provenance tells."""
    return _top(module) not in _VERSIONED and _top(module) not in sys.stdlib_module_names


def _followed(module: str | None, homes: Collection[str]) -> bool:
    """Return whether code counts as it is, and not by name."""
    if not module or not _outside(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _top(module) in homes or not ("site-packages" in file or "dist-packages" in file)


def _described(item: Any, homes: Collection[str], readable: bool) -> tuple[str, Used]:
    """Return what a thing is, and what it uses or consists of."""
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
    """Return whether Python, or a decorator, has put something into a class."""
    if not (name.startswith("__") and name.endswith("__")):
        return name.startswith("_abc_")
    written = isinstance(value, FunctionType) and value.__module__ == item.__module__
    return not written or (is_dataclass(item) and value.__code__.co_filename == "<string>")


def _of_function(item: FunctionType, homes: Collection[str], readable: bool) -> tuple[str, Used]:
    code, globals_ = _read(item.__code__), item.__globals__
    given = {name: globals_[name] for name in code.globals if name in globals_}
    for name in code.imports:
        with suppress(Exception):  # who calls it is told
            given[name] = import_module(name, globals_.get("__package__"))
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            given[name] = cell.cell_contents
    used: Used = [
        ("", (item.__defaults__, item.__kwdefaults__, getattr(item, "__wrapped__", None)))
    ]
    for name, value in given.items():
        module = isinstance(value, ModuleType)
        used += _of_module(value, code.names, homes) if module else [(name, value)]
    return code.source if readable else code.bare, used


def _of_module(module: ModuleType, names: Iterable[str], homes: Collection[str]) -> Used:
    """Return what code with some names in it can use of a module and of modules in that."""
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
    """What a code object says: its source, its bytecode, and names by how they are used."""

    source: str
    bare: str
    globals: tuple[str, ...]
    imports: tuple[str, ...]
    names: tuple[str, ...]


@cache
def _read(code: CodeType) -> _Code:
    """Read a function's code, once: it never changes."""
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
    """Yield a code object and those in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _bare(code: CodeType) -> str:
    """Return the bytecode in words, without docstrings and places."""
    steps = [f"{step.opname} {_constant(step.argval)}" for step in dis.get_instructions(code)]
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "\n".join([f"{taken} {code.co_argcount} {code.co_flags}", *steps])


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _bare(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _source(code: CodeType) -> str:
    """Return what defines a function, "" unless that can be read and is what runs."""
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
    """Return by name and first line the code and the normalised source of a file's functions."""
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
