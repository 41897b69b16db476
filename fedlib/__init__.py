"""fedlib: a companion to five papers on federated mixtures of experts.

Everything that a program of one's own needs is here, and what ``dir(fedlib)`` lists is promised
(see CHANGELOG.md). It is imported when it is first asked for: ``import fedlib`` costs nothing. ::

    from fedlib import MLP, Dirichlet, Experiment, FedAvg, MatchedHoldout, Task, simulate

    clients = Dirichlet(clients=20, alpha=0.1, size=60)
    task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
    for moment in simulate(Experiment(task, FedAvg(), rounds=20, cohort=5)):
        print(moment.round, moment.metrics.get("test_accuracy"))
"""

import warnings
from importlib import import_module
from typing import Any

from fedlib.processor import pin

__version__ = "0.2.0"
PINNED: bool = pin()
"""Whether torch computes with the instruction set that all x86-64 processors with AVX2 share."""

# What is offered, by the room that it comes from; __init__.pyi has the same for type checkers.
_OFFERED = {
    "runs": "Experiment Moment Result RunDiverged StoreError compare evaluate find frame predict "
    "run run_with_state simulate",
    "runs.sweep": "sweep",
    "tasks": "Task",
    "algorithms": "APFL ClusteredFedMix CommonestLabel DBE Densities Ditto FedAMP FedAvg FedBABU "
    "FedBN FedCP FedEM FedGH FedGen FedMix FedPer FedProx FedRep FedRoD FedSynMoE GPFL "
    "IFCA LGFedAvg LastClient Local LocalGlobal MOON Mixture Newcomers PFedMe PMMoE "
    "Personal Private PrunedFedMix SCAFFOLD SecureSum",
    "models": "MLP BiLSTM FastText LeNet Module ResNet",
    "partition": "IID ByColumn ClassDirichlet Dirichlet LabelPermuted LocalHoldout MajorityClasses "
    "MatchedHoldout OptOut Pachinko QuantitySkew Rotated Shards",
    "optim": "Cosine Optimizer Schedule Step adam sgd",
    "engine": "EarlyStop Phase Selection State uses_precomputed",
    "federation": "Augmentation CropFlip",
    "values": "value",
    "callbacks": "CSV TensorBoard WandB",
    "metrics": "Evaluation interval",
}
# Names that 0.1.0 had; data of these values and their code are read under the old ones, too.
_RENAMED = {"Majority": "MajorityClasses", "Mirrored": "MatchedHoldout", "Own": "LocalHoldout"}
_ROOMS = ("algorithms", "callbacks", "data", "models", "partition")
_HOMES = {name: room for room, names in _OFFERED.items() for name in names.split()}
__all__ = sorted([*_HOMES, *_ROOMS, "PINNED", "__version__"])


def __getattr__(name: str) -> Any:
    """Return what is offered under a name."""
    if name in _ROOMS:
        return import_module(f"fedlib.{name}")
    if name in _RENAMED:
        warnings.warn(f"{name} is {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
    found = getattr(import_module(f"fedlib.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the names that are promised."""
    return __all__
