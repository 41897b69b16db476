"""FedCP: a policy splits features between a global and a personal head (Zhang et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize, relu

from fedlib.algorithms.fedavg import FedAvg, mean_cross_entropy, placed
from fedlib.algorithms.fedprox import RECEIVED
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import FEATURES, Phase, State, Update, noise_of
from fedlib.federation import Federation, Known
from fedlib.models import Net, Params, drawn, named, part
from fedlib.randomness import torch_seed
from fedlib.values import value

OWN, POLICY = "own.", "policy."
WHO = "who"
THEIRS = "cp:received"
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels


@value
class FedCP(Split):
    """logits = own(r h) + head(s h) with r + s = 1 for each of the D features, as a policy says.

    The policy (a linear layer, layer normalisation and ReLU, shared) looks at h times who the
    client is, the sum of the rows of its personal head's weight at unit length, and r is the soft
    Gumbel choice between its two outputs at ``temperature``. Base, policy and personal head are
    trained; the received head is not, and what is sent back for it is the mean of it and the
    personal one. ``apart`` times the maximum mean discrepancy keeps the features near those of the
    received base: 5 in the authors' script, 1 in PFLlib and 004.

    For predictions r is chosen without noise; as released every evaluation has other noise (A36).
    """

    apart: float = 5.0
    temperature: float = 1.0

    def check(self) -> None:
        FedAvg.check(self)
        if self.apart < 0 or self.temperature <= 0:
            raise ValueError(
                f"FedCP needs apart >= 0 and temperature > 0, got {self.apart}, {self.temperature}"
            )

    @property
    def experts(self) -> str:
        """How the names of a personal head's leaves begin."""
        return OWN

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, a second head like the first, and the policy."""
        model, d = FedAvg.leaves(self, fed, seed), fed.net.width
        policy = drawn(
            lambda: {"layer": nn.Linear(d, 2 * d), "norm": nn.LayerNorm(2 * d)},
            torch_seed(seed, "model", 1),
        )
        return {**model, **named(part(model, "head."), OWN), **placed(named(policy, POLICY), fed)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of a personal head."""
        return name.startswith(OWN)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return who each client is, ``[clients, D]``."""
        return {WHO: normalize(state.local[f"{OWN}weight"][rows].sum(1), dim=-1)}

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the received base."""
        return named(part(state.shared, "base."), f"{RECEIVED}base.")

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains all but the received head."""
        names, noise = ("base.", POLICY, OWN), (("policy", FEATURES),)
        return (Phase(self.client, self.epochs, self.batch_size, train=names, noise=noise),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy, and how far features are from the received base's."""
        weight, noise = batch["weight"], batch[noise_of("policy")]
        h = self.features(net, params, batch)
        entry, rest = self._parted(net, params, ctx, h, noise)
        said = rest + self.private(net, params, entry)
        loss = mean_cross_entropy(said, batch["y"], weight)
        if not self.apart:
            return loss
        theirs = batch[THEIRS] if THEIRS in batch else self._theirs(net, ctx, batch)
        return loss + self.apart * discrepancy(h, theirs, weight)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return the received base's features, and the client's own where these stand still."""
        mine = Split.known(self, net, frozen, ctx, batch)
        return mine._replace(beside={THEIRS: self._theirs(net, ctx, batch)}) if self.apart else mine

    def _theirs(self, net: Net, ctx: Params, batch: Params) -> Tensor:
        return net.features(part(ctx, RECEIVED), batch["x"])

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after, where the head after is the mean of received and personal one."""
        sent = {n: before[n] - after[n] for n in before if n.startswith(("base.", POLICY))}
        own = part(after, OWN)
        heads = {f"head.{n}": (before[f"head.{n}"] - mine) / 2 for n, mine in own.items()}
        return {}, sent | heads

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the personal share of the features, and what the global head makes of the rest."""
        return self._parted(net, params, ctx, code["h"], None)

    def _parted(
        self, net: Net, params: Params, ctx: Params, h: Tensor, noise: Tensor | None
    ) -> Opened:
        policy = part(params, POLICY)
        said = linear(h * ctx[WHO], policy["layer.weight"], policy["layer.bias"])
        said = layer_norm(said, said.shape[-1:], policy["norm.weight"], policy["norm.bias"])
        mine, theirs = relu(said).unflatten(-1, (2, net.width)).unbind(-2)
        chance = mine - theirs
        if noise is not None:
            # The difference of two Gumbel variables is logistic.
            chance = chance + torch.logit(noise, eps=1e-6)
        mine = torch.sigmoid(chance / self.temperature) * h
        return Opened(mine, net.logits(params, h - mine))


def discrepancy(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of rows ``[B, D]`` with ``weight`` ``[B]``.

    Under the sum of four Gaussian kernels e^(-d^2 / 2 w), diagonals included, as in FedCP's code.
    """
    rows = torch.cat([a, b], -2)
    share = torch.cat([weight, -weight]) / weight.sum().clamp(min=1)
    squares = (rows**2).sum(-1)
    far = (squares.unsqueeze(-1) + squares - 2 * rows @ rows.mT).clamp(min=0)
    # All kernels in one tensor: a small batch's time is that of launching operations.
    narrow = far.new_tensor(WIDTHS).mul(-2).reciprocal().view(-1, *[1] * 2)
    return ((far * narrow).exp().sum(0) * (share.unsqueeze(-1) * share)).sum()
