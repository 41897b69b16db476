"""fedlib: a companion to five papers on federated mixtures of experts.

Everything that a program of one's own needs is here, and what ``dir(fedlib)`` lists is promised
(docs/CHANGELOG.md). It is imported when it is first asked for: ``import fedlib`` costs nothing. ::

    from fedlib import MLP, Dirichlet, Experiment, FedAvg, MatchedHoldout, Task, simulate

    clients = Dirichlet(clients=20, alpha=0.1, size=60)
    task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    for moment in simulate(Experiment(task, FedAvg(), rounds=20, cohort=5)):
        print(moment.round, moment.metrics.get("test_accuracy"))
"""

import os
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from fedlib.processor import VARIABLE, pin, pinned

__version__ = "0.2.0"
if os.environ.get(VARIABLE) == "1":  # else torch is left as the user has it
    pin()

# What is offered, by the room that it comes from: what __init__.pyi tells type checkers, too.
_STUB = Path(__file__).with_name("__init__.pyi").read_text("utf-8")
_TOLD = re.findall(r"^from fedlib(?:\.(\S+))? import (\w+)", _STUB, re.MULTILINE)
_HOMES = {name: room for room, name in _TOLD if room}
_ROOMS = [name for room, name in _TOLD if not room]
# Names that earlier releases had; data of these values and their code are read under the old ones,
# too.
_RENAMED = {
    "Majority": "MajorityClasses",
    "Mirrored": "MatchedHoldout",
    "Own": "LocalHoldout",
    "ByColumn": "NaturalPartition",
    "CommonestLabel": "MajorityClass",
    "Densities": "VAEDensity",
    "Family": "Architecture",
    "Module": "FromFunction",
    "Newcomers": "NewClients",
    "looks_up": "uses_precomputed",
}
_EXAMPLES = ("CSV", "TensorBoard", "WandB")  # that 0.2.0 had, and 0.4.0 will not
# Names of 0.2 that are fedrun's now, by what they are called there.
_MOVED = {
    "CohortEarlyStop": "CohortEarlyStop",
    "Experiment": "Experiment",
    "Moment": "RoundInfo",
    "Result": "Result",
    "RunDiverged": "RunDiverged",
    "StoreError": "StoreError",
    "SweepFailed": "SweepFailed",
    "compare": "compare",
    "evaluate": "evaluate",
    "find": "find_result",
    "frame": "frame",
    "inventory": "list_runs",
    "predict": "predict",
    "run": "run",
    "run_with_state": "run_with_state",
    "simulate": "simulate",
    "sweep": "sweep",
    "tiny": "tiny",
}
__all__ = sorted([*_HOMES, *_ROOMS, "PINNED", "__version__"])


def __getattr__(name: str) -> Any:
    """Return what is offered under a name.

    ``PINNED`` is whether torch is held to AVX2 in this process; see ``fedlib.processor``.
    """
    if name == "PINNED":
        return pinned()
    if name in (*_ROOMS, "callbacks"):
        return import_module(f"fedlib.{name}")
    if name in _EXAMPLES:
        found = getattr(import_module("fedlib.callbacks"), name)
        warnings.warn(f"{name} is in examples/callbacks.py now", DeprecationWarning, stacklevel=2)
        return found
    if name in _RENAMED:
        warnings.warn(f"{name} is {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name in _MOVED:
        new = _MOVED[name]
        warnings.warn(f"fedlib.{name} is fedrun.{new} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module("fedrun"), new)
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
    found = getattr(import_module(f"fedlib.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that are promised."""
    return __all__
