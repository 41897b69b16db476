"""Residual networks with group normalisation, whose statistics no batch or client shares."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedlib.models.families import Family, images, positive
from fedlib.values import one_of, value


@value
class ResNet(Family):
    """The residual network for small images (He et al., 2016, sec. 4.2) with GroupNorm.

    ``blocks`` basic blocks of two 3x3 convolutions in each stage, of the widths ``widths``; the
    first block of every later stage halves the image. The defaults are ResNet-20: 278,324
    parameters with 100 classes. ``groups`` per normalisation (000, A02). ``shortcut`` where widths
    change: "projection" (1x1 convolution) or "pad" (zeros, no parameters: 275,572).
    """

    blocks: int = 3
    widths: tuple[int, ...] = (16, 32, 64)
    groups: int = 2
    shortcut: str = "projection"

    def check(self) -> None:
        positive("ResNet.widths", self.widths)
        positive("ResNet.blocks and groups", (self.blocks, self.groups))
        one_of("shortcut", self.shortcut, ("projection", "pad"))
        if any(width % self.groups for width in self.widths):
            raise ValueError(
                f"ResNet.groups must divide every width, got {self.groups} for {self.widths}"
            )

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the network up to its global average pooling; see ``Family``."""
        depth, first = images(self, shape)[2], self.widths[0]
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
