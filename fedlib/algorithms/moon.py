"""MOON: representations are pulled to the global model's and away from yesterday's own."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize, softplus

from fedlib.algorithms.fedavg import FedAvg, mean, mean_cross_entropy
from fedlib.algorithms.fedprox import RECEIVED
from fedlib.engine import Phase, State, Update
from fedlib.federation import Federation, Known
from fedlib.models import Net, Params, named, part
from fedlib.values import value

PREVIOUS = "previous."
APART = "moon:apart"
LEAST = 1e-8  # length of features, as in torch's cosine


@value
class MOON(FedAvg):
    """FedAvg with a contrastive term between models (Li et al., 2021).

    z, z_g and z_p are the inputs of the output layer in the client's model, in the received one,
    and in the model that the client had at the end of its last round, at first the initial one:
    ``mu`` times -log of e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)).
    ``mu`` 0 is FedAvg, and PFLlib's default (A30); the paper has ``tau`` 0.5 and chooses mu from
    0.1, 1, 5 and 10. The paper's networks end in a projection, whose output is that input here.
    """

    mu: float = 1.0
    tau: float = 0.5

    def check(self) -> None:
        FedAvg.check(self)
        if self.mu < 0 or self.tau <= 0:
            raise ValueError(f"MOON needs mu >= 0 and tau > 0, got mu={self.mu}, tau={self.tau}")

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, and itself as the first client's previous one."""
        model = FedAvg.leaves(self, fed, seed)
        return {**model, **named(part(model, "base."), f"{PREVIOUS}base.")}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of a client's previous model."""
        return name.startswith(PREVIOUS)

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the base of the received model."""
        return named(part(state.shared, "base."), f"{RECEIVED}base.")

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains the model."""
        return (Phase(self.client, self.epochs, self.batch_size, train=("base.", "head.")),)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return (u_p - u_g) / tau, where u are the other two models' features at unit length."""
        if not self.mu:
            return Known({}, {})
        theirs, mine = (
            normalize(net.features(leaves, batch["x"]), dim=-1, eps=LEAST)
            for leaves in (part(ctx, RECEIVED), part(frozen, PREVIOUS))
        )
        return Known({APART: (mine - theirs) / self.tau}, {})

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy and the contrastive term of one mini-batch."""
        weight = batch["weight"]
        z = net.features(params, batch["x"], batch.get("noise"))
        loss = mean_cross_entropy(net.logits(params, z), batch["y"], weight)
        if not self.mu:
            return loss
        apart = (batch if APART in batch else self.known(net, params, ctx, batch).beside)[APART]
        # cos(z, z_p) / tau - cos(z, z_g) / tau
        nearer = (normalize(z, dim=-1, eps=LEAST) * apart).sum(-1)
        return loss + self.mu * mean(softplus(nearer), weight)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the client's model as the previous one of its next round, and before - after."""
        _, message = FedAvg.client_update(self, net, before, after, ctx)
        return {n: after[n.removeprefix(PREVIOUS)] for n in before if self.is_local(n)}, message
