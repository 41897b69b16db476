"""fedrun: a run is its spec. It is found by its hash, resumed to the bit, and swept over processes.

What ``dir(fedrun)`` lists is offered; it is imported when it is first asked for. ::

    from fedlib import MLP, Dirichlet, FedAvg, MatchedHoldout, Task
    from fedrun import Experiment, run

    clients = Dirichlet(clients=20, alpha=0.1, size=60)
    task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    print(run(Experiment(task, FedAvg(), rounds=20, cohort=5)).final("test_accuracy"))
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import fedlib  # noqa: F401  # holds torch to AVX2

_STUB = Path(__file__).with_name("__init__.pyi").read_text("utf-8")
_HOMES = {
    name: room
    for room, name in re.findall(r"^from fedrun(?:\.(\S+))? import (\w+)", _STUB, re.MULTILINE)
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Return what is offered under a name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrun' has no attribute {name!r}")
    if not _HOMES[name]:
        return import_module(f"fedrun.{name}")
    found = getattr(import_module(f"fedrun.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that are offered."""
    return __all__
