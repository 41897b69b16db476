"""Model families, as values: what a task names and a ``Net`` builds. No federated word in here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.values import value, within

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

    limits = within(
        channels=">= 1",
        hidden=">= 1",
        kernel=">= 1",
        dropout="[0, 1)",
        channel_dropout="[0, 1)",
        response_norm=">= 0",
        output=("log-softmax", "softmax"),
    )
    channels: tuple[int, ...] = (6, 16)
    hidden: tuple[int, ...] = (120, 84)
    kernel: int = 5
    response_norm: int = 0
    dropout: float = 0.0
    channel_dropout: float = 0.0
    output: str = "log-softmax"

    @property
    def noise(self) -> int:
        """How many random numbers per example training asks for: one per unit that may drop."""
        hidden = sum(self.hidden) if self.dropout else 0
        return hidden + (self.channels[-1] if self.channel_dropout else 0)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return convolutions, pooling and hidden layers; see ``Family``."""
        height, width, depth = shaped(self, shape, 3, "images")
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
        layers += [nn.Flatten(), *dense(height * width * depth, self.hidden, self.dropout)]
        return nn.Sequential(*layers), self.hidden[-1]


def fedmix_lenet5(width: int = 32) -> LeNet:
    """Return the LeNet-5 of the FedMix paper (000, sec. 4.1): two 5x5 convolutions and FC 512.

    The paper gives only the widths of its wide FedAvg variants, 61 channels for two experts and
    113 for four; ``width=32`` is the simplest LeNet whose nearest integers these are: 443,306,
    884,164 (x 1.994) and 1,779,968 (x 4.015) parameters.
    """
    return LeNet(channels=(width, width), hidden=(512,))


@value
class MLP(Family):
    """A multi-layer perceptron on flattened images; (200, 200) is the one of FedMix, App. F."""

    limits = within(hidden=">= 1")
    hidden: tuple[int, ...] = (200, 200)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Family``."""
        widths = (math.prod(shape), *self.hidden)
        small = sum(i * o + o for i, o in itertools.pairwise(widths)) <= SMALL
        layers = dense(widths[0], self.hidden, layer=Stackable if small else nn.Linear)
        return nn.Sequential(nn.Flatten(), *layers), self.hidden[-1]


@value
class ResNet(Family):
    """The residual network for small images (He et al., 2016, sec. 4.2) with GroupNorm.

    ``blocks`` basic blocks of two 3x3 convolutions in each stage, of the widths ``widths``; the
    first block of every later stage halves the image. The defaults are ResNet-20: 278,324
    parameters with 100 classes. ``groups`` per normalisation (000, A02). ``shortcut`` where widths
    change: "projection" (1x1 convolution) or "pad" (zeros, no parameters: 275,572).
    """

    limits = within(widths=">= 1", blocks=">= 1", groups=">= 1", shortcut=("projection", "pad"))
    blocks: int = 3
    widths: tuple[int, ...] = (16, 32, 64)
    groups: int = 2
    shortcut: str = "projection"

    def check(self) -> None:
        if any(width % self.groups for width in self.widths):
            raise ValueError(
                f"ResNet.groups must divide every width, got {self.groups} for {self.widths}"
            )

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the network up to its global average pooling; see ``Family``."""
        depth, first = shaped(self, shape, 3, "images")[2], self.widths[0]
        layers: list[nn.Module] = [*_normed(depth, first, 3, 1, self.groups), nn.ReLU()]
        depth = first
        for stage, width in enumerate(self.widths):
            for i in range(self.blocks):
                stride = 2 if stage and not i else 1
                layers.append(_Block(depth, width, stride, self.groups, self.shortcut))
                depth = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), depth


class _Block(nn.Module):
    """Two convolutions around which the input passes by."""

    def __init__(self, depth: int, width: int, stride: int, groups: int, shortcut: str) -> None:
        super().__init__()
        self.first = nn.Sequential(*_normed(depth, width, 3, stride, groups), nn.ReLU())
        self.second = nn.Sequential(*_normed(width, width, 3, 1, groups))
        same = depth == width and stride == 1
        project = not same and shortcut == "projection"
        self.project = nn.Sequential(*_normed(depth, width, 1, stride, groups)) if project else None
        self.stride, self.pad = stride, width - depth

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output ``[B, width, H / stride, W / stride]``."""
        if self.project is not None:
            past = self.project(x)
        else:
            past = x[..., :: self.stride, :: self.stride]
            past = functional.pad(past, (0, 0, 0, 0, 0, self.pad)) if self.pad else past
        return functional.relu(self.second(self.first(x)) + past)


def _normed(depth: int, width: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    padding = kernel // 2
    return [
        nn.Conv2d(depth, width, kernel, stride, padding, bias=False),
        nn.GroupNorm(groups, width),
    ]


class Dropout(nn.Module):
    """Drop each of ``units`` features with the probability ``p``, and scale the rest by 1/(1-p).

    ``noise`` ``[B, units]``, uniform in [0, 1), says which: those below ``p``. Without noise, which
    is when a model is not in training, everything passes. Features are the first axis after the
    batch's: of an image its channels, which are dropped whole.
    """

    def __init__(self, p: float, units: int) -> None:
        super().__init__()
        self.p, self.units = p, units
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return what is left of features ``[B, units, ...]``."""
        if self.noise is None:
            return x
        keep = (self.noise >= self.p).to(x.dtype) / (1 - self.p)
        return x * keep.view(*keep.shape, *[1] * (x.ndim - 2))


def fed_by(module: nn.Module, noise: Tensor | None) -> None:
    """Give every dropout of a module its share of the numbers ``[B, n]``, in order; or none."""
    drops = [m for m in module.modules() if isinstance(m, Dropout)]
    parts = noise.split([d.units for d in drops], -1) if noise is not None else [None] * len(drops)
    for drop, part in zip(drops, parts, strict=True):
        drop.noise = part


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
    """A linear layer for small nets, several of which are vmapped: its weight comes first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        return (self.weight @ x.mT).mT + self.bias


def dense(
    features: int,
    hidden: tuple[int, ...],
    dropout: float = 0.0,
    layer: type[nn.Linear] = nn.Linear,
    activation: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Return hidden layers on ``features`` inputs, each with its activation and its dropout."""
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise((features, *hidden)):
        layers += [layer(n, out), activation(), *([Dropout(dropout, out)] if dropout else [])]
    return layers


def shaped(family: Family, shape: tuple[int, ...], axes: int, kind: str) -> tuple[int, ...]:
    """Return the shape of an example; ValueError unless it has so many axes as its kind."""
    if len(shape) != axes:
        raise ValueError(f"{family} is for {kind}, and an example here is of shape {shape}")
    return shape
