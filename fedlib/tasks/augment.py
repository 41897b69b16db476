"""Random changes of the images that are trained on, drawn anew for every batch, on the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedlib.values import value


@value
class CropFlip:
    """A crop of the image's own size from a black border, and a mirror image half of the time.

    ``padding`` is the border's width in pixels (4: 000, CIFAR-100; He et al., 2016).
    """

    padding: int = 4
    flip: bool = True

    def check(self) -> None:
        if self.padding < 0:
            raise ValueError(f"CropFlip.padding must be >= 0, got {self.padding}")

    @property
    def numbers(self) -> int:
        """An example takes three random numbers: down, right, mirrored."""
        return 3

    def __call__(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return uint8 ``[N, H, W, C]`` cropped and mirrored by noise ``[N, 3]`` in [0, 1)."""
        height, width = images.shape[1:3]
        p = self.padding
        wide = functional.pad(images, (0, 0, p, p, p, p))
        down, right = (noise[:, :2] * (2 * p + 1)).to(torch.int64).unbind(1)
        rows = down[:, None] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(len(images), width)
        if self.flip:
            columns = torch.where(noise[:, 2:] < 0.5, width - 1 - columns, columns)
        columns = right[:, None] + columns
        each = torch.arange(len(images), device=images.device)
        return wide[each[:, None, None], rows[:, :, None], columns[:, None, :]]
