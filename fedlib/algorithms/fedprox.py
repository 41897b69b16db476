"""FedProx: local models are held near the one that was received (Li et al., 2020)."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Net, Params, named, part
from fedlib.values import value

RECEIVED = "received."  # the global model as it came, among what all clients know


@value
class FedProx(FedAvg):
    """FedAvg with mu/2 |w - w_g|^2 added to every client's loss; w_g is the received model.

    ``mu`` 0 is FedAvg. Li et al. choose from 0.001, 0.01, 0.1 and 1; PFLlib's default is 0 (A30).
    """

    mu: float = 0.01

    def check(self) -> None:
        FedAvg.check(self)
        if self.mu < 0:
            raise ValueError(f"FedProx.mu must be >= 0, got {self.mu}")

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the received model."""
        return named(state.shared, RECEIVED)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy and the proximal term of one mini-batch."""
        return FedAvg.loss(self, net, params, ctx, batch) + self.mu / 2 * far(params, ctx)


def far(params: Params, ctx: Params) -> Tensor:
    """Return the squared distance of a client's leaves from the received ones."""
    squares = [((params[n] - t) ** 2).sum() for n, t in part(ctx, RECEIVED).items()]
    return reduce(torch.add, squares)
