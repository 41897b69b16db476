"""Models, written for one batch of examples."""

from fedlib.models.families import MLP, LeNet, fedmix_lenet5
from fedlib.models.net import Classifier, Leaves, Net, each, named, part, stack

__all__ = [
    "MLP",
    "Classifier",
    "LeNet",
    "Leaves",
    "Net",
    "each",
    "fedmix_lenet5",
    "named",
    "part",
    "stack",
]
