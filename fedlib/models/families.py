"""Model families, as values: what a task names and a ``Net`` builds. No federated word in here."""

from __future__ import annotations

import math

from torch import nn

from fedlib.values import value


@value
class LeNet:
    """Convolutions with max-pooling, then fully connected layers (LeCun et al., 1998).

    ``channels`` and ``hidden`` are the widths of the convolutional and of the hidden layers. The
    defaults are the classic LeNet-5 (62,006 parameters on 32x32 colour images and 10 classes);
    ``fedmix_lenet5`` is the variant whose widths explain the FedMix paper.
    """

    channels: tuple[int, ...] = (6, 16)
    hidden: tuple[int, ...] = (120, 84)
    kernel: int = 5

    def check(self) -> None:
        _positive("LeNet.channels", self.channels)
        _positive("LeNet.hidden", self.hidden)
        _positive("LeNet.kernel", (self.kernel,))

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the feature extractor for images ``(height, width, channels)`` and its width D."""
        height, width, depth = shape
        layers: list[nn.Module] = []
        for out in self.channels:
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            if min(height, width) < 1:
                raise ValueError(f"{self} does not fit images of {shape[0]}x{shape[1]} pixels")
            layers += [nn.Conv2d(depth, out, self.kernel), nn.ReLU(), nn.MaxPool2d(2)]
            depth = out
        stack, features = _dense(height * width * depth, self.hidden)
        return nn.Sequential(*layers, nn.Flatten(), *stack), features


@value
class MLP:
    """A multi-layer perceptron on flattened images; (200, 200) is the one of FedMix, App. F."""

    hidden: tuple[int, ...] = (200, 200)

    def check(self) -> None:
        _positive("MLP.hidden", self.hidden)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers for images of ``shape`` and their output's width D."""
        layers, features = _dense(math.prod(shape), self.hidden)
        return nn.Sequential(nn.Flatten(), *layers), features


def fedmix_lenet5(width: int = 32) -> LeNet:
    """Return the LeNet-5 of the FedMix paper (000, sec. 4.1): two 5x5 convolutions and FC 512.

    The paper gives only the widths of its wide FedAvg variants, 61 channels for two experts and
    113 for four; ``width=32`` is the simplest LeNet whose nearest integers these are: 443,306,
    884,164 (x 1.994) and 1,779,968 (x 4.015) parameters.
    """
    return LeNet(channels=(width, width), hidden=(512,))


def _dense(features: int, hidden: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = []
    for out in hidden:
        layers += [nn.Linear(features, out), nn.ReLU()]
        features = out
    return layers, features


def _positive(what: str, widths: tuple[int, ...]) -> None:
    if not widths or any(type(w) is not int or w < 1 for w in widths):
        raise ValueError(f"{what} must be whole numbers >= 1, got {widths!r}")
