"""Training at the server: FedGen's generator of features and FedGH's output layer."""

from collections.abc import Callable, Iterable
from dataclasses import field, replace
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear, relu

from fedlib.algorithms.arithmetic import one_hot
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *
from fedlib.algorithms.splitting import LGFedAvg

MADE = "generator."
POOL = "pool"  # cumulative distribution of the labels over all clients
FITTED = "server/fit:"  # state of the generator's optimiser, by parameter/quantity
PROTOTYPES, HELD = "prototypes", "held"


@value
class FedGen(FedAvg):
    """FedAvg whose clients also train on features from a generator that the server trains.

        G   <- G - grad CE(mean_s h_s(G(e, y)), y)                          at the server
        w_s <- w_s - eta grad [ CE(w_s) + alpha CE(h_s(G(e, y)), y) ]       at a client

    G maps uniform noise e and a one-hot label y to features for the output layer h, by one hidden
    layer with batch normalisation. The mean of the clients' logits is computed with their mean
    output layer, as h is linear. The labels y are drawn from the label counts of all clients,
    which the server must know: the method reveals them by design.

    Args:
        noise: number of uniform random numbers e. Default: 512.
        hidden: width of the hidden layer of G. Default: 512.
        fit: optimiser of G; its moments last from round to round. Default: Adam with rate 0.005.
        steps: steps of G after every round, at least 0; the clients' training is always given by
            ``epochs``. Default: 1000.
        invented: generated features in a step of G. Default: 10.
        alpha: weight alpha of generated features at the clients, at least 0. Default: 1.0.
        epochs, batch_size, client, server: as in ``FedAvg``.

    Reference: Zhu et al., Data-free knowledge distillation for heterogeneous federated learning,
    ICML 2021. A baseline of the PM-MoE paper. Deviation: none from the paper's objective; the
    authors' code also has a distillation term, a diversity term and decaying weights, which PFLlib
    leaves out as well.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedGen(steps=20), rounds=2, cohort=6))
    >>> last.state.server_params["generator.last.weight"].shape  # [D, hidden]
    torch.Size([8, 512])
    """

    shares_asked = ("label",)  # whose distribution the generator needs
    noise: PositiveInt = 512
    hidden: PositiveInt = 512
    fit: Optimizer = adam(5e-3)
    steps: NonNegativeInt = field(default=1000, kw_only=True)
    invented: PositiveInt = 10
    alpha: NonNegativeFloat = 1.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the parameters of the model and of the generator."""
        with seeded(torch_seed(seed, "model", 1)):
            first = nn.Linear(self.noise + fed.classes, self.hidden)
            last = nn.Linear(self.hidden, fed.net.width)
        made = params_of({"first": first, "norm": nn.BatchNorm1d(self.hidden), "last": last})
        return {**FedAvg.init_params(self, fed, seed), **to_device(add_prefix(made, MADE), fed)}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the cumulative distribution of the labels."""
        counts = (fed.shares("label") * fed.sizes.unsqueeze(1)).round().sum(0)
        return {POOL: (counts.cumsum(0) / counts.sum()).to(torch.float32)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the model; the generator is trained by the server."""
        noise = ("generator", self.noise), ("label", 1)
        return (self.phase(train=("base.", "head."), random_inputs=noise, steps=None),)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of real examples plus that of as many generated features."""
        noise, weight = batch.random["generator"], batch.weight
        y = _label(batch.random["label"], ctx[POOL])
        z = generate(select_prefix(params, MADE), noise, y, net.classes, weight)
        on_made = mean_cross_entropy(net.logits(params, z), y, weight)
        return FedAvg.loss(self, net, params, ctx, batch) + self.alpha * on_made

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the averaged model, and the generator fitted to the clients' output layers."""
        p, pool = data_share(fed, clients), self.round_constants(fed, state)[POOL]
        head = add_prefix(select_prefix(state.server_params, "head."), "head.")
        heads = {n: t - weighted_sum(p, messages[n]) for n, t in head.items()}
        draw, weight = _generator(state), torch.ones(self.invented, device=fed.device)

        def loss(made: Params) -> Tensor:
            u = torch.rand(self.invented, self.noise + 1, generator=draw).to(fed.device)
            y = _label(u[:, self.noise, None], pool)
            z = generate(made, u[:, : self.noise], y, fed.classes, weight)
            return functional.cross_entropy(fed.net.logits(heads, z), y)

        made, memory = select_prefix(state.server_params, MADE), state.server_memory
        known = select_prefix(memory, FITTED)
        made, fit = fitted(self.fit.at(state.round), made, repeat(loss, self.steps), known)
        after = FedAvg.aggregate(self, fed, state, clients, messages)
        shared = {**after.server_params, **add_prefix(made, MADE)}
        memory = {**after.server_memory, **add_prefix(fit, FITTED)}
        return replace(after, server_params=shared, server_memory=memory)


@value
class FedGH(LGFedAvg):
    """Personal bases with an output layer that the server trains on class prototypes.

        c_jy = mean of f_j(x) over the client's examples of label y
        h <- h - eta grad mean_(j, y) CE(h(c_jy), y)

    A client trains its base f_j and its copy of the output layer h, then sends the mean features
    (prototypes) of each of its labels, but no model. The server trains h for one epoch over all
    pairs of prototype and label, in random order and with equal weights.

    Args:
        head: the server's optimiser of h. Default: SGD with rate 1.
        pairs: prototypes in a mini-batch of the server. Default: 10.
        local: name prefixes of the local parameters. Default: ``("base.",)``.
        epochs, batch_size, client, steps: as in ``FedAvg``; ``server`` is not used.

    Reference: Yi et al., FedGH: heterogeneous federated learning with generalized global header,
    ACM Multimedia 2023. A method of the PM-MoE paper. Deviation: the server has an output layer of
    its own; in PFLlib it is that of client 0 by mistake.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedGH(), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['base.1.weight', 'base.1.bias']
    """

    head: Optimizer = sgd(1.0)
    pairs: PositiveInt = 10

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return nothing, as no parameter is sent."""
        return {}, {}

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return the prototypes ``[clients, classes, D]``, and which labels a client has."""
        fed, clients = cohort.fed, cohort.clients
        total = torch.zeros(len(clients), fed.classes, fed.net.width, device=fed.device)
        count = torch.zeros(len(clients), fed.classes, device=fed.device)
        features = vmap_clients(fed.net.features, len(clients))
        for batch in fed.train.blocks(clients, BLOCK):
            labels = one_hot(batch.y, fed.classes) * batch.weight.unsqueeze(-1)
            total += labels.mT @ features(after, batch.x)
            count += labels.sum(1)
        held = (count > 0).to(total.dtype)
        means = total / count.clamp(min=1).unsqueeze(-1)
        return update[0], {**update[1], PROTOTYPES: means, HELD: held}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state with the output layer trained on the prototypes."""
        held = messages[HELD] > 0
        x, y = messages[PROTOTYPES][held], held.nonzero()[:, 1]
        order = torch.randperm(len(y), generator=_generator(state)).to(y.device)

        def loss(some: Tensor, head: Params) -> Tensor:
            return functional.cross_entropy(fed.net.logits(head, x[some]), y[some])

        losses = (partial(loss, some) for some in order.split(self.pairs))
        head, _ = fitted(self.head.at(state.round), state.server_params, losses)
        return replace(state, server_params=head)

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of the output layer down, and of each label's prototype up."""
        down, _ = LGFedAvg.communication_bytes(self, state, clients, {})
        each = nbytes({"mean": messages[PROTOTYPES][0, 0], "label": torch.tensor(0)})
        return down, messages[HELD].sum(1).cpu().to(torch.int64) * each


def generate(made: Params, noise: Tensor, y: Tensor, classes: int, weight: Tensor) -> Tensor:
    """Return generated features, ``[B, D]``.

    Args:
        made: the generator's parameters.
        noise: uniform random numbers, ``[B, n]``.
        y: labels, ``[B]``.
        classes: number of classes.
        weight: 1 for examples that count in the batch normalisation, 0 for padding, ``[B]``.
    """
    labels = one_hot(y, classes).to(noise.dtype)
    h = linear(torch.cat([noise, labels], -1), made["first.weight"], made["first.bias"])
    w = (weight / weight.sum().clamp(min=1)).unsqueeze(-1)
    center = h - (w * h).sum(0)
    h = center * ((w * center**2).sum(0) + 1e-5).rsqrt() * made["norm.weight"] + made["norm.bias"]
    return linear(relu(h), made["last.weight"], made["last.bias"])


def _label(u: Tensor, pool: Tensor) -> Tensor:
    """Return labels ``[B]`` from uniform numbers ``[B, 1]`` and a cumulative distribution."""
    return (u >= pool).sum(-1).clamp(max=len(pool) - 1)


def _generator(state: State) -> torch.Generator:
    """Return the random number generator of the server for this round."""
    return torch.Generator().manual_seed(torch_seed(state.seed, "server", state.round))


def fitted(
    optimizer: Optimizer, params: Params, losses: Iterable[Callable[[Params], Tensor]],
    memory: Params | None = None,
) -> tuple[Params, Params]:  # fmt: skip
    """Return the parameters after a step on each loss at the server, and the optimiser's memory.

    Raises:
        ValueError: if a prefix of the optimiser's ``rates`` matches no parameter.
    """
    for prefix, _ in optimizer.rates:
        if not any(name.startswith(prefix) for name in params):
            known = ", ".join(params)
            raise ValueError(f"rates: no parameter begins with {prefix!r}; there are {known}")
    own = {n: t.clone().requires_grad_() for n, t in params.items()}
    stepper = optimizer.build(own, memory=memory)
    for loss in losses:
        stepper.zero_grad()
        with torch.enable_grad():
            loss(own).backward()
        if optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_(own.values(), optimizer.clip)
        stepper.step()
    return {n: t.detach() for n, t in own.items()}, stepper.memory
