"""fedrun: run experiments, store and find their results, resume interrupted runs, and sweep.

``dir(fedrun)`` lists the public names, which are imported on first use; ``help(fedlib)`` has an
example and says which name serves which purpose.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import fedlib  # noqa: F401  # with FEDLIB_PIN=1 it pins torch before torch is used

_STUB = Path(__file__).with_name("__init__.pyi").read_text("utf-8")
_HOMES = {
    name: room
    for room, name in re.findall(r"^from fedrun(?:\.(\S+))? import (\w+)", _STUB, re.MULTILINE)
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import and return a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrun' has no attribute {name!r}")
    if not _HOMES[name]:
        return import_module(f"fedrun.{name}")
    found = getattr(import_module(f"fedrun.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
