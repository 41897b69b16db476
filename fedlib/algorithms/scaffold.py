"""SCAFFOLD: every local step is corrected for the client's own drift (Karimireddy et al., 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, weighted_sum
from fedlib.engine import Phase, State, Update
from fedlib.federation import Federation
from fedlib.models import Net, Params, named, part
from fedlib.optim import server_step
from fedlib.values import value

CONTROL, OWN = "control.", "drift."  # the server's control variate c, and a client's c_j
STEPS = "steps"


@value
class SCAFFOLD(FedAvg):
    """FedAvg whose gradients are shifted by c - c_j: where everybody goes, less where I went.

    After K steps with rate lr a client's control variate is c_j <- c_j - c + (w_g - w_j) / (K lr)
    (option II of the paper), the server's moves by the mean change times the share of the clients
    that took part. Models are averaged with equal weights. Clients take plain SGD steps, as the
    update of c_j counts on it. Twice the traffic of FedAvg.
    """

    weighting: str = "uniform"

    def check(self) -> None:
        FedAvg.check(self)
        if not self.client.is_plain:
            raise ValueError(f"SCAFFOLD's clients take plain SGD steps, got {self.client}")
        if self.client.rates or not self.client.lr:
            raise ValueError(f"SCAFFOLD needs one learning rate above 0, got {self.client}")

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, and control variates that start at zero."""
        model = FedAvg.leaves(self, fed, seed)
        zeros = {n: torch.zeros_like(t) for n, t in model.items()}
        return {**model, **named(zeros, CONTROL), **named(zeros, OWN)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is a client's own control variate."""
        return name.startswith(OWN)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return how many steps each client takes, ``[clients]``."""
        n = fed.sizes[rows]
        per_epoch = (n / (self.batch_size or max(1.0, float(fed.sizes.max())))).ceil()
        return {STEPS: (per_epoch * self.epochs).clamp(min=1).to(torch.float32)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains the model."""
        return (Phase(self.client, self.epochs, self.batch_size, train=("base.", "head.")),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy, with a linear term whose gradient is c - c_j."""
        loss = FedAvg.loss(self, net, params, ctx, batch)
        for name, c in part(params, CONTROL).items():
            loss = loss + (params[name] * (c - params[OWN + name])).sum()
        return loss

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the client's new control variate; before - after of the model, and its change."""
        scale = 1 / (ctx[STEPS] * self.client.lr)
        server = part(before, CONTROL)
        moved = {n: (before[n] - after[n]) * scale for n in server}
        own = {OWN + n: before[OWN + n] - c + moved[n] for n, c in server.items()}
        model = {n: before[n] - after[n] for n in server}
        return own, {**model, **{CONTROL + n: own[OWN + n] - before[OWN + n] for n in server}}

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Average the models, and move the control variate by the mean change of all clients."""
        members = fed.clients if fed.members is None else len(fed.members)
        gradients = {
            n: weighted_sum(w, messages[n])
            for n, w in self.weights(fed, state, rows, messages).items()
            if not n.startswith(CONTROL)
        }
        shared, optimizer = server_step(self.server, state.shared, gradients, state.optimizer)
        moved = {
            n: state.shared[n] + messages[n].sum(0) / members
            for n in shared
            if n.startswith(CONTROL)
        }
        return replace(state, shared={**shared, **moved}, optimizer=optimizer)
