"""A personal model per client: close to the global model, mixed with it, or in its place.

Clients predict with their personal model, a new client with the global one.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.algorithms.drift import RECEIVED, SCAFFOLD, FedProx, squared_distance
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *

OWN, MIX = "own.", "mix"
# In FedAMP's server memory: the models w_s, which clients have sent one, and alpha.
MODELS, THERE, ALPHA = "clients/model.", "clients/there", "alpha"


@dataclass(frozen=True)
class PersonalCopy(FedAvg):
    """A base class: FedAvg with a personal copy ``own.*`` of all parameters for each client."""

    local: ClassVar[tuple[str, ...]] = (OWN,)

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and a copy of them as the personal model."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(model, OWN)}

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the examples, as every client predicts with a model of its own."""
        return {"x": x}

    def mine(self, params: Params) -> Params:
        """Return the parameters with which a client predicts. Default: the personal copy."""
        return select_prefix(params, OWN)

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the personal model's prediction."""
        return Prediction.single(net.logp(self.mine(params), code["x"]))

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the global model's prediction."""
        return {"p": net.logp(params, code["x"]).exp()}


@value
class Ditto(PersonalCopy):
    """FedAvg with a personal model v_s per client that is kept close to the global model w.

        w_s <- w_s - eta grad F_s(w_s)                           from w_s = w; averaged
        v_s <- v_s - eta [ grad F_s(v_s) + lambda (v_s - w) ]    stays with its client

    Args:
        lam: weight lambda of the proximal term, at least 0. With 0 the personal models are trained
            without a federation. Default: 0.1.
        own: optimiser of v_s, None for that of w_s (``client``). Default: None.
        epochs: local epochs of w_s, and as many of v_s. Default: 1.
        batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Li, Hu, Beirami and Smith, Ditto: fair and robust federated learning through
    personalization, ICML 2021 (algorithm 1). Deviation: clients are averaged by their numbers of
    examples.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = Ditto(lam=0.1, epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    lam: NonNegativeFloat = 0.1
    own: Optimizer | None = None

    round_constants = FedProx.round_constants  # the global model w

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase over w_s, and one over the personal model v_s."""
        mine = self.phase(train=(OWN,), loss="personal", optimizer=self.own or self.client)
        return self.phase(scope="shared"), mine

    def personal(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the personal model's cross-entropy plus its proximal term."""
        own = self.mine(params)
        return FedAvg.loss(self, net, own, ctx, batch) + self.lam / 2 * squared_distance(own, ctx)


@value
class APFL(PersonalCopy):
    """A personal model v_s per client whose weights are interpolated with those of the global one.

        m_s     = alpha_s v_s + (1 - alpha_s) w_s                what a client predicts with
        w_s     <- w_s - eta grad F_s(w_s)                       from w_s = w; averaged
        v_s     <- v_s - eta grad_v F_s(m_s)                     stays, on the same mini-batch
        alpha_s <- alpha_s - eta <v_s - w_s, grad F_s(m_s)>      kept in [0, 1]

    Predictions use the server's current w instead of w_s.

    Args:
        alpha: weight of the personal model, from 0 to 1; the initial one if ``adaptive``.
            Default: 0.5.
        adaptive: whether every client trains its own alpha_s. Default: False.
        rate: learning rate of alpha_s, None for that of ``client``. Default: None.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Deng, Kamani and Mahdavi, Adaptive personalized federated learning, 2020 (algorithm
    1 and eq. 11). Deviation: clients are averaged by their numbers of examples. As in the paper's
    text alpha is updated in every step; the released code updates it in the first one of a round.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, APFL(adaptive=True), rounds=2, cohort=6))
    >>> last.state.client_params["mix"].shape  # alpha_s of six clients
    torch.Size([6])
    """

    local = (OWN, MIX)
    alpha: Share = 0.5
    adaptive: bool = False
    rate: PositiveFloat | None = None

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, a copy of them as the personal model, and alpha."""
        mix = torch.tensor(self.alpha, device=fed.device)
        return {**PersonalCopy.init_params(self, fed, seed), MIX: mix}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over both models, and over alpha if it is adaptive."""
        train = ("base.", "head.", OWN, *([MIX] if self.adaptive else []))
        rates = ((MIX, self.rate),) if self.rate else ()
        optimizer = replace(self.client, rates=(*rates, *self.client.rates))
        after = "kept_within" if self.adaptive else ""
        return (self.phase(train=train, optimizer=optimizer, project=after),)

    def kept_within(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Params:
        """Return alpha, projected to [0, 1]."""
        return {MIX: params[MIX].clamp(0, 1)}

    def mine(self, params: Params) -> Params:
        """Return alpha v + (1 - alpha) w, through which no gradient reaches w.

        The statistics of BatchNorm are those of the personal model.
        """
        a, own = params[MIX], select_prefix(params, OWN)
        mixed = {n: a * v + (1 - a) * params[n].detach() for n, v in own.items()}
        return {n: own[n] if is_statistic(n) else t for n, t in mixed.items()}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of w_s plus that of the mixed model."""
        models = (params, self.mine(params))
        one, other = (FedAvg.loss(self, net, model, ctx, batch) for model in models)
        return one + other


@value
class PFedMe(PersonalCopy):
    """A personal model theta_s per client that minimises a Moreau envelope of its loss (pFedMe).

        theta_s <- theta_s - gamma [ grad F_s(theta_s) + lambda (theta_s - w_s) ]     K times, then
        w_s     <- w_s - eta lambda (w_s - theta_s)                         on every mini-batch
        w       <- (1 - beta) w + beta sum_s p(s) w_s

    A round starts with theta_s = w_s = w, and each mini-batch continues with both models of the one
    before.

    Args:
        lam: weight lambda of the distance between theta_s and w_s, above 0. Default: 15.0.
        steps: steps K of theta_s on every mini-batch; the length of a round is always given by
            ``epochs``. Default: 5.
        eta: learning rate eta of w_s, above 0; eta lambda must not exceed 1. Default: 0.01.
        client: optimiser of theta_s, with rate gamma. Default: SGD with rate 0.05.
        server: optimiser of w; SGD with rate beta is the paper's. Default: SGD with rate 1.
        epochs, batch_size: as in ``FedAvg``.

    Reference: T. Dinh, Tran and Nguyen, Personalized federated learning with Moreau envelopes,
    NeurIPS 2020 (algorithm 1). The paper does not fix the solver of the inner problem; K steps on
    the mini-batch are those of the released code. Deviation: clients are averaged by their numbers
    of examples.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, PFedMe(lam=15.0), rounds=2, cohort=6))
    >>> last.state.client_params["own.head.bias"].shape  # of theta_s of six clients
    torch.Size([6, 10])
    """

    lam: PositiveFloat = 15.0
    steps: PositiveInt = field(default=5, kw_only=True)
    eta: PositiveFloat = 0.01

    def check(self) -> None:
        if self.eta * self.lam > 1:
            raise ValueError(f"w_s would move beyond theta_s: eta lam = {self.eta * self.lam} > 1")

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the global model, from which theta_s starts as well."""
        initial = FedAvg.client_params(self, fed, state, clients)
        return {n: initial[n.removeprefix(OWN)] for n in initial}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase of K steps of theta_s and one of w_s on every mini-batch."""
        return (self.phase(steps_per_batch=self.steps, project="followed", steps=None),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of theta_s plus its proximal term."""
        own = self.mine(params)
        near = {f"{RECEIVED}{n}": params[n].detach() for n in own}
        return FedAvg.loss(self, net, own, ctx, batch) + self.lam / 2 * squared_distance(own, near)

    def followed(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Params:
        """Return w_s after a step towards theta_s, with the running statistics of theta_s."""
        own, step = self.mine(params), self.eta * self.lam
        moved = {n: params[n] - step * (params[n] - theta) for n, theta in own.items()}
        return {n: own[n] if is_statistic(n) else w for n, w in moved.items()}


@value
class FedAMP(FedAvg):
    """A personal model w_s per client that is pulled to a mean u_s of the models similar to it.

        xi_st = alpha A'(|w_s - w_t|^2),   A'(d) = e^(-d / sigma) / sigma      for t other than s
        u_s   = (1 - sum_t xi_st) w_s + sum_t xi_st w_t                        at the server
        w_s   <- w_s - eta [ grad F_s(w_s) + lambda / alpha (w_s - u_s) ]      from its last w_s

    So similar clients attract each other and dissimilar ones do not (A(d) = 1 - e^(-d / sigma)).
    Clients that have not sent a model yet have weight 0. There is no global model; a new client
    gets the mean of the clients' predictions.

    Args:
        lam: weight lambda of the proximal term, at least 0. Default: 0.01.
        sigma: scale sigma of squared distances between models, above 0. Default: 10.0.
        alpha: alpha, above 0; None is sigma / M for M clients that have not opted out, with which
            no weight can be negative. Default: None.
        epochs, batch_size, client, steps: as in ``FedAvg``; ``server`` is not used.

    Reference: Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, Personalized cross-silo federated
    learning on non-IID data, AAAI 2021 (algorithm 1 with FedAMP's eq. 3 to 6). In the paper w_s
    minimises its loss plus lambda / (2 alpha) |w_s - u_s|^2; here it takes a round's steps.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedAMP(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local = ("base.", "head.")
    lam: NonNegativeFloat = 0.01
    sigma: PositiveFloat = 10.0
    alpha: PositiveFloat | None = None

    phases = SCAFFOLD.phases  # the model, without u_s

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which all models are equal and none has been sent.

        The server's memory includes alpha, because later calls do not see all clients.
        """
        initial = FedAvg.init(self, fed, seed, first)
        there = torch.zeros(fed.num_clients, dtype=torch.bool, device=fed.device)
        copies = {n: t.clone() for n, t in add_prefix(initial.client_params, MODELS).items()}
        alpha = self.alpha or self.sigma / fed.participating
        once = torch.tensor(alpha, dtype=torch.float64, device=fed.device)
        return replace(initial, server_memory={**copies, THERE: there, ALPHA: once})

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return lambda / alpha."""
        return {"pull": (self.lam / state.server_memory[ALPHA]).float()}

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return every client's model w_s, and its u_s."""
        own = FedAvg.client_params(self, fed, state, clients)
        return {**own, **add_prefix(self._means(state, clients, fed.member_rows), RECEIVED)}

    def _means(self, state: State, clients: Tensor, members: Tensor) -> Params:
        """Return u_s of some clients, ``[clients, ...]`` each.

        Args:
            state: the server's state.
            clients: indices of the clients.
            members: indices of all participating clients, in ascending order.
        """
        # Sums over members only: terms of weight 0 for other clients could change the rounding.
        models = {n: t[members] for n, t in select_prefix(state.server_memory, MODELS).items()}
        there, places = state.server_memory[THERE][members], torch.searchsorted(members, clients)
        xi = attention(models, places, there, state.server_memory[ALPHA], self.sigma)
        return {n: torch.tensordot(xi, t, 1) for n, t in models.items()}

    def download(self, state: State, row: int) -> State:
        """Return a client's u_s, as the only model in the server's memory.

        Over a network, the server's state has participating clients only.
        """
        there = state.server_memory[THERE]
        everyone = torch.arange(len(there), device=there.device)
        mean = self._means(state, everyone[row, None], everyone)
        return State({}, {}, server_memory=add_prefix(mean, MODELS))

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of one mini-batch plus the proximal term."""
        loss = FedAvg.loss(self, net, params, ctx, batch)
        return loss + ctx["pull"] / 2 * squared_distance(params, params)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the client's trained model as its message."""
        return {}, {MODELS + n: t for n, t in after.items() if n.startswith(self.local)}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state that remembers the models which were sent."""
        after = state.with_decisions(clients, messages)
        there = state.server_memory[THERE].index_fill(0, clients, True)
        return replace(after, server_memory={**after.server_memory, THERE: there})


def attention(
    models: Params, clients: Tensor, there: Tensor, alpha: float | Tensor, sigma: float
) -> Tensor:
    """Return the weights of all models in the means u_s of some clients.

    Args:
        models: the models of all n clients, ``[n, ...]`` each.
        clients: indices of the m clients whose weights are computed.
        there: which clients have sent a model, bool ``[n]``; the others get weight 0.
        alpha: alpha.
        sigma: sigma.

    Returns:
        Weights ``[m, n]``, whose rows have the sum 1.

    >>> models = {"w": torch.tensor([[0.0], [1.0], [100.0]])}
    >>> attention(models, torch.tensor([0]), torch.ones(3).bool(), alpha=1.0, sigma=2.0)
    tensor([[0.6967, 0.3033, 0.0000]])
    """
    kept = [t.flatten(1) for n, t in models.items() if not is_statistic(n)]
    each = [[((t - t[i]) ** 2).sum(1) for t in kept] for i in clients.tolist()]
    far = torch.stack([torch.stack(squares).sum(0) for squares in each])
    others = there & (torch.arange(len(there), device=clients.device) != clients.unsqueeze(1))
    xi = torch.where(others, alpha / sigma * (-far / sigma).exp(), 0)
    return xi.scatter(1, clients.unsqueeze(1), 1 - xi.sum(1, keepdim=True))


@value
class FedALA(PersonalCopy):
    """Before a client trains, it mixes its own head with the server's, element by element.

        A_s <- A_s - eta grad_A F_s(v_s + A_s (w - v_s)), kept in [0, 1]     (adaptive aggregation)
        v_s <- v_s + A_s (w - v_s), then SGD on F_s from there; v_s is averaged and stays

    The base of v_s starts from the server's. v_s is the client's model at the end of its last
    round, and before its first one the initial model. In round 0 this is also the server's, so that
    nothing is mixed; a client that first takes part later mixes the initial head with the server's.

    Args:
        rate: learning rate eta of A_s, above 0. Default: 1.0.
        epochs, batch_size, client, server, steps: as in ``FedAvg``. A_s has one epoch.

    Reference: Zhang et al., FedALA: adaptive local aggregation for personalized federated learning,
    AAAI 2023 (its p = 1: the head alone is mixed). Deviation: A_s has one epoch in every round over
    all examples, where the paper trains it on a sample of these and until it converges in the
    first round.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedALA(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local = (OWN, MIX)
    rate: PositiveFloat = 1.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, a copy of them as v_s, and A_s = 1 for the head."""
        model = PersonalCopy.init_params(self, fed, seed)
        ones = {n: torch.ones_like(t) for n, t in model.items() if n.startswith("head.")}
        return {**model, **add_prefix(ones, f"{MIX}.")}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the server's head."""
        return add_prefix(select_prefix(state.server_params, "head."), f"{RECEIVED}head.")

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over A_s, after each step of which the head is mixed, and one over v_s.

        The loss of the first phase does not depend on the head that it moves.
        """
        mixing = self.phase(
            train=(f"{MIX}.", "head."), optimizer=Optimizer(lr=self.rate), loss="mixed_loss",
            project="mixed", epochs=1,
        )  # fmt: skip
        return mixing, self.phase(train=("base.", "head."))

    def mixed(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Params:
        """Return A_s, projected to [0, 1], and the head v_s + A_s (w - v_s)."""
        a = {n: t.clamp(0, 1) for n, t in select_prefix(params, f"{MIX}.").items()}
        own = {n: params[OWN + n] for n in a}
        head = {n: v + a[n] * (ctx[RECEIVED + n] - v) for n, v in own.items()}
        return {**add_prefix(a, f"{MIX}."), **head}

    def mixed_loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of the mixed model."""
        mixed = self.mixed(net, params, ctx, batch)
        return FedAvg.loss(self, net, {**params, **mixed}, ctx, batch)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return A_s and the trained model, kept as v_s, and before - after of the model."""
        _, message = FedAvg.client_update(self, net, before, after, ctx)
        model = {n: after[n.removeprefix(OWN)] for n in before if n.startswith(OWN)}
        return {**model, **{n: t for n, t in after.items() if n.startswith(f"{MIX}.")}}, message


@value
class PerFedAvg(FedAvg):
    """A global model from which one gradient step at a client leads to a good model of its own.

        w_s <- w_s - eta grad F_s(w_s - alpha grad F_s(w_s))                   (a meta-gradient)

    The inner gradient is that of the even examples of a mini-batch, the outer one that of the odd
    examples. The server's model is the initial one that is shared; a client's own is that after a
    second stage of one step: ``Local(steps=1, batch_size=None, client=sgd(alpha))``.

    Args:
        alpha: rate of the inner step, above 0. Default: 0.01.
        first_order: whether the gradient through the inner one is left out (FO). Default: False.
        epochs, batch_size, client, server, steps: as in ``FedAvg``; ``client`` has rate eta.

    Reference: Fallah, Mokhtari and Ozdaglar, Personalized federated learning with theoretical
    guarantees: a model-agnostic meta-learning approach, NeurIPS 2020 (algorithm 1). Deviation: the
    two batches of a step are halves of one, and a mini-batch of one example is both.

    >>> from fedrun import Experiment, run, tiny
    >>> first = Experiment(tiny.task, PerFedAvg(epochs=5, client=sgd(0.2)), rounds=10, cohort=6)
    >>> step = Local(steps=1, batch_size=None, client=sgd(0.01))
    >>> personal = Experiment(tiny.task, step, rounds=1, cohort=6, first_stage=first)
    >>> run(personal, progress=False).final("test_accuracy") > 0.5  # the majority class has 0.27
    True
    """

    alpha: PositiveFloat = 0.01
    first_order: bool = False

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy after an inner step."""
        even = (torch.arange(len(batch.y), device=batch.y.device) % 2 == 0).to(batch.weight.dtype)
        inner, outer = (replace(batch, weight=batch.weight * half) for half in (even, 1 - even))
        inner = replace(inner, statistics=None)  # which the outer pass records
        outer = replace(outer, weight=outer.weight + (outer.weight.sum() == 0) * batch.weight)
        own = {n: t for n, t in params.items() if not is_statistic(n)}
        start = {n: t.detach() for n, t in own.items()} if self.first_order else own

        def inner_loss(model: Params) -> Tensor:
            return FedAvg.loss(self, net, {**params, **model}, ctx, inner)

        step = torch.func.grad(inner_loss)(start)
        moved = {n: t - self.alpha * step[n] for n, t in own.items()}
        return FedAvg.loss(self, net, {**params, **moved}, ctx, outer)
