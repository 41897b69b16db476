"""A model of each client's own with the global one: near it, mixed with it, or in its place.

Clients predict with their own model, a new client with the global one.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.algorithms.drift import RECEIVED, FedProx, squared_distance
from fedlib.algorithms.fedavg import Bytes, FedAvg, equal_bytes
from fedlib.engine import Phase, Prediction, State, Update
from fedlib.federation import Federation
from fedlib.models import Batch, FunctionalModel, Params, add_prefix, is_statistic, select_prefix
from fedlib.optim import Optimizer
from fedlib.values import NonNegativeFloat, PositiveFloat, PositiveInt, Share, value

OWN, MIX = "own.", "mix"
# In FedAMP's memory: w_s, who has sent one, and alpha.
MODELS, THERE, ALPHA = "clients/model.", "clients/there", "alpha"


@dataclass(frozen=True)
class PersonalCopy(FedAvg):
    """FedAvg's leaves, and the same once more for each client, ``own.*``."""

    predicts_from_inputs = True
    local: ClassVar[tuple[str, ...]] = (OWN,)
    initialised_from: ClassVar[dict[str, str]] = {OWN: ""}

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model, and itself as every client's first own one."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(model, OWN)}

    def mine(self, params: Params) -> Params:
        """Return the leaves that a client predicts with."""
        return select_prefix(params, OWN)

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the own model's prediction."""
        return Prediction.single(net.logp(self.mine(params), code["x"]))

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return the global model's prediction."""
        return {"p": net.logp(params, code["x"]).exp()}


@value
class Ditto(PersonalCopy):
    """FedAvg, and a model v_s of each client that is held near the received one.

    ``lam`` is lambda (0: training alone, with as many more the global model); ``own`` moves v_s
    (None: as ``client`` moves w_s), for ``epochs`` as long.

        w_s <- w_s - eta grad F_s(w_s)                           from w_s = w; averaged
        v_s <- v_s - eta [ grad F_s(v_s) + lambda (v_s - w) ]    stays with its client

    Reference: Li, Hu, Beirami and Smith, Ditto: fair and robust federated learning through
    personalization, ICML 2021 (algorithm 1). Deviation: the average weighs clients by examples.
    """

    lam: NonNegativeFloat = 0.1
    own: Optimizer | None = None

    round_constants = FedProx.round_constants  # the received model w

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase over the global model's copy, and one over the client's own."""
        mine = self.phase(train=(OWN,), loss="personal", optimizer=self.own or self.client)
        return self.phase(scope="shared"), mine

    def personal(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the own model's cross-entropy and proximal term of one mini-batch."""
        own = self.mine(params)
        return FedAvg.loss(self, net, own, ctx, batch) + self.lam / 2 * squared_distance(own, ctx)


