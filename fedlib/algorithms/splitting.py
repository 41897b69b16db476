"""Models in two parts, one of them private: a head, a base, a vector, or the first layers."""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize, relu

from fedlib.algorithms.arithmetic import cross_entropy, mean, mean_cross_entropy, mean_of
from fedlib.algorithms.drift import MOON, RECEIVED
from fedlib.algorithms.fedavg import Bytes, FedAvg, drop_prefix, to_device
from fedlib.engine import Phase, Prediction, State, Update, play_round, uses_precomputed
from fedlib.engine.protocol import FEATURES
from fedlib.federation import Federation, Precomputed
from fedlib.models import Batch, FunctionalModel, Params, add_prefix, select_prefix
from fedlib.models.architectures import params_of, seeded
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeFloat, PositiveInt, value

MEAN = "running_mean"  # what a BatchNorm layer's leaves have
OWN, POLICY = "own.", "policy."
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels
LABELS, STEERED = "labels.weight", "steered."
SIDES = ("scale", "shift")
VECTOR, RUNNING, CONSENSUS = "own.mean", "running.mean", "consensus.mean"
PREPARED = "server/prepared"  # bytes down and up of the round that found the consensus


class Opened(NamedTuple):
    """The shared part of a prediction.

    ``entry`` ``[B, ...]`` is what the private part is given, ``rest`` ``[B, classes]`` the logits
    without it.
    """

    entry: Tensor
    rest: Tensor


