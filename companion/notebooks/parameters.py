"""What a notebook may be told: names, types and legal values, checked before anything runs."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from companion.sections import SCALES
from fedlib.values import one_of


def select(only: str, notebooks: Sequence[Path]) -> list[Path]:
    """The notebooks that `only` names, by full name or number, as in "01" or "00,02_x".

    All of them for an empty `only`. ValueError for a name that no notebook has.
    """
    known = {notebook.stem: notebook for notebook in notebooks}
    numbers = {stem.partition("_")[0]: stem for stem in known}
    wanted = set()
    for name in re.split(r"[,\s]+", only.strip(", \t\n")) if only.strip(", \t\n") else known:
        stem = numbers.get(name, name.removesuffix(".ipynb"))
        one_of("notebook", stem, known)
        wanted.add(stem)
    return [known[stem] for stem in known if stem in wanted]


def check(notebook: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """The values of `given` as the notebook's own types, without those it has by default.

    `given` holds text, as typed on a command line. ValueError names the first value that has
    an unknown name, cannot be read as the type that the notebook's `parameters` cell
    annotates, or is not legal.
    """
    declared = _declared(notebook)
    values = {}
    for name, text in given.items():
        one_of(f"parameter of {notebook.stem}", name, declared)
        kind, default = declared[name]
        value = _read(name, text, kind)
        if name in _LEGAL:
            _LEGAL[name](value)
        if value != default:
            values[name] = value
    return values


def _declared(notebook: Path) -> dict[str, tuple[str, Any]]:
    """Name -> (type, default) of the parameters cell."""
    from papermill import inspect_notebook

    return {
        name: (entry["inferred_type_name"], ast.literal_eval(entry["default"]))
        for name, entry in inspect_notebook(notebook).items()
    }


def _read(name: str, text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in ("int", "float"):
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:
            pass
    raise ValueError(f"{name} must be of type {kind}, got {text!r}")


def _scale(value: str) -> None:
    one_of("scale", value, SCALES)


def _dataset(value: str) -> None:
    from fedlib import data as datasets

    if value:
        one_of("dataset", value, datasets.names())


def _device(value: str) -> None:
    if value in ("auto", "cpu"):
        return
    if not re.fullmatch(r"cuda(:\d+)?", value):
        raise ValueError(f"unknown device {value!r}; allowed: auto, cpu, cuda, cuda:N")
    import torch

    found = torch.cuda.device_count()
    if int(value.partition(":")[2] or 0) >= found:
        raise ValueError(f"device {value!r} is not there: this machine has {found} CUDA devices")


def _count(name: str) -> Callable[[int], None]:
    def check_count(value: int) -> None:
        if value < 0:
            raise ValueError(f"{name} must be 0 (the scale's own) or more, got {value}")

    return check_count


_LEGAL: dict[str, Callable[[Any], None]] = {
    "scale": _scale,
    "dataset": _dataset,
    "device": _device,
    "seeds": _count("seeds"),
    "rounds": _count("rounds"),
}
