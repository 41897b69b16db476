"""Methods against client drift: a proximal term, control variates, or a contrastive loss."""

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from fedlib.algorithms.fedavg import FedAvg, features_of
from fedlib.algorithms.interface import *

RECEIVED = "received."  # the downloaded global model, in ``round_constants``
CONTROL, DRIFT = "control.", "drift."  # the server's control variate c, and a client's c_j
PREVIOUS = "previous."  # the model that a client had at the end of its last round
LEAST = 1e-8  # least norm of features, as in torch's cosine similarity


@value
class FedProx(FedAvg):
    """FedAvg with a proximal term that keeps local models close to the global model w_g.

        w_j <- w_j - alpha grad [ CE(w_j) + mu/2 |w_j - w_g|^2 ]

    Args:
        mu: weight of the proximal term, at least 0. With 0 the method is FedAvg. Default: 0.01.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Li et al., Federated optimization in heterogeneous networks, MLSys 2020 (mu from
    0.001, 0.01, 0.1 and 1). A baseline of 004. Deviation: 004 does not state mu, and PFLlib's
    default is 0 (A30).

    >>> theirs = {"received.w": torch.tensor([1.0, 0.0])}
    >>> ours = {"w": torch.tensor([3.0, 1.0])}
    >>> 0.5 / 2 * squared_distance(ours, theirs)  # mu = 0.5, |w - w_g|^2 = 5
    tensor(1.2500)
    """

    mu: NonNegativeFloat = 0.01

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the global model of the round."""
        return add_prefix(state.server_params, RECEIVED)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of one mini-batch plus the proximal term."""
        return FedAvg.loss(self, net, params, ctx, batch) + self.mu / 2 * squared_distance(
            params, ctx
        )


def squared_distance(params: Params, ctx: Params) -> Tensor:
    """Return the squared distance of a client's parameters from those of the global model.

    Args:
        params: the client's parameters.
        ctx: its constants, among them ``received.*``. Running statistics do not count.
    """
    received = select_prefix(ctx, RECEIVED).items()
    squares = [((params[n] - t) ** 2).sum() for n, t in received if not is_statistic(n)]
    return reduce(torch.add, squares)


@value
class SCAFFOLD(FedAvg):
    """FedAvg with gradients that control variates c - c_j correct for client drift.

        w_j <- w_j - eta (grad CE(w_j) + c - c_j)
        c_j <- c_j - c + (w_g - w_j) / (K eta)                             (option II)
        c   <- c + |S|/N mean_S (change of c_j),    w_g <- mean_S w_j

    K is the number of a client's steps, S the cohort and N the number of clients. The server has c
    (``control.*``), each client c_j (``drift.*``). A round sends twice the bytes of FedAvg.

    Args:
        client: optimiser with rate eta. It must be plain SGD, as the update of c_j assumes.
            Default: SGD with rate 0.05.
        epochs, batch_size, server, steps: as in ``FedAvg``.

    Reference: Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning,
    ICML 2020. A baseline of 004.
    """

    local = (DRIFT,)
    _needs_plain_sgd = True

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and control variates of zero."""
        model = FedAvg.init_params(self, fed, seed)
        zeros = {n: torch.zeros_like(t) for n, t in model.items() if not is_statistic(n)}
        return {**model, **add_prefix(zeros, CONTROL), **add_prefix(zeros, DRIFT)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the model's own parameters."""
        return (self.phase(train=("base.", "head.")),)

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return how many steps each client takes, ``[clients]``."""
        n = fed.sizes[clients]
        per_epoch = (n / (self.batch_size or max(1.0, float(fed.sizes.max())))).ceil()
        steps = per_epoch * self.epochs if self.steps is None else (n > 0) * self.steps
        return {"steps": steps.to(torch.float32)}

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy plus a linear term whose gradient is c - c_j."""
        loss = FedAvg.loss(self, net, params, ctx, batch)
        for name, c in select_prefix(params, CONTROL).items():
            loss = loss + (params[name] * (c - params[DRIFT + name])).sum()
        return loss

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the new c_j to be kept; before - after of the model and the change of c_j."""
        steps = ctx["steps"]
        scale = 1 / (steps.clamp(min=1) * self.client.lr)
        server = select_prefix(before, CONTROL)
        _, model = FedAvg.client_update(self, net, before, after, ctx)
        mine = {n: before[DRIFT + n] for n in server}
        own = {n: mine[n] - c + model[n] * scale for n, c in server.items()}
        own = {n: torch.where(steps > 0, t, mine[n]) for n, t in own.items()}
        change = {n: t - mine[n] for n, t in own.items()}
        return add_prefix(own, DRIFT), {**model, **add_prefix(change, CONTROL)}

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return 1 / |S| for every client."""
        p = torch.ones_like(fed.sizes[clients]) / len(clients)
        return {n: p for n in state.server_params if n in messages}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the averaged model, and c moved by the mean change over all clients."""
        after = FedAvg.aggregate(self, fed, state, clients, drop_prefix(messages, CONTROL))
        for name in add_prefix(select_prefix(state.server_params, CONTROL), CONTROL):
            after.server_params[name] = (
                state.server_params[name] + messages[name].sum(0) / fed.participating
            )
        return after


@value
class MOON(FedAvg):
    """FedAvg with a contrastive loss between the local, the global and the previous local model.

        CE - mu log [ e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)) ]

    z, z_g and z_p are the features below the output layer of the client's model, of the global
    model, and of the client's model at the end of its last round (before its first, the initial
    model).

    Args:
        mu: weight of the contrastive loss, at least 0. With 0 the method is FedAvg. Default: 1.0.
        tau: temperature, above 0. Default: 0.5.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Li et al., Model-contrastive federated learning, CVPR 2021 (tau 0.5, mu from 0.1, 1,
    5 and 10). A baseline of 004, as in PFLlib, whose default mu is 0 (A30). Deviation: features
    are compared, as in PFLlib, where the paper compares the outputs of a projection head.
    """

    local = (PREVIOUS,)
    mu: NonNegativeFloat = 1.0
    tau: PositiveFloat = 0.5

    phases = SCAFFOLD.phases  # the model, without the previous one

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and a copy of its base as the previous model."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(select_prefix(model, "base."), f"{PREVIOUS}base.")}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the base of the global model."""
        return add_prefix(select_prefix(state.server_params, "base."), f"{RECEIVED}base.")

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return (u_p - u_g) / tau, with the normalised features u of the two frozen models."""
        models = select_prefix(ctx, RECEIVED), select_prefix(frozen, PREVIOUS)
        h = (net.features(params, batch.x) for params in models)
        theirs, mine = (normalize(features, dim=-1, eps=LEAST) for features in h)
        return Precomputed({"apart": (mine - theirs) / self.tau}, {})

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy plus the contrastive loss of one mini-batch."""
        weight = batch.weight
        z = features_of(net, params, batch)
        loss = mean_cross_entropy(net.logits(params, z), batch.y, weight)
        found = batch.precomputed or self.precompute(net, params, ctx, batch).extra
        # cos(z, z_p) / tau - cos(z, z_g) / tau
        nearer = (normalize(z, dim=-1, eps=LEAST) * found["apart"]).sum(-1)
        return loss + self.mu * mean(softplus(nearer), weight)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the trained base, kept as the previous model, and before - after."""
        _, message = FedAvg.client_update(self, net, before, after, ctx)
        return {
            n: after[n.removeprefix(PREVIOUS)] for n in before if n.startswith(self.local)
        }, message