@dataclass(frozen=True)
class SplitModel(FedAvg):
    """A client's logits are those of shared parts and those of a private one: what 004 mixes.

        logits = rest(x) + joined(private(entry(x)))

    Each method says what these four are. ``joined`` is linear, so that a mixture of private parts
    is a mixture of what they add to the logits. The private part is made of the local leaves whose
    names begin with ``experts``.

    Reference: Feng et al., PM-MoE (004), eq. 4. Deviation: private vectors are added to the
    features, not to the logits (A34).
    """

    experts: ClassVar[str]
    """How the names of the private part's leaves begin."""

    below_head: ClassVar[bool] = False
    """Whether the private part makes features, which the shared head reads, and no logits."""

    @property
    def local(self) -> tuple[str, ...]:
        """The private part."""
        return (self.experts,)

    def opened(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Opened:
        """Return what the private part is given, and the logits without it.

        By default the features, and what the shared head makes of them.
        """
        return Opened(code["h"], net.logits(params, code["h"]))

    def private(self, net: FunctionalModel, params: Params, entry: Tensor) -> Tensor:
        """Return what the private part makes of its entry, ``[B, ...]``: by default a head's."""
        return net.logits(add_prefix(select_prefix(params, self.experts), "head."), entry)

    def joined(self, net: FunctionalModel, params: Params, out: Tensor) -> Tensor:
        """Return what that adds to the logits, ``[B, classes]``."""
        return out @ params["head.weight"].mT if self.below_head else out

    def logits(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the client's logits ``[B, classes]``."""
        entry, rest = self.opened(net, params, ctx, code)
        return rest + self.joined(net, params, self.private(net, params, entry))

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return the features of the shared base."""
        return {"h": net.features(shared, x)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(self.logits(net, params, ctx, code).log_softmax(-1))

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return the client's logits."""
        return {"logits": self.logits(net, params, ctx, code)}


@value
class Personal(SplitModel):
    """FedAvg in which the leaves whose names begin with one of ``client_params`` stay with their
    client.

    The default, the output layer's bias b_s, is biased FedAvg:

        p(y|x, s) = softmax(W h(x) + b_s)                                   (000, sec. 4.1)

    A new client gets the mean of the clients' logits: for the output layer that is the mean of its
    local parameters. What others can borrow of a client is its head, if all of it is personal.
    ValueError, when a run starts, for a name that no leaf of the model begins with.

    Reference: Reisser et al., Federated mixture of experts (000), a baseline.
    """

    experts = "head."
    local: tuple[str, ...] = ("head.bias",)

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of FedAvg."""
        params = FedAvg.init_params(self, fed, seed)
        for prefix in self.local:
            if not any(name.startswith(prefix) for name in params):
                raise ValueError(f"no leaf begins with {prefix!r}; there are {', '.join(params)}")
        return params

    def opened(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features and nothing else."""
        h = code["h"] if "h" in code else net.features(params, code["x"])
        return Opened(h, h.new_zeros(h.shape[0], net.classes))

    @property
    def predicts_from_inputs(self) -> bool:
        """Return whether the base is personal."""
        return not all(prefix.startswith("head.") for prefix in self.local)

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return the features, or the batch itself if they are personal."""
        return {"x": x} if self.predicts_from_inputs else {"h": net.features(shared, x)}


@value
class FedPer(Personal):
    """A shared base f below personal heads h_s, trained together: logits = h_s(f(x)).

    Reference: Arivazhagan et al., Federated learning with personalization layers, 2019. A method
    of 004, whose experts are the heads.
    """

    local: tuple[str, ...] = ("head.",)


@value
class LGFedAvg(Personal):
    """Personal bases f_s below a shared head h, trained together: logits = h(f_s(x)).

    Reference: Liang et al., Think locally, act globally, 2020, as 004 reads it, whose experts are
    the bases; ``LocalGlobal`` keeps fewer layers personal.
    """

    experts = "base."
    below_head = True
    local: tuple[str, ...] = ("base.",)

    def opened(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the examples, and the shared head's bias."""
        return Opened(code["x"], params["head.bias"].expand(code["x"].shape[0], -1))

    def private(self, net: FunctionalModel, params: Params, entry: Tensor) -> Tensor:
        """Return the features of a base."""
        return net.features(params, entry)


@value
class FedRep(Personal):
    """FedPer in turns: the head for ``head_epochs``, then the base for ``epochs``.

        h_s <- h_s - eta grad CE(h_s(f(x))),  then  f <- f - eta grad CE(h_s(f(x)))

    Reference: Collins et al., Exploiting shared representations for personalized federated
    learning, ICML 2021. A method of 004. Deviation: about ten epochs of the head, as the paper has;
    PFLlib and 004 have one.
    """

    local: tuple[str, ...] = ("head.",)
    head_epochs: PositiveInt = 10

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase of the head and one of the base."""
        head = self.phase(train=("head.",), epochs=self.head_epochs)
        return head, self.phase(train=("base.",))


@value
class FedBABU(Personal):
    """FedPer whose heads never move: only the base f is federated, logits = h_0(f(x)).

    Every head is the common initial one h_0 until ``Local`` after this fine-tunes it, with the
    base.

    Reference: Oh et al., FedBABU: toward enhanced representation for federated image
    classification, ICLR 2022. A method of 004. Deviation: fine-tuning begins at what the server
    sends, as in the paper; 004's released code begins at a client's own last base.
    """

    trained = ("base.",)
    local: tuple[str, ...] = ("head.",)


@value
class FedBN(FedAvg):
    """FedAvg in which BatchNorm layers stay with their client: weights, biases and statistics.

    So clients whose features are shifted against each other normalise them alike. Without such
    layers it is FedAvg. A new client gets the mean of the clients' predictions.

    Reference: Li et al., FedBN: federated learning on non-IID features via local batch
    normalization, ICLR 2021.
    """

    predicts_from_inputs = True
    local = (f"*{MEAN}",)


@value
class LocalGlobal(FedAvg):
    """Personal first layers l_s below one global network g: logits = g(l_s(x)).

    ``cut`` is the number of the base's modules that are l_s: 3 is the input layer of a LeNet
    (convolution, pooling, ReLU), 4 a ResNet up to its first block; ``FunctionalModel.cuts`` lists
    the legal ones. ValueError, when a run starts, for a cut that the model has not. A new client
    gets

        log p(y|x) = log softmax g( sum_s p(s) l_s(x) )                     (000, App. F)

    Reference: Liang et al., Think locally, act globally, 2020; 000, sec. 4.1, a baseline. As in 000
    nothing is pre-trained by FedAvg (``Experiment.first_stage`` would).
    """

    predicts_from_inputs = True
    cut: PositiveInt = 3

    @property
    def local(self) -> tuple[str, ...]:
        """The first ``cut`` modules of the base."""
        return tuple(f"base.{i}." for i in range(self.cut))

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, with the same fresh first layers for every client."""
        cuts = fed.net.cuts
        if self.cut not in cuts:
            legal = "; ".join(f"{cut} (after {names})" for cut, names in cuts.items())
            raise ValueError(f"this model has no cut {self.cut}; legal: {legal or 'none'}")
        return FedAvg.init(self, fed, seed, first)

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return the client's representation."""
        return {"r": net.below(params, code["x"], self.cut)}

    def combine_clients(
        self, net: FunctionalModel, shared: Params, code: Params, outputs: Params
    ) -> Tensor:
        """Return what the global layers make of the mean representation."""
        return net.above(shared, outputs["r"], self.cut).log_softmax(-1)


@value
class FedRoD(SplitModel):
    """One base f below a generic head h and a personal one h_s: logits = h(f(x)) + h_s(f(x)).

    Base and generic head are shared and minimise the balanced softmax, which adds log n_y to the
    logit of a label that the client holds n_y times. The personal head, which begins as a copy of
    the generic one, minimises the cross-entropy of the sum and moves nothing else.

        f, h:  CE( h(f(x)) + log n )        h_s:  CE( h(f(x)) + h_s(f(x)) )

    A new client gets the generic model.

    Reference: Chen and Chao, On bridging generic and personalized federated learning for image
    classification, ICLR 2022. A method of 004. Deviation: the paper's hypernetwork head is left
    out, as in PFLlib and 004.
    """

    experts = OWN
    initialised_from: ClassVar[dict[str, str]] = {OWN: "head."}

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model and a second head."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(select_prefix(model, "head."), OWN)}

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the logarithm of how often a client holds each label, ``[clients, classes]``."""
        return {"log_counts": fed.train.counts(fed.classes)[clients].to(torch.float32).log()}

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the balanced loss of base and generic head, and that of the personal head."""
        y, weight = batch.y, batch.weight
        h = self.features(net, params, batch)
        generic = net.logits(params, h)
        balanced = generic + ctx["log_counts"]
        both = generic.detach() + self.private(net, params, h.detach())
        return mean_cross_entropy(balanced, y, weight) + mean_cross_entropy(both, y, weight)

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return the generic logits: those of a client for a new client."""
        return {"logits": net.logits(params, code["h"])}


@value
class FedCP(SplitModel):
    """A policy divides every feature h between a personal and a global head, r + s = 1.

        logits = own(r * h) + head(s * h)
        r = soft Gumbel choice at temperature 1 of ReLU(LayerNorm(Linear(h * v_j)))

    v_j, the client's embedding, is the sum of the rows of its personal head's weight, at unit
    length; the policy is shared. Base, policy and personal head are trained; the received head is
    not, and what is sent back for it is the mean of it and the personal one. ``apart`` is lambda of
    the maximum mean discrepancy that keeps features near those of the received base:

        CE + lambda MMD^2(f(x), f_g(x))

    Reference: Zhang et al., FedCP: separating feature information for personalized federated
    learning via conditional policy, KDD 2023 (lambda 5; PFLlib and 004: 1). A method of 004.
    Deviation: for predictions r is chosen without noise; as released every evaluation has other
    noise (A36).
    """

    experts = OWN
    initialised_from: ClassVar[dict[str, str]] = {OWN: "head."}
    trained = ("base.", POLICY, OWN)
    stored_as: ClassVar[dict[str, str]] = {"lam": "apart"}
    lam: NonNegativeFloat = 5.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model, a second head like the first, and the policy."""
        model, d = FedAvg.init_params(self, fed, seed), fed.net.width
        with seeded(torch_seed(seed, "model", 1)):
            policy = params_of({"layer": nn.Linear(d, 2 * d), "norm": nn.LayerNorm(2 * d)})
        own = add_prefix(select_prefix(model, "head."), OWN)
        return {**model, **own, **to_device(add_prefix(policy, POLICY), fed)}

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the embedding of each client, ``[clients, D]``."""
        return {"who": normalize(state.client_params[f"{OWN}weight"][clients].sum(1), dim=-1)}

    round_constants = MOON.round_constants  # the received base

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains all but the received head."""
        return (self.phase(random_inputs=(("policy", FEATURES),)),)

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy, and how far features are from the received base's."""
        h, weight = self.features(net, params, batch), batch.weight
        logits = self.logits(net, params, ctx, {"h": h, **batch.random})
        loss = mean_cross_entropy(logits, batch.y, weight)
        known = batch.precomputed
        theirs = known["theirs"] if "theirs" in known else self._theirs(net, ctx, batch)
        return loss + self.lam * discrepancy(h, theirs, weight)

    def precompute(
        self, net: FunctionalModel, frozen: Params, ctx: Params, batch: Batch
    ) -> Precomputed:
        """Return the received base's features, and the client's own where these stand still."""
        own = SplitModel.precompute(self, net, frozen, ctx, batch).replace
        return Precomputed({"theirs": self._theirs(net, ctx, batch)}, own)

    def _theirs(self, net: FunctionalModel, ctx: Params, batch: Batch) -> Tensor:
        return net.features(select_prefix(ctx, RECEIVED), batch.x)

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """Return before - after, where the head after is the mean of received and personal one."""
        own, sent = FedAvg.client_update(self, net, before, after, ctx)
        for name, mine in add_prefix(select_prefix(after, OWN), "head.").items():
            sent[name] = (before[name] - mine) / 2
        return own, sent

    def opened(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the personal share of the features, and what the global head makes of the rest."""
        h, policy = code["h"], select_prefix(params, POLICY)
        logits = linear(h * ctx["who"], policy["layer.weight"], policy["layer.bias"])
        logits = layer_norm(logits, logits.shape[-1:], policy["norm.weight"], policy["norm.bias"])
        mine, theirs = relu(logits).unflatten(-1, (2, net.width)).unbind(-2)
        chance = mine - theirs
        if "policy" in code:  # The difference of two Gumbel variables is logistic.
            chance = chance + torch.logit(code["policy"], eps=1e-6)
        mine = torch.sigmoid(chance) * h
        return Opened(mine, net.logits(params, h - mine))


def discrepancy(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of rows ``[B, D]`` with ``weight`` ``[B]``.

    Under the sum of four Gaussian kernels e^(-d^2 / 2 w), diagonals included, as in FedCP's code.
    """
    clients = torch.cat([a, b], -2)
    share = torch.cat([weight, -weight]) / weight.sum().clamp(min=1)
    squares = (clients**2).sum(-1)
    far = (squares.unsqueeze(-1) + squares - 2 * clients @ clients.mT).clamp(min=0)
    # All kernels in one tensor: a small batch's time is that of launching operations.
    kernels = (far * _narrow(far.device, far.dtype)).exp().sum(0)
    return (kernels * (share.unsqueeze(-1) * share)).sum()


@cache
def _narrow(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return -1 / (2 width) of every kernel, made once: at each step a GPU would wait for it."""
    return torch.tensor(WIDTHS, device=device, dtype=dtype).mul(-2).reciprocal().view(-1, 1, 1)


@value
class GPFL(SplitModel):
    """Base below a personal head, which reads features steered by what the client's labels are.

    Every label y has a shared embedding e_y of D numbers; scale and shift, shared, are a linear
    layer, ReLU and layer normalisation each. ``near`` is lambda, ``decay`` mu, the weight decay of
    embeddings and steering.

        steer(h; c) = ReLU(h (scale(c) + 1) + shift(c))
        logits      = head_s(steer(h; c_s)),  c_s = sum_y p(y|s) e_y,  c_g = mean_y e_y
        pull        = CE(cos(steer(h; c_g), e)) + lambda |steer(h; c_g) - e_y|
        loss        = CE(logits) + pull + mu/2 (|e|^2 + |steering|^2)

    Contexts c and the e_y of the distance are of the received embeddings.

    Reference: Zhang et al., GPFL: simultaneously learning global and personalized feature
    information for personalized federated learning, ICCV 2023. A method of 004. Deviation: as
    released contexts are of the embeddings that the client had before, at first zero, and the
    distance is of whole batches.

    >>> root(torch.tensor([4.0, 0.0]))  # distances; the gradient at 0 is 0
    tensor([2., 0.])
    """

    experts = "head."
    trained = ("base.", "head.", LABELS, STEERED)
    near: NonNegativeFloat = 0.01
    decay: NonNegativeFloat = 0.1

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model, the labels' embeddings and the steering."""
        model, d = FedAvg.init_params(self, fed, seed), fed.net.width
        with seeded(torch_seed(seed, "model", 1)):
            new: dict[str, nn.Module] = {"labels": nn.Embedding(fed.classes, d)}
            new |= {f"{STEERED}{side}.layer": nn.Linear(d, d) for side in SIDES}
            new |= {f"{STEERED}{side}.norm": nn.LayerNorm(d) for side in SIDES}
        return {**model, **to_device(params_of(new), fed)}

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the contexts, ``[clients, D]`` each."""
        share = fed.shares("label")[clients]
        labels = state.server_params[LABELS].expand(len(clients), -1, -1)
        return {"everybody": labels.mean(1), "mine": (share.unsqueeze(1) @ labels).squeeze(1)}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the received embeddings."""
        return {"received_labels": state.server_params[LABELS]}

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the head's cross-entropy, and what the embeddings say of the steered features."""
        y, weight = batch.y, batch.weight
        h = self.features(net, params, batch)
        logits = net.logits(params, steer(params, h, ctx["mine"]))
        everybody = steer(params, h, ctx["everybody"])
        cosine = normalize(everybody, dim=-1) @ normalize(params[LABELS], dim=-1).mT
        right, near = (cross_entropy(a, y) for a in (logits, cosine))
        losses = right + near
        far = root(((everybody - ctx["received_labels"][y]) ** 2).sum(-1))
        loss = mean(losses, weight) + self.near * mean(far, weight)
        decayed = [params[LABELS], *select_prefix(params, STEERED).values()]
        return loss + self.decay / 2 * torch.stack([(t**2).sum() for t in decayed]).sum()

    def opened(self, net: FunctionalModel, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features steered by the client's own labels."""
        h = code["h"]
        return Opened(steer(params, h, ctx["mine"]), h.new_zeros(h.shape[0], net.classes))


def steer(params: Params, h: Tensor, context: Tensor) -> Tensor:
    """Return features ``[B, D]`` steered by a context ``[D]``."""

    def read(layer: Params) -> Tensor:
        # In memory of its own: of a view the bits would hang on where it begins.
        logits = relu(linear(context.clone(), layer["layer.weight"], layer["layer.bias"]))
        return layer_norm(logits, logits.shape[-1:], layer["norm.weight"], layer["norm.bias"])

    scale, shift = (read(select_prefix(params, f"{STEERED}{side}.")) for side in SIDES)
    return relu(h * (scale + 1) + shift)


def root(squares: Tensor) -> Tensor:
    """Return the square root, whose gradient at 0 is 0."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1).sqrt(), 0)


@value
class DBE(SplitModel):
    """The whole model is shared, a vector v_j of D numbers, added to the features, is private.

    ``kappa`` is kappa; m_j are the mean features of the client's mini-batch, g is the consensus.

        logits = head(f(x) + v_j)
        m_j    = mean_batch f(x)
        loss   = CE + kappa mean_d (m_jd - g_d)^2 / 2

    g is the mean of the clients' last m_j after one epoch of plain training from the initial model,
    weighted by examples, and stays as it is. For that epoch the initial model goes to every client
    that takes part, and D numbers come back: the first round is charged for it, whoever is in its
    cohort, in equal parts.

    Reference: Zhang et al., Eliminating domain bias for federated learning in representation space,
    NeurIPS 2023 (kappa 50, for news 0.1, as in 004; PFLlib's default is kappa 0). A method of 004.
    Deviation: v_j moves at the clients' rate, in plain SGD steps; m_j is no running mean over
    batches (the paper's mu is 1, as in 004).
    """

    experts = VECTOR
    trained: ClassVar[tuple[str, ...]] = ("base.", "head.", VECTOR, RUNNING)
    local = (VECTOR, RUNNING)
    needs_plain_sgd = True
    below_head = True
    kappa: NonNegativeFloat = 50.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model, and vectors that start at zero."""
        zero = torch.zeros(fed.net.width)
        vectors = {n: zero.clone() for n in (VECTOR, RUNNING, CONSENSUS)}
        return {**FedAvg.init_params(self, fed, seed), **to_device(vectors, fed)}

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the initial model with the consensus, for which every client trains one epoch."""
        initial = FedAvg.init(self, fed, seed, first)
        if not self.kappa or (first and CONSENSUS in first.server_params):
            return initial
        # The initial model stays as it is.
        nothing = {n: torch.zeros_like(t) for n, t in initial.client_params.items()}
        fresh = State(dict(initial.server_params), nothing)
        once = _Consensus(batch_size=self.batch_size, client=self.client, kappa=0.0)
        found, report = play_round(once, fed, fresh, round=0, seed=seed, cohort=1.0)
        initial.server_params[CONSENSUS] = found.server_params[CONSENSUS]
        initial.server_memory[PREPARED] = torch.stack([report.download.sum(), report.upload.sum()])
        return initial

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the received model and the client's vector; its mean features start empty."""
        initial = FedAvg.client_params(self, fed, state, clients)
        return {**initial, RUNNING: torch.zeros_like(initial[RUNNING])}

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy, and how far the mean features are from the consensus."""
        weight = batch.weight
        h = self.features(net, params, batch)
        logits = net.logits(params, h + params[VECTOR])
        loss = mean_cross_entropy(logits, batch.y, weight)
        center = mean_of(h, weight)
        loss = loss + self.kappa / 2 * ((center - params[CONSENSUS]) ** 2).mean()
        # Zero in value; its SGD step remembers the batch's mean.
        back = params[RUNNING] - center.detach()
        step = (back**2).sum() - (back.detach() ** 2).sum()
        return loss + 1 / (2 * self.client.lr) * step

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        """Return the bytes of a round, of the first one with those of the consensus.

        What all clients exchanged for that is dealt to the first cohort: with all clients in it,
        each has its own. The server's memory of it ends with the first round.
        """
        down, up = FedAvg.communication_bytes(self, state, rows, messages)
        if PREPARED not in state.server_memory:
            return down, up
        once, clients = state.server_memory[PREPARED].cpu().unsqueeze(1), len(rows)
        more = once // clients + (torch.arange(clients) < once % clients)
        return down + more[0], up + more[1]

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Average the models; what finding the consensus took has been charged."""
        return replace(FedAvg.aggregate(self, fed, state, clients, messages), server_memory={})

    def private(self, net: FunctionalModel, params: Params, entry: Tensor) -> Tensor:
        """Return the client's vector for every example."""
        return params[VECTOR].expand(entry.shape[0], -1)


@dataclass(frozen=True)
class _Consensus(DBE):
    """One epoch of plain training whose clients send their last mean, and nothing else."""

    trained = ("base.", "head.", RUNNING)

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        return {}, {CONSENSUS: before[CONSENSUS] - after[RUNNING]}

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        model = drop_prefix(state.server_params, CONSENSUS)  # there is none yet
        return FedAvg.communication_bytes(
            self, replace(state, server_params=model), clients, messages
        )
