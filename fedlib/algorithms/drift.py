"""Methods against client drift: by a term of the loss, control variates, or averages per step."""

from dataclasses import replace
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
    0.001, 0.01, 0.1 and 1). A baseline of the PM-MoE paper. Deviation: that paper does not state
    mu, and PFLlib's default is 0.

    >>> from fedrun import Experiment, sweep, tiny
    >>> grid = [Experiment(tiny.task, FedProx(mu=mu), rounds=2, cohort=6) for mu in (0.01, 1.0)]
    >>> [result.experiment.algorithm for result in sweep(grid, progress=False)]
    [FedProx(), FedProx(mu=1.0)]
    """

    mu: NonNegativeFloat = 0.01

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the global model of the round."""
        return add_prefix(state.server_params, RECEIVED)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of one mini-batch plus the proximal term."""
        loss = FedAvg.loss(self, net, params, ctx, batch)
        return loss + self.mu / 2 * squared_distance(params, ctx)


def squared_distance(params: Params, ctx: Params) -> Tensor:
    """Return the squared distance of a client's parameters from those of the global model.

    Args:
        params: the client's parameters.
        ctx: its constants, among them ``received.*``. Running statistics do not count.

    >>> theirs = {"received.w": torch.tensor([1.0, 0.0])}
    >>> ours = {"w": torch.tensor([3.0, 1.0])}
    >>> 0.5 / 2 * squared_distance(ours, theirs)  # mu = 0.5, |w - w_g|^2 = 5
    tensor(1.2500)
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
    ICML 2020. A baseline of the PM-MoE paper.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, SCAFFOLD(), rounds=2, cohort=6))
    >>> last.state.client_params["drift.head.bias"].shape  # c_j of six clients
    torch.Size([6, 10])
    """

    local = (DRIFT,)
    _needs_plain_sgd = True

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and control variates of zero."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **zeros_like(model, CONTROL), **zeros_like(model, DRIFT)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the model's own parameters."""
        return (self.phase(train=("base.", "head.")),)

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return how many steps each client takes, ``[clients]``."""
        return {"steps": steps_of(self, fed, clients).to(torch.float32)}

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
        for n in (n for n in messages if n.startswith(CONTROL)):
            change = messages[n].sum(0) / fed.participating
            after.server_params[n] = state.server_params[n] + change
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
    5 and 10). A baseline of the PM-MoE paper, as in PFLlib, whose default mu is 0. Deviation:
    features are compared, as in PFLlib, where the paper compares the outputs of a projection head.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = MOON(mu=0.1, epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
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
        return {PREVIOUS + n: after[n] for n in select_prefix(before, PREVIOUS)}, message


@value
class FedNova(FedAvg):
    """FedAvg whose server averages each client's update per step, whatever its number of steps.

        w <- w - tau sum_s p(s) (w - w_s) / tau_s,    tau = sum_s p(s) tau_s

    tau_s is the number of a client's steps of plain SGD. If all clients take as many, the method is
    FedAvg.

    Args:
        client: optimiser with one rate. It must be plain SGD, for which tau_s is the number of
            steps. Default: SGD with rate 0.05.
        epochs, batch_size, server, steps: as in ``FedAvg``.

    Reference: Wang et al., Tackling the objective inconsistency problem in heterogeneous federated
    optimization, NeurIPS 2020 (eq. 5 and 6, for plain SGD).

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedNova(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    _needs_plain_sgd = True

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return p(s) tau / tau_s for every parameter, and p(s) for running statistics."""
        tau = steps_of(self, fed, clients).clamp(min=1)
        plain = FedAvg.weights(self, fed, state, clients, messages)
        return {n: p if is_statistic(n) else p * (p * tau).sum() / tau for n, p in plain.items()}


@value
class FedDyn(FedAvg):
    """FedAvg with a dynamic regulariser, with which local and global optima coincide.

        w_s <- w_s - eta grad [ CE(w_s) - <g_s, w_s> + alpha/2 |w_s - w|^2 ]    from w_s = w
        g_s <- g_s - alpha (w_s - w)                                            at the client
        h   <- h - alpha/m sum_S (w_s - w)                                      at the server
        w   <- mean_S w_s - h / alpha

    S is the cohort and m the number of participating clients.

    Args:
        alpha: weight of the regulariser, above 0. Default: 0.1.
        server: optimiser of the mean of w_s; SGD with rate 1 is the paper's. Default: SGD with
            rate 1.
        epochs, batch_size, client, steps: as in ``FedAvg``.

    Reference: Acar et al., Federated learning based on dynamic regularization, ICLR 2021
    (algorithm 1; alpha from 0.1, 0.01 and 0.001). In the paper w_s minimises its objective; here
    it takes a round's steps.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedDyn(alpha=0.1, epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local = (DRIFT,)
    alpha: PositiveFloat = 0.1

    phases = SCAFFOLD.phases  # the model, without g_s
    round_constants = FedProx.round_constants

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and g_s = 0."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **zeros_like(model, DRIFT)}

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in whose memory h is 0."""
        initial = FedAvg.init(self, fed, seed, first)
        return replace(initial, server_memory=zeros_like(initial.server_params, CONTROL))

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of one mini-batch plus the dynamic regulariser."""
        linear = [(t * params[n]).sum() for n, t in select_prefix(params, DRIFT).items()]
        near = self.alpha / 2 * squared_distance(params, ctx)
        return FedAvg.loss(self, net, params, ctx, batch) - reduce(torch.add, linear) + near

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the new g_s to be kept, and before - after of the model."""
        _, message = FedAvg.client_update(self, net, before, after, ctx)
        own = select_prefix(before, DRIFT).items()
        return {DRIFT + n: g + self.alpha * message[n] for n, g in own}, message

    weights = SCAFFOLD.weights

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return w = mean_S w_s - h / alpha, with the new h."""
        after = FedAvg.aggregate(self, fed, state, clients, messages)
        h = dict(state.server_memory)
        for n in (n for n in messages if not is_statistic(n)):
            h[CONTROL + n] = h[CONTROL + n] + self.alpha * messages[n].sum(0) / fed.participating
            after.server_params[n] = after.server_params[n] - h[CONTROL + n] / self.alpha
        return replace(after, server_memory=h)


def zeros_like(model: Params, prefix: str) -> Params:
    """Return zeros for every parameter with a gradient, under its name with a prefix."""
    return {prefix + n: torch.zeros_like(t) for n, t in model.items() if not is_statistic(n)}


def steps_of(algorithm: FedAvg, fed: Federation, clients: Tensor) -> Tensor:
    """Return how many mini-batch steps each client takes in a round, float64 ``[clients]``."""
    n = fed.sizes[clients]
    if algorithm.steps is not None:
        return (n > 0) * float(algorithm.steps)
    size = algorithm.batch_size or max(1.0, float(fed.sizes.max()))
    return (n / size).ceil() * algorithm.epochs