@value
class APFL(PersonalCopy):
    """A model v_s of each client, mixed weight by weight with its copy of the global one.

    ``alpha`` is alpha, the own model's share; ``adaptive`` trains it, one for each client, from
    there, with ``rate`` as its rate (None: ``client``'s).

        m_s     = alpha_s v_s + (1 - alpha_s) w_s                what a client predicts with
        w_s     <- w_s - eta grad F_s(w_s)                       from w_s = w; averaged
        v_s     <- v_s - eta grad_v F_s(m_s)                     stays, on the same mini-batch
        alpha_s <- alpha_s - eta <v_s - w_s, grad F_s(m_s)>      kept in [0, 1]

    Reference: Deng, Kamani and Mahdavi, Adaptive personalized federated learning, 2020 (algorithm
    1 and eq. 11). The paper's text moves alpha in every step, as here, its released code in the
    first of a round. Predictions mix in the w that the server has now. Deviation: the average
    weighs clients by examples.
    """

    local = (OWN, MIX)
    alpha: Share = 0.5
    adaptive: bool = False
    rate: PositiveFloat | None = None

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model, itself as the first own one, and alpha."""
        mix = torch.tensor(self.alpha, device=fed.device)
        return {**PersonalCopy.init_params(self, fed, seed), MIX: mix}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over both models, and alpha where it adapts."""
        train = ("base.", "head.", OWN, *([MIX] if self.adaptive else []))
        rates = ((MIX, self.rate),) if self.rate else ()
        optimizer = replace(self.client, rates=(*rates, *self.client.rates))
        after = "kept_within" if self.adaptive else ""
        return (self.phase(train=train, optimizer=optimizer, project=after),)

    def kept_within(
        self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
    ) -> Params:
        """Return alpha in [0, 1]."""
        return {MIX: params[MIX].clamp(0, 1)}

    def mine(self, params: Params) -> Params:
        """Return alpha v + (1 - alpha) w, through which no gradient reaches w.

        BatchNorm's statistics are the own model's, which sees the mixed one's batches.
        """
        a, own = params[MIX], select_prefix(params, OWN)
        return {
            n: v if is_statistic(n) else a * v + (1 - a) * params[n].detach()
            for n, v in own.items()
        }

    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the sum of the global copy's and the mixed model's cross-entropy."""
        models = (params, self.mine(params))
        one, other = (FedAvg.loss(self, net, model, ctx, batch) for model in models)
        return one + other


@value
class PFedMe(PersonalCopy):
    """A model theta_s of each client that minimises its loss and the distance from w_s (pFedMe).

    ``lam`` is lambda, ``steps`` K, ``eta`` eta; ``client`` moves theta_s (rate gamma); ``server``
    is SGD with rate beta.

        theta_s <- theta_s - gamma [ grad F_s(theta_s) + lambda (theta_s - w_s) ]     K times, then
        w_s     <- w_s - eta lambda (w_s - theta_s)                         on every mini-batch
        w       <- (1 - beta) w + beta sum_s p(s) w_s

    A round starts with theta_s = w_s = w, and goes on from one mini-batch to the next with both. It
    has ``epochs``: ``steps`` are not those of a round here.

    Reference: T. Dinh, Tran and Nguyen, Personalized federated learning with Moreau envelopes,
    NeurIPS 2020 (algorithm 1). How the inner problem is solved is left open there: K steps on the
    mini-batch, as in the released code. Deviation: the average weighs clients by examples.
    """

    lam: PositiveFloat = 15.0
    steps: PositiveInt = field(default=5, kw_only=True)
    eta: PositiveFloat = 0.01

    def check(self) -> None:
        FedAvg.check(self)
        if self.eta * self.lam > 1:
            raise ValueError(f"w_s would move beyond theta_s: eta lam = {self.eta * self.lam} > 1")

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the received model, which is where theta starts, too."""
        initial = FedAvg.client_params(self, fed, state, clients)
        return {n: initial[n.removeprefix(OWN)] for n in initial}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase of K steps on every mini-batch, after which w_s follows."""
        return (self.phase(steps_per_batch=self.steps, project="followed", steps=None),)

    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return theta's cross-entropy and proximal term of one mini-batch."""
        own = self.mine(params)
        near = {f"{RECEIVED}{n}": params[n].detach() for n in own}
        return FedAvg.loss(self, net, own, ctx, batch) + self.lam / 2 * squared_distance(own, near)

    def followed(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Params:
        """Return w_s a step nearer to theta_s, whose running statistics it takes over."""
        step = self.eta * self.lam
        return {
            n: theta if is_statistic(n) else params[n] - step * (params[n] - theta)
            for n, theta in self.mine(params).items()
        }


@value
class FedAMP(FedAvg):
    """A model w_s of each client, and a mean u_s of all at the server that those near it make.

    ``lam`` is lambda, ``sigma`` sigma, ``alpha`` alpha (None: sigma / M for M clients that do not
    opt out, with which no weight is negative whatever the distances are). There is no global model.

        xi_st = alpha A'(|w_s - w_t|^2),   A'(d) = e^(-d / sigma) / sigma      for t other than s
        u_s   = (1 - sum_t xi_st) w_s + sum_t xi_st w_t                        at the server
        w_s   <- w_s - eta [ grad F_s(w_s) + lambda / alpha (w_s - u_s) ]      from its last w_s

    So similar clients pull at one another and dissimilar ones do not (A(d) = 1 - e^(-d / sigma)).
    Who has not sent a model yet pulls at nobody. A new client gets the mean of the predictions.

    Reference: Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, Personalized cross-silo federated
    learning on non-IID data, AAAI 2021 (algorithm 1 with FedAMP's eq. 3 to 6). There w_s minimises
    its loss and lambda / (2 alpha) |w_s - u_s|^2; here it takes the steps of a round towards that.

    >>> models = {"w": torch.tensor([[0.0], [1.0], [100.0]])}
    >>> attention(models, torch.tensor([0]), torch.ones(3).bool(), alpha=1.0, sigma=2.0)
    tensor([[0.6967, 0.3033, 0.0000]])
    """

    predicts_from_inputs = True
    trained = ("base.", "head.")
    local = ("base.", "head.")
    lam: NonNegativeFloat = 0.01
    sigma: PositiveFloat = 10.0
    alpha: PositiveFloat | None = None

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0: all models are the same, and the server has none.

        Its memory has alpha too, as whoever is asked later cannot count all clients.
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
        """Return every client's own model, and its u_s."""
        own = FedAvg.client_params(self, fed, state, clients)
        return {**own, **add_prefix(self._means(state, clients, fed.member_rows), RECEIVED)}

    def _means(self, state: State, clients: Tensor, members: Tensor) -> Params:
        """Return u_s of some clients, ``[clients, ...]``, from the models of ``participants``
        alone.

        A term of weight 0 for each client that opts out could round the sum differently.
        """
        models = {n: t[members] for n, t in select_prefix(state.server_memory, MODELS).items()}
        there, places = state.server_memory[THERE][members], torch.searchsorted(members, clients)
        xi = attention(models, places, there, state.server_memory[ALPHA], self.sigma)
        return {n: torch.tensordot(xi, t, 1) for n, t in models.items()}

    def download(self, state: State, row: int) -> State:
        """Return a client's u_s, as the only model that it is after of.

        The state is that of a wire's server, which knows only of those who take part.
        """
        everyone = torch.arange(
            len(state.server_memory[THERE]), device=state.server_memory[THERE].device
        )
        mean = self._means(state, everyone[row, None], everyone)
        return State({}, {}, server_memory=add_prefix(mean, MODELS))

    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy and the proximal term of one mini-batch."""
        return FedAvg.loss(self, net, params, ctx, batch) + ctx["pull"] / 2 * squared_distance(
            params, params
        )

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """Return the client's model, to be sent."""
        return {}, {MODELS + n: t for n, t in after.items() if n.startswith(self.local)}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Remember the models that were sent."""
        after = state.with_decisions(clients, messages)
        there = state.server_memory[THERE].index_fill(0, clients, True)
        return replace(after, server_memory={**after.server_memory, THERE: there})

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of one model down, and of one up."""
        one = {n: t[0] for n, t in select_prefix(state.server_memory, MODELS).items()}
        return equal_bytes(clients, one, one)


def attention(
    models: Params, clients: Tensor, there: Tensor, alpha: float | Tensor, sigma: float
) -> Tensor:
    """Return what every client of ``clients`` gives to all models, ``[rows, clients]``; sums are 1.

    ``models`` ``[clients, ...]``; those that are not ``there``, bool ``[clients]``, get nothing.
    """
    kept = [t.flatten(1) for n, t in models.items() if not is_statistic(n)]
    each = [[((t - t[i]) ** 2).sum(1) for t in kept] for i in clients.tolist()]
    far = torch.stack([torch.stack(squares).sum(0) for squares in each])
    others = there & (torch.arange(len(there), device=clients.device) != clients.unsqueeze(1))
    xi = torch.where(others, alpha / sigma * (-far / sigma).exp(), 0)
    return xi.scatter(1, clients.unsqueeze(1), 1 - xi.sum(1, keepdim=True))
