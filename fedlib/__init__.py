"""fedlib: federated learning with tasks and algorithms that are values.

It is a companion to five papers on federated mixtures of experts. ``dir(fedlib)`` lists the public
names, which docs/CHANGELOG.md promises and which are imported on first use; ``dir(fedrun)`` those
that train experiments, and store and compare their results.

>>> from fedlib import MLP, Dirichlet, FedAvg, LocalHoldout, Task, value
>>> from fedrun import Experiment, run
>>> task = Task("digits", Dirichlet(clients=10, alpha=0.5), MLP((32,)), LocalHoldout())
>>> result = run(Experiment(task, FedAvg(epochs=2), rounds=2, cohort=5), progress=False)
>>> result.final("test_accuracy") > 0.1, len(result.per_client("test_accuracy"))
(True, 10)

I want to ...

- partition by a Dirichlet distribution: ``Dirichlet``, over the classes of each client, or
  ``ClassDirichlet``, over the clients of each class as PFLlib does;
- add a proximal term: ``FedProx``, or a term of my own: a subclass of ``FedAvg``, as below;
- see the results of each client: ``result.per_client(metric)``, with test examples of its own if
  the task has a ``LocalHoldout``; score new examples: ``fedrun.evaluate``;
- get a client's own examples: ``task.build(seed).examples(client, "test")``;
- give clients personal heads: ``FedPer``, or other layers: ``Personal(local=prefixes)``;
- serve a new client: ``fedrun.predict``, without labels; ``NewClients``, with some;
- use my own data: ``add_data(name, (features, labels))``, or a table with ``label=`` and
  ``columns=``; clients by one of its columns: ``NaturalPartition(column)``;
- resume an interrupted or shorter run: call ``fedrun.run`` again;
- run a grid: ``fedrun.sweep(fedrun.grid(experiment, client=[sgd(0.1), sgd(0.01)]), workers=4)``;
  choose the best of each method on validation examples: ``fedrun.best(results)``;
- compare or plot: ``fedrun.compare({"FedAvg": results, ...})``, ``fedrun.frame`` for pandas, or
  ``result.curve(metric)``, a dict by round;
- export a model: ``result.model().state_dict()``, or ``result.model(client)`` of one client.

>>> @value
... class Proximal(FedAvg):
...     mu: float = 0.1
...     def round_constants(self, fed, state):
...         return {f"global.{name}": w for name, w in state.server_params.items()}
...     def loss(self, net, params, constants, batch):
...         gap = sum(((w - constants[f"global.{name}"]) ** 2).sum() for name, w in params.items())
...         return super().loss(net, params, constants, batch) + self.mu / 2 * gap
>>> Proximal(mu=1.0)
Proximal(mu=1.0)
"""

import os
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from fedlib.processor import VARIABLE, pin, pinned

__version__ = "0.3.0"
if os.environ.get(VARIABLE) == "1":  # else torch is left as the user has it
    pin()

# The public names by the module that defines them, read from what __init__.pyi tells type checkers.
_STUB = Path(__file__).with_name("__init__.pyi").read_text("utf-8")
_TOLD = re.findall(r"^from fedlib(?:\.(\S+))? import (\w+)", _STUB, re.MULTILINE)
_HOMES = {name: room for room, name in _TOLD if room}
_ROOMS = [name for room, name in _TOLD if not room]
# Names of earlier releases. Stored specs and printed code of these values are read under both.
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
_MOVED = {"Moment": "RoundInfo", "find": "find_result", "inventory": "list_runs"} | {
    name: name for name in (
        "CohortEarlyStop", "Experiment", "Result", "RunDiverged", "StoreError", "SweepFailed",
        "compare", "evaluate", "frame", "predict", "run", "run_with_state", "simulate", "sweep",
        "tiny",
    )
}  # fmt: skip
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
    if name == "SecureSum":
        raise AttributeError("SecureSum is an example now, examples/secure_sum.py: copy it")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
    found = getattr(import_module(f"fedlib.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that are promised."""
    return __all__
