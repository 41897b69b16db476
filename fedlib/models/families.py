"""Model families, as values: what a task names and a ``Net`` builds. No federated word in here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlib.models.dropout import Dropout
from fedlib.values import one_of, value

# Several dense nets of at most so many parameters fit into a CPU core's own cache together.
SMALL = 2**18


@dataclass(frozen=True)
class Family:
    """A kind of network, as a value that prints as code; the base of them all.

    A family of one's own is a subclass made a value with ``@value`` that has a ``base``.
    """

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the feature extractor for examples of ``shape`` and its output's width D.

        Images are ``(height, width, channels)`` and arrive as ``[B, channels, height, width]``,
        texts ``(tokens,)`` and arrive as int64 ``[B, tokens]``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what its base is")

    @property
    def noise(self) -> int:
        """How many random numbers per example training asks for: here none."""
        return 0


@value
class LeNet(Family):
    """Convolutions with max-pooling, then fully connected layers (LeCun et al., 1998).

    ``channels`` and ``hidden`` are the widths of the convolutional and of the hidden layers. The
    defaults are the classic LeNet-5 (62,006 parameters on 32x32 colour images and 10 classes);
    ``fedmix_lenet5`` is the variant whose widths explain the FedMix paper. ``response_norm`` is the
    window of the local response normalisation after the first pooling and before every later one,
    as in IFCA's network for Rotated CIFAR-10; 0 is none. In training ``dropout`` is the share of
    the units of every hidden layer that is dropped, ``channel_dropout`` that of the channels after
    the last convolution (003, Table 1 and its gate). ``output`` "softmax" is a mistake of 001's
    released code: what is trained, mixed and judged as log p is p itself, so that the loss is
    -p(y). ``FedAvg``, ``Local``, ``Mixture`` and ``IFCA``'s models read it, others do not.
    """

    channels: tuple[int, ...] = (6, 16)
    hidden: tuple[int, ...] = (120, 84)
    kernel: int = 5
    response_norm: int = 0
    dropout: float = 0.0
    channel_dropout: float = 0.0
    output: str = "log-softmax"

    def check(self) -> None:
        positive("LeNet.channels", self.channels)
        positive("LeNet.hidden", self.hidden)
        positive("LeNet.kernel", (self.kernel,))
        if self.response_norm < 0:
            raise ValueError(f"LeNet.response_norm must be >= 0, got {self.response_norm}")
        one_of("LeNet.output", self.output, ("log-softmax", "softmax"))
        for name in ("dropout", "channel_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"LeNet.{name} must lie in [0, 1), got {getattr(self, name)}")

    @property
    def noise(self) -> int:
        """How many random numbers per example training asks for: one per unit that may drop."""
        hidden = sum(self.hidden) if self.dropout else 0
        return hidden + (self.channels[-1] if self.channel_dropout else 0)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return convolutions, pooling and hidden layers; see ``Family``."""
        height, width, depth = images(self, shape)
        layers: list[nn.Module] = []
        for i, out in enumerate(self.channels):
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            if min(height, width) < 1:
                raise ValueError(f"{self} does not fit images of {shape[0]}x{shape[1]} pixels")
            layers.append(nn.Conv2d(depth, out, self.kernel))
            if self.response_norm and i:
                layers += [nn.ReLU(), nn.LocalResponseNorm(self.response_norm), MaxPool2d(2)]
            else:  # the same as pooling what ReLU lets through, of a quarter of the numbers
                layers += [MaxPool2d(2), nn.ReLU()]
                layers += [nn.LocalResponseNorm(self.response_norm)] if self.response_norm else []
            depth = out
        if self.channel_dropout:
            layers.append(Dropout(self.channel_dropout, depth))
        stack, features = _dense(height * width * depth, self.hidden, dropout=self.dropout)
        return nn.Sequential(*layers, nn.Flatten(), *stack), features


@value
class MLP(Family):
    """A multi-layer perceptron on flattened images; (200, 200) is the one of FedMix, App. F."""

    hidden: tuple[int, ...] = (200, 200)

    def check(self) -> None:
        positive("MLP.hidden", self.hidden)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Family``."""
        widths = (math.prod(shape), *self.hidden)
        small = sum(i * o + o for i, o in itertools.pairwise(widths)) <= SMALL
        layers, features = _dense(widths[0], self.hidden, Stackable if small else nn.Linear)
        return nn.Sequential(nn.Flatten(), *layers), features


def fedmix_lenet5(width: int = 32) -> LeNet:
    """Return the LeNet-5 of the FedMix paper (000, sec. 4.1): two 5x5 convolutions and FC 512.

    The paper gives only the widths of its wide FedAvg variants, 61 channels for two experts and
    113 for four; ``width=32`` is the simplest LeNet whose nearest integers these are: 443,306,
    884,164 (x 1.994) and 1,779,968 (x 4.015) parameters.
    """
    return LeNet(channels=(width, width), hidden=(512,))


class MaxPool2d(nn.MaxPool2d):
    """Max-pooling by two, the same numbers ten times as fast where no gradient is asked for.

    torch's also notes where every maximum was, which takes longest with few channels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest of every four neighbours, ``[B, C, H / 2, W / 2]``."""
        if torch.is_grad_enabled() or x.shape[-1] % 2 or x.shape[-2] % 2:
            return super().forward(x)
        rows = x.permute(0, 2, 3, 1).unflatten(1, (-1, 2))
        columns = torch.maximum(rows[:, :, 0], rows[:, :, 1]).unflatten(2, (-1, 2))
        return torch.maximum(columns[:, :, :, 0], columns[:, :, :, 1]).permute(0, 3, 1, 2)


class Stackable(nn.Linear):
    """A linear layer that stays fast when several are vmapped, as small nets are.

    The gradient of its weight is laid out like the weight. ``nn.Linear``'s is transposed then, and
    copied at every step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        return (self.weight @ x.mT).mT + self.bias


def _dense(
    features: int,
    hidden: tuple[int, ...],
    layer: type[nn.Linear] = nn.Linear,
    dropout: float = 0.0,
) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = []
    for out in hidden:
        layers += [layer(features, out), nn.ReLU(), *([Dropout(dropout, out)] if dropout else [])]
        features = out
    return layers, features


def images(family: Family, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return height, width and channels; ValueError for examples that are not images."""
    if len(shape) != 3:
        raise ValueError(f"{family} is for images, and an example here is of shape {shape}")
    height, width, channels = shape
    return height, width, channels


def positive(what: str, numbers: tuple[int, ...]) -> None:
    """Raise ValueError unless all numbers are whole and at least 1."""
    if not numbers or any(type(n) is not int or n < 1 for n in numbers):
        raise ValueError(f"{what} must be whole numbers >= 1, got {numbers!r}")
