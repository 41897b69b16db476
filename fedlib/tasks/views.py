"""Examples as a client sees them: turned by an angle, called by other labels, or just its own."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedlib.partition import LabelPermuted, Partition, Request, Rotated

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
    where = torch.as_tensor(example, device=x.device)
    labels = torch.as_tensor(tables, device=y.device)[torch.as_tensor(call, device=y.device)]
    images = _turned(x[where], [angles[i] for i in turn]) if len(angles) > 1 else x[where]
    called = labels.gather(1, y[where, None])[:, 0]
    return (images, called), Partition(index, part.sizes, part.side)


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


def _turned(images: Tensor, degrees: list[float]) -> Tensor:
    if images.ndim != 4:
        raise ValueError("only images can be rotated, and these are texts")
    out, angle = torch.empty_like(images), np.array(degrees)
    for one in np.unique(angle):
        rows = torch.as_tensor(np.flatnonzero(angle == one), device=images.device)
        out[rows] = rotate(images[rows], float(one))
    return out


def _layer(request: Request | None, kind: type[Layer]) -> Layer | None:
    """Return the outermost request of a kind among one and those that it is around."""
    while request is not None and not isinstance(request, kind):
        request = getattr(request, "of", None)
    return request
