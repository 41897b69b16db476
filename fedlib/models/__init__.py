"""Models, written for one batch of examples."""

from fedlib.models.autoencoder import AutoEncoder
from fedlib.models.families import MLP, Family, LeNet, fedmix_lenet5
from fedlib.models.gate import GateNet
from fedlib.models.net import Classifier, Net, Params, drawn, each, named, part, stack
from fedlib.models.residual import ResNet
from fedlib.models.text import BiLSTM, FastText
from fedlib.models.wide import widened

__all__ = [
    "MLP",
    "AutoEncoder",
    "BiLSTM",
    "Classifier",
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
