"""Dropout whose draws come from outside, so that a client's are its own on every machine."""

from __future__ import annotations

from torch import Tensor, nn


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


def numbers(module: nn.Module) -> int:
    """Return how many numbers per example a module's dropouts ask for in all."""
    return sum(m.units for m in module.modules() if isinstance(m, Dropout))
