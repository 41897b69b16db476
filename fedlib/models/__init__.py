"""Models, written for one batch of examples."""

from fedlib.models.dense import ACTIVATIONS, INITS, AutoEncoder, GateNet
from fedlib.models.families import MLP, Family, LeNet, ResNet, fedmix_lenet5
from fedlib.models.net import Net, Params, drawn, each, named, part, stack, widened
from fedlib.models.text import BiLSTM, FastText

__all__ = [
    "ACTIVATIONS",
    "INITS",
    "MLP",
    "AutoEncoder",
    "BiLSTM",
    "Family",
    "FastText",
    "GateNet",
    "LeNet",
    "Net",
    "Params",
    "ResNet",
    "drawn",
    "each",
    "fedmix_lenet5",
    "named",
    "part",
    "stack",
    "widened",
]
