"""A generic and a personal head on shared features: their logits are added, or features divided."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize, relu

from fedlib.algorithms.arithmetic import mean_cross_entropy, placed
from fedlib.algorithms.drift import RECEIVED
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import FEATURES, Known, Phase, State, Update, noise_of
from fedlib.federation import Federation
from fedlib.models import Net, Params, drawn, named, part
from fedlib.randomness import torch_seed
from fedlib.values import value, within

OWN, POLICY = "own.", "policy."
LOG_COUNTS = "log_counts"
WHO = "who"
THEIRS = "cp:received"
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels


@value
class FedRoD(Split):
    """One base f below a generic head h and a personal one h_s: logits = h(f(x)) + h_s(f(x)).

    Base and generic head are shared and minimise the balanced softmax, which adds log n_y to the
    logit of a label that the client holds n_y times. The personal head, which begins as a copy of
    the generic one, minimises the cross-entropy of the sum and moves nothing else.

        f, h:  CE( h(f(x)) + log n )        h_s:  CE( h(f(x)) + h_s(f(x)) )

    A newcomer gets the generic model.

    Reference: Chen and Chao, On bridging generic and personalized federated learning for image
    classification, ICLR 2022. A method of 004. Deviation: the paper's hypernetwork head is left
    out, as in PFLlib and 004.
    """

    experts = OWN

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model and a second head."""
        model = FedAvg.leaves(self, fed, seed)
        return {**model, **named(part(model, "head."), OWN)}

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the logarithm of how often a client holds each label, ``[clients, classes]``."""
        return {LOG_COUNTS: fed.train.counts(fed.classes)[rows].to(torch.float32).log()}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the balanced loss of base and generic head, and that of the personal head."""
        y, weight = batch["y"], batch["weight"]
        h = self.features(net, params, batch)
        generic = net.logits(params, h)
        balanced = generic + ctx[LOG_COUNTS]
        both = generic.detach() + self.private(net, params, h.detach())
        return mean_cross_entropy(balanced, y, weight) + mean_cross_entropy(both, y, weight)

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features, and the generic head's logits."""
        return Opened(code["h"], net.logits(params, code["h"]))

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the generic logits: those of a client for a newcomer."""
        return {"logits": net.logits(params, code["h"])}


@value
class FedCP(Split):
    """A policy divides every feature h between a personal and a global head, r + s = 1.

        logits = own(r * h) + head(s * h)
        r = soft Gumbel choice at temperature 1 of ReLU(LayerNorm(Linear(h * v_j)))

    v_j, who the client is, is the sum of the rows of its personal head's weight at unit length; the
    policy is shared. Base, policy and personal head are trained; the received head is not, and
    what is sent back for it is the mean of it and the personal one. ``apart`` is lambda of the
    maximum mean discrepancy that keeps features near those of the received base:

        CE + lambda MMD^2(f(x), f_g(x))

    Reference: Zhang et al., FedCP: separating feature information for personalized federated
    learning via conditional policy, KDD 2023 (lambda 5; PFLlib and 004: 1). A method of 004.
    Deviation: for predictions r is chosen without noise; as released every evaluation has other
    noise (A36).
    """

    experts = OWN
    trains = ("base.", POLICY, OWN)
    limits = within(apart=">= 0")
    apart: float = 5.0

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, a second head like the first, and the policy."""
        model, d = FedAvg.leaves(self, fed, seed), fed.net.width
        policy = drawn(
            lambda: {"layer": nn.Linear(d, 2 * d), "norm": nn.LayerNorm(2 * d)},
            torch_seed(seed, "model", 1),
        )
        return {**model, **named(part(model, "head."), OWN), **placed(named(policy, POLICY), fed)}

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return who each client is, ``[clients, D]``."""
        return {WHO: normalize(state.local[f"{OWN}weight"][rows].sum(1), dim=-1)}

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the received base."""
        return named(part(state.shared, "base."), f"{RECEIVED}base.")

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains all but the received head."""
        return (self.phase(noise=(("policy", FEATURES),)),)

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
        theirs = {THEIRS: self._theirs(net, ctx, batch)} if self.apart else {}
        return Known(theirs, Split.known(self, net, frozen, ctx, batch).instead)

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
        mine = torch.sigmoid(chance) * h
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
