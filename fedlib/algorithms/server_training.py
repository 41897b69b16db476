"""What a server trains itself: FedGen's generator of features, FedGH's output layer."""

from collections.abc import Callable
from dataclasses import field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from fedlib.algorithms.arithmetic import mean_cross_entropy, one_hot, weighted_sum
from fedlib.algorithms.fedavg import Bytes, FedAvg, nbytes, to_device
from fedlib.algorithms.splitting import LGFedAvg
from fedlib.engine import BLOCK, Cohort, Phase, State, Update, uses_precomputed, vmap_clients
from fedlib.federation import Federation
from fedlib.models import Batch, FunctionalModel, Params, add_prefix, select_prefix
from fedlib.models.architectures import params_of, seeded
from fedlib.optim import Optimizer, Stepper, adam, sgd
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeFloat, NonNegativeInt, PositiveInt, value

MADE = "generator."
POOL = "pool"  # p(y) over all clients, cumulated
FITTED = "server/fit:"  # what the generator's optimiser remembers, leaf/quantity
PROTOTYPES, HELD = "prototypes", "held"


@value
class FedGen(FedAvg):
    """FedAvg whose clients also learn from features that a shared generator invents.

    G takes ``noise`` uniform numbers e and a one-hot label through a hidden layer of ``hidden``
    units with batch normalisation to the features that the output layer h reads. ``alpha`` is
    alpha; ``fit`` moves G for ``steps`` of the server after every round, on ``invented`` features
    at a time. Labels are drawn from the counts of all clients, which the server knows: a leak by
    design.

        G   <- G - grad CE(mean_s h_s(G(e, y)), y)                          at the server
        w_s <- w_s - eta grad [ CE(w_s) + alpha CE(h_s(G(e, y)), y) ]       at a client

    The clients' mean logits are those of their mean output layer, as that is linear. ``fit`` is one
    optimiser for all rounds, whose moments the server keeps.

    Reference: Zhu et al., Data-free knowledge distillation for heterogeneous federated learning,
    ICML 2021. A baseline of 004. Deviation: their code also has a distillation, a diversity
    term and fading weights, which are not in the paper's objective, nor in PFLlib, nor here.
    """

    trained = ("base.", "head.")
    noise: PositiveInt = 512
    hidden: PositiveInt = 512
    fit: Optimizer = adam(5e-3)
    steps: NonNegativeInt = field(default=1000, kw_only=True)
    invented: PositiveInt = 10
    alpha: NonNegativeFloat = 1.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model and the generator."""
        with seeded(torch_seed(seed, "model", 1)):
            first = nn.Linear(self.noise + fed.classes, self.hidden)
            last = nn.Linear(self.hidden, fed.net.width)
        made = params_of({"first": first, "norm": nn.BatchNorm1d(self.hidden), "last": last})
        return {**FedAvg.init_params(self, fed, seed), **to_device(add_prefix(made, MADE), fed)}

    @property
    def shares_asked(self) -> tuple[str, ...]:
        """Of the labels, from which features are invented."""
        return ("label",)

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the share of the labels up to each one."""
        counts = (fed.shares("label") * fed.sizes.unsqueeze(1)).round().sum(0)
        return {POOL: (counts.cumsum(0) / counts.sum()).to(torch.float32)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains the model; the generator is the server's."""
        noise = ("generator", self.noise), ("label", 1)
        return (self.phase(random_inputs=noise, steps=None),)

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy on real examples and on as many invented ones."""
        noise, weight = batch.random["generator"], batch.weight
        y = _label(batch.random["label"], ctx[POOL])
        z = generate(select_prefix(params, MADE), noise, y, net.classes, weight)
        on_made = mean_cross_entropy(net.logits(params, z), y, weight)
        return FedAvg.loss(self, net, params, ctx, batch) + self.alpha * on_made

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Fit the generator to the clients' output layers, then average the models."""
        p, pool, draw = (
            self.share(fed, clients),
            self.round_constants(fed, state)[POOL],
            _generator(state),
        )
        head = add_prefix(select_prefix(state.server_params, "head."), "head.")
        heads = {n: t - weighted_sum(p, messages[n]) for n, t in head.items()}
        made = {
            n: t.clone().requires_grad_()
            for n, t in select_prefix(state.server_params, MADE).items()
        }
        fit, known = self.fit.at(state.round), select_prefix(state.server_memory, FITTED)
        optimizer = fit.build(made, memory=known)
        weight = torch.ones(self.invented, device=fed.device)

        def loss() -> Tensor:
            u = torch.rand(self.invented, self.noise + 1, generator=draw).to(fed.device)
            y = _label(u[:, self.noise, None], pool)
            z = generate(made, u[:, : self.noise], y, fed.classes, weight)
            return cross_entropy(fed.net.logits(heads, z), y)

        for _ in range(self.steps):
            _step(optimizer, made, fit.clip, loss)
        after = FedAvg.aggregate(self, fed, state, clients, messages)
        for name, param in made.items():
            after.server_params[MADE + name] = param.detach()
        fitted = add_prefix(optimizer.memory, FITTED)
        return replace(after, server_memory={**after.server_memory, **fitted})


@value
class FedGH(LGFedAvg):
    """Personal bases below an output layer that the server trains on mean features of labels.

    A client trains its base f_j and the received output layer h, then sends the mean features
    (prototypes) of each of its labels and no model. The server takes one pass over all of these
    pairs, shuffled, ``pairs`` at a time, with ``head``; every pair counts the same.

        c_jy = mean of f_j(x) over the client's examples of label y
        h <- h - eta grad mean_(j, y) CE(h(c_jy), y)

    Reference: Yi et al., FedGH: heterogeneous federated learning with generalized global header,
    ACM Multimedia 2023. A method of 004. Deviation: in PFLlib the server's output layer is client
    0's by mistake, here it is its own (A39).
    """

    head: Optimizer = sgd(1.0)
    pairs: PositiveInt = 10

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """Return nothing: no leaf is sent back."""
        return {}, {}

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Send the mean features ``[clients, classes, D]`` of every label that a client holds."""
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
        """Train the output layer for one pass over the prototypes."""
        held = messages[HELD] > 0
        x, y = messages[PROTOTYPES][held], held.nonzero()[:, 1]
        order = torch.randperm(len(y), generator=_generator(state)).to(y.device)
        head = {n: t.clone().requires_grad_() for n, t in state.server_params.items()}
        kind = self.head.at(state.round)
        optimizer = kind.build(head)

        def loss(some: Tensor) -> Tensor:
            return cross_entropy(fed.net.logits(head, x[some]), y[some])

        for some in order.split(self.pairs):
            _step(optimizer, head, kind.clip, loss, some)
        return replace(state, server_params={n: t.detach() for n, t in head.items()})

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes: the head down, the prototypes of the labels that are held up."""
        down, _ = LGFedAvg.communication_bytes(self, state, clients, {})
        each = nbytes({"mean": messages[PROTOTYPES][0, 0], "label": torch.tensor(0)})
        return down, messages[HELD].sum(1).cpu().to(torch.int64) * each


def generate(made: Params, noise: Tensor, y: Tensor, classes: int, weight: Tensor) -> Tensor:
    """Return invented features ``[B, D]`` of labels ``[B]`` from uniform ``noise [B, n]``.

    Normalised with the mean and variance of the examples with ``weight`` 1.
    """
    labels = one_hot(y, classes).to(noise.dtype)
    h = linear(torch.cat([noise, labels], -1), made["first.weight"], made["first.bias"])
    w = (weight / weight.sum().clamp(min=1)).unsqueeze(-1)
    center = h - (w * h).sum(0)
    h = center * ((w * center**2).sum(0) + 1e-5).rsqrt() * made["norm.weight"] + made["norm.bias"]
    return linear(relu(h), made["last.weight"], made["last.bias"])


def _label(u: Tensor, pool: Tensor) -> Tensor:
    """Return labels ``[B]`` from uniform numbers ``[B, 1]`` and the share of labels up to each."""
    return (u >= pool).sum(-1).clamp(max=len(pool) - 1)


def _generator(state: State) -> torch.Generator:
    """Return the generator of what the server draws in this round."""
    return torch.Generator().manual_seed(torch_seed(state.seed, "server", state.round))


def _step(
    optimizer: Stepper, params: Params, clip: float | None, loss: Callable[..., Tensor], *on: Tensor
) -> None:
    with torch.enable_grad():
        optimizer.zero_grad()
        loss(*on).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(params.values(), clip)
    optimizer.step()
