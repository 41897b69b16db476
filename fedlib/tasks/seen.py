"""Images as clients see them: turned by an angle, called by other labels, cropped in training."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedlib.partition import LabelPermuted, Partition, Request, Rotated
from fedlib.values import value

Pool = tuple[Tensor, Tensor]
Layer = TypeVar("Layer", bound=Request)
BLOCK = 4096  # images turned at once


def view(
    request: Request, pool: Pool, part: Partition, seed: int, classes: int
) -> tuple[Pool, Partition]:
    """Return the examples of a part, each way of seeing one once, and the part pointing at them.

    ``pool`` is ``x`` uint8 ``[N, height, width, channels]`` (tokens where nothing is turned) and
    ``y`` int64 ``[N]``. The sides "angle" and "permutation" of ``part`` say how its examples are
    seen, ``request`` what these numbers mean.
    """
    x, y = pool
    held = part.index >= 0
    rotated, permuted = _layer(request, Rotated), _layer(request, LabelPermuted)
    angles = rotated.angles if rotated else (0.0,)
    tables = permuted.tables(seed, classes) if permuted else np.arange(classes)[None]
    turn, call = (part.side.get(n, np.zeros_like(part.index)) for n in ("angle", "permutation"))
    code = (part.index * len(angles) + turn) * len(tables) + call
    seen, place = np.unique(code[held], return_inverse=True)
    index = np.full_like(part.index, -1)
    index[held] = place
    rest, call = np.divmod(seen, len(tables))
    example, turn = np.divmod(rest, len(angles))
    where, called = (torch.as_tensor(numbers, device=x.device) for numbers in (example, call))
    labels = torch.as_tensor(tables, device=x.device)[called].gather(1, y[where, None])[:, 0]
    images = x[where]
    if len(angles) > 1:
        if images.ndim != 4:
            raise ValueError("only images can be rotated, and these are texts")
        for number, degrees in enumerate(angles):
            rows = torch.as_tensor(np.flatnonzero(turn == number), device=x.device)
            images[rows] = rotate(images[rows], degrees)
    return (images, labels), Partition(index, part.sizes, part.side)


def _layer(request: Request | None, kind: type[Layer]) -> Layer | None:
    """Return the outermost request of a kind among one and those that it is around."""
    while request is not None and not isinstance(request, kind):
        request = getattr(request, "of", None)
    return request


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Return images uint8 ``[N, height, width, channels]`` turned counter-clockwise, black outside.

    Bilinear between pixels; exact for right angles of square images.
    """
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0 and images.shape[1] == images.shape[2]:
        return torch.rot90(images, int(quarters), (1, 2))
    return torch.cat([_resampled(block, degrees) for block in images.split(BLOCK)])


def _resampled(images: Tensor, degrees: float) -> Tensor:
    height, width = images.shape[1:3]
    turn = math.radians(degrees)
    cos, sin = math.cos(turn), math.sin(turn)
    # affine_grid speaks of a square from -1 to 1, whatever the sides of the image.
    across = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(across, dtype=torch.float32, device=images.device)
    planes = images.movedim(-1, 1).to(torch.float32)
    grid = functional.affine_grid(theta.expand(len(images), 2, 3), list(planes.shape), False)
    turned = functional.grid_sample(planes, grid, align_corners=False)
    return turned.round().clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous()


@value
class CropFlip:
    """A crop of the image's own size from a black border, and a mirror image half of the time.

    Drawn anew for every batch. ``padding`` is the border's width in pixels (4: 000, CIFAR-100;
    He et al., 2016).
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
