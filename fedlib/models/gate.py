"""The gate of PM-MoE: a few dense layers, whose activation and initialisation matter (004)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlib.models.dropout import Dropout
from fedlib.models.families import Family, positive
from fedlib.values import one_of, value

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}


def _normal(weight: Tensor) -> Tensor:
    return nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def _spectral(weight: Tensor) -> Tensor:
    """Return the weight with 1 as its largest singular value."""
    return weight / torch.linalg.matrix_norm(weight, 2)


# PyTorch's own initialisation of a layer is uniform.
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda w: w,
    "normal": _normal,
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "spectral": _spectral,
}


@value
class GateNet(Family):
    """Dense layers of ``hidden`` units with an ``activation``, below an output per expert.

    Weights begin as ``init`` says. 004 has four layers, LeakyReLU and orthogonal weights; its
    released code also has a ``dropout`` of 0.1 and a ReLU after the first layer.
    """

    hidden: tuple[int, ...] = (128, 256, 128)
    activation: str = "leaky_relu"
    init: str = "orthogonal"
    dropout: float = 0.0

    def check(self) -> None:
        if self.hidden:
            positive("GateNet.hidden", self.hidden)
        one_of("activation", self.activation, ACTIVATIONS)
        one_of("init", self.init, INITS)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GateNet.dropout must lie in [0, 1), got {self.dropout}")

    @property
    def noise(self) -> int:
        """How many random numbers per example training asks for: one per unit that may drop."""
        return sum(self.hidden) if self.dropout else 0

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Family``."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(shape)
        for out in self.hidden:
            layers += [nn.Linear(width, out), ACTIVATIONS[self.activation]()]
            layers += [Dropout(self.dropout, out)] if self.dropout else []
            width = out
        return nn.Sequential(*layers), width

    def begun(self, leaves: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return fresh leaves with weights as ``init`` says, drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return {
                n: INITS[self.init](t.clone()) if n.endswith("weight") and t.ndim == 2 else t
                for n, t in leaves.items()
            }
