"""Models split into a shared and a personal part: a head, a base, a vector or first layers."""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize, relu

from fedlib.algorithms.arithmetic import cross_entropy
from fedlib.algorithms.drift import MOON, RECEIVED
from fedlib.algorithms.fedavg import FedAvg, features_of
from fedlib.algorithms.interface import *
from fedlib.engine import play_round

MEAN = "running_mean"  # a parameter that BatchNorm layers alone have
OWN, POLICY = "own.", "policy."
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels
LABELS, STEERED = "labels.weight", "steered."
SIDES = ("scale", "shift")
VECTOR, RUNNING, CONSENSUS = "own.mean", "running.mean", "consensus.mean"
PREPARED = "server/prepared"  # bytes down and up of the epoch that computed the consensus


class Opened(NamedTuple):
    """The shared part of a prediction.

    Args:
        entry: input of the private part, ``[B, ...]``.
        rest: logits without the private part, ``[B, classes]``.
    """

    entry: Tensor
    rest: Tensor


@dataclass(frozen=True)
class SplitModel(FedAvg):
    """A base class of methods whose logits are the sum of a shared and a private part's.

        logits = rest(x) + joined(private(entry(x)))

    Subclasses define the four functions. ``joined`` is linear, so that a mixture of private parts
    (``PMMoE``) is a mixture of what they add to the logits. The private part consists of the local
    parameters whose names begin with ``experts``.

    Reference: Feng et al., PM-MoE, 2025, eq. 4. Deviation: private vectors are added to the
    features, not to the logits.
    """

    experts: ClassVar[str]
    """Name prefix of the private part's parameters."""

    below_head: ClassVar[bool] = False
    """Whether the private part computes features for the shared head, instead of logits."""

    @property
    def local(self) -> tuple[str, ...]:
        """The private part."""
        return (self.experts,)

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the input of the private part, and the logits without that part.

        Default: the features, and the logits of the shared head.
        """
        return Opened(code["h"], net.logits(params, code["h"]))

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the output of the private part, ``[B, ...]``. Default: the logits of a head."""
        return net.logits(add_prefix(select_prefix(params, self.experts), "head."), entry)

    def joined(self, net: Net, params: Params, out: Tensor) -> Tensor:
        """Return what the private part's output adds to the logits, ``[B, classes]``."""
        return out @ params["head.weight"].mT if self.below_head else out

    def logits(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the client's logits ``[B, classes]``."""
        entry, rest = self.opened(net, params, ctx, code)
        return rest + self.joined(net, params, self.private(net, params, entry))

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features of the shared base."""
        return {"h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(self.logits(net, params, ctx, code).log_softmax(-1))

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's logits."""
        return {"logits": self.logits(net, params, ctx, code)}


@value
class Personal(SplitModel):
    """FedAvg in which parameters chosen by name stay with their client.

    The default, the output layer's bias b_s, is biased FedAvg:

        p(y|x, s) = softmax(W h(x) + b_s)                                      (sec. 4.1)

    A new client gets the mean of the clients' logits, which for an output layer is the logits of
    the mean layer. ``PMMoE`` mixes the heads, if the whole head is local.

    Args:
        local: name prefix of the local parameters, or a tuple of several; every one must match a
            parameter of the model. Default: ``("head.bias",)``.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Reisser et al., Federated mixture of experts, 2021, sec. 4.1, a baseline.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, Personal(local="head."), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['head.weight', 'head.bias']
    """

    experts = "head."
    local: tuple[str, ...] = ("head.bias",)

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the parameters of FedAvg.

        Raises:
            ValueError: if a prefix in ``local`` matches no parameter.
        """
        params = FedAvg.init_params(self, fed, seed)
        for prefix in self.local:
            if not any(name.startswith(prefix) for name in params):
                have = f"; there are {', '.join(params)}"
                raise ValueError(f"no parameter begins with {prefix!r}{have}")
        return params

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features, and logits of zero."""
        h = code["h"] if "h" in code else net.features(params, code["x"])
        return Opened(h, h.new_zeros(h.shape[0], net.classes))

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features, or the examples if parameters of the base are local."""
        is_head = all(prefix.startswith("head.") for prefix in self.local)
        return {"h": net.features(shared, x)} if is_head else {"x": x}


@value
class FedPer(Personal):
    """A shared base f with personal heads h_s, trained together: logits = h_s(f(x)).

    Args:
        local: name prefixes of the local parameters. Default: ``("head.",)``.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Arivazhagan et al., Federated learning with personalization layers, 2019. A method
    of the PM-MoE paper, whose experts are the heads.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedPer(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local: tuple[str, ...] = ("head.",)


@value
class LGFedAvg(Personal):
    """Personal bases f_s with a shared head h, trained together: logits = h(f_s(x)).

    Args:
        local: name prefixes of the local parameters. Default: ``("base.",)``.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Liang et al., Think locally, act globally, 2020, as understood in the PM-MoE
    paper, whose experts are the bases. In ``LocalGlobal`` fewer layers are personal.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, LGFedAvg(), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['base.1.weight', 'base.1.bias']
    """

    experts = "base."
    below_head = True
    local: tuple[str, ...] = ("base.",)

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the examples, and the bias of the shared head."""
        return Opened(code["x"], params["head.bias"].expand(code["x"].shape[0], -1))

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the features of a base."""
        return net.features(params, entry)


@value
class FedRep(Personal):
    """FedPer that trains the personal head first and then the shared base.

        h_s <- h_s - eta grad CE(h_s(f(x))),  then  f <- f - eta grad CE(h_s(f(x)))

    Args:
        head_epochs: local epochs of the head. Default: 10.
        epochs: local epochs of the base. Default: 1.
        local: name prefixes of the local parameters. Default: ``("head.",)``.
        batch_size, client, server, steps: as in ``FedAvg``; ``steps`` replaces ``epochs``.

    Reference: Collins et al., Exploiting shared representations for personalized federated
    learning, ICML 2021. A method of the PM-MoE paper. Deviation: ten epochs of the head, about as
    many as in the paper; PFLlib and the PM-MoE paper use one.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedRep(head_epochs=2, epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    local: tuple[str, ...] = ("head.",)
    head_epochs: PositiveInt = 10

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase of the head and one of the base."""
        head = self.phase(train=("head.",), epochs=self.head_epochs)
        return head, self.phase(train=("base.",))


@value
class FedBABU(Personal):
    """FedPer with a frozen head: only the base f is trained, logits = h_0(f(x)).

    All clients have the same initial head h_0. A later ``Local`` stage fine-tunes it together with
    the base.

    Args:
        local: name prefixes of the local parameters. Default: ``("head.",)``.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Oh et al., FedBABU: toward enhanced representation for federated image
    classification, ICLR 2022. A method of the PM-MoE paper. Deviation: fine-tuning starts from the
    server's base, as in the paper; in the released code of PM-MoE it starts from a client's own
    last base.

    >>> from fedrun import Experiment, run, tiny
    >>> first = Experiment(tiny.task, FedBABU(epochs=5, client=sgd(0.2)), rounds=20, cohort=6)
    >>> tuned = Experiment(tiny.task, Local(epochs=10), rounds=1, cohort=6, first_stage=first)
    >>> run(tuned, progress=False).final("test_accuracy") > 0.5  # the majority class has 0.27
    True
    """

    local: tuple[str, ...] = ("head.",)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the base."""
        return (self.phase(train=("base.",)),)


@value
class FedBN(FedAvg):
    """FedAvg in which BatchNorm layers stay with their client: weights, biases and statistics.

    Each client normalises its own features, which differ by a feature shift. For a model without
    BatchNorm layers the method is FedAvg. A new client gets the mean of the clients' predictions.

    Args:
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Li et al., FedBN: federated learning on non-IID features via local batch
    normalization, ICLR 2021.

    >>> from dataclasses import replace
    >>> from fedrun import Experiment, simulate, tiny
    >>> from torch import nn
    >>> @value
    ... class Normalised(Architecture):
    ...     def base(self, shape):
    ...         return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(256)), 256
    >>> task = replace(tiny.task, model=Normalised())
    >>> *_, last = simulate(Experiment(task, FedBN(), rounds=1, cohort=6))
    >>> "base.1.running_mean" in last.state.client_params  # it stays with its client
    True
    """

    local = (f"*{MEAN}",)


@value
class LocalGlobal(FedAvg):
    """Personal first layers l_s followed by a global network g: logits = g(l_s(x)).

    A new client gets the prediction of g for the mean of the clients' representations:

        log p(y|x) = log softmax g( sum_s p(s) l_s(x) )                          (App. F)

    Args:
        cut: number of the base's modules in l_s, such as 3 for the input layer of a LeNet
            (convolution, pooling, ReLU) or 4 for a ResNet up to its first block; see
            ``FunctionalModel.cuts``. Default: 3.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Liang et al., Think locally, act globally, 2020; a baseline of Reisser et al., 2021,
    sec. 4.1, where, as here, the model is not pre-trained by FedAvg, which
    ``Experiment.first_stage`` makes possible.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, LocalGlobal(cut=3), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['base.1.weight', 'base.1.bias']
    """

    cut: PositiveInt = 3

    @property
    def local(self) -> tuple[str, ...]:
        """The first ``cut`` modules of the base."""
        return tuple(f"base.{i}." for i in range(self.cut))

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, with equal first layers for all clients.

        Raises:
            ValueError: if the model cannot be cut there.
        """
        cuts = fed.net.cuts
        if self.cut not in cuts:
            legal = "; ".join(f"{cut} (after {names})" for cut, names in cuts.items())
            raise ValueError(f"this model has no cut {self.cut}; legal: {legal or 'none'}")
        return FedAvg.init(self, fed, seed, first)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's representation."""
        return {"r": net.below(params, code["x"], self.cut)}

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return the prediction of the global layers for the mean representation."""
        return net.above(shared, outputs["r"], self.cut).log_softmax(-1)


@value
class FedRoD(SplitModel):
    """A base f with a generic head h and a personal head h_s: logits = h(f(x)) + h_s(f(x)).

        f, h:  CE( h(f(x)) + log n )        h_s:  CE( h(f(x)) + h_s(f(x)) )

    Base and generic head are shared and trained with the balanced softmax, which adds log n_y to
    the logit of label y, with n_y training examples at the client. The personal head, which starts
    as a copy of the generic head, is trained with the cross-entropy of the sum, whose gradient
    reaches no other parameter. A new client gets the generic model.

    Args:
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Chen and Chao, On bridging generic and personalized federated learning for image
    classification, ICLR 2022. A method of the PM-MoE paper. Deviation: the paper's hypernetwork for
    heads is left out, as in PFLlib and that paper.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedRoD(), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['own.weight', 'own.bias']
    """

    experts = OWN

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters and a copy of its head."""
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(select_prefix(model, "head."), OWN)}

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the logarithms of the label counts, ``[clients, classes]``."""
        return {"log_counts": fed.train.counts(fed.classes)[clients].to(torch.float32).log()}

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the balanced loss of base and generic head plus the personal head's loss."""
        y, weight = batch.y, batch.weight
        h = features_of(net, params, batch)
        generic = net.logits(params, h)
        balanced = generic + ctx["log_counts"]
        both = generic.detach() + self.private(net, params, h.detach())
        return mean_cross_entropy(balanced, y, weight) + mean_cross_entropy(both, y, weight)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the logits of the generic model."""
        return {"logits": net.logits(params, code["h"])}


@value
class FedCP(SplitModel):
    """A policy divides every feature h between a personal and a global head, r + s = 1.

        logits = own(r * h) + head(s * h)
        r      = Gumbel softmax at temperature 1 of ReLU(LayerNorm(Linear(h * v_j)))
        loss   = CE + lambda MMD^2(f(x), f_g(x))

    The client's embedding v_j is the normalised sum over classes of its personal head's weights;
    the policy is shared. Base, policy and personal head are trained. The global head is frozen at
    the clients, which send the mean of it and of their personal head. The maximum mean discrepancy
    keeps the features f(x) close to those of the global base f_g.

    Args:
        lam: weight lambda of the maximum mean discrepancy, at least 0. Default: 5.0.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Zhang et al., FedCP: separating feature information for personalized federated
    learning via conditional policy, KDD 2023 (lambda 5; PFLlib and PM-MoE: 1). A method of the
    PM-MoE paper. Deviation: predictions compute r without noise; the released code draws new noise
    in every evaluation.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedCP(lam=1.0), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['own.weight', 'own.bias']
    """

    experts = OWN
    stored_as: ClassVar[dict[str, str]] = {"lam": "apart"}
    lam: NonNegativeFloat = 5.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, a copy of its head, and the policy."""
        model, d = FedAvg.init_params(self, fed, seed), fed.net.width
        with seeded(torch_seed(seed, "model", 1)):
            policy = params_of({"layer": nn.Linear(d, 2 * d), "norm": nn.LayerNorm(2 * d)})
        own = add_prefix(select_prefix(model, "head."), OWN)
        return {**model, **own, **to_device(add_prefix(policy, POLICY), fed)}

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the embedding of each client, ``[clients, D]``."""
        return {"who": normalize(state.client_params[f"{OWN}weight"][clients].sum(1), dim=-1)}

    round_constants = MOON.round_constants  # the global base

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase, which trains all parameters but the global head."""
        return (self.phase(train=("base.", POLICY, OWN), random_inputs=(("policy", FEATURES),)),)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy plus the discrepancy from the global base's features."""
        h, weight = features_of(net, params, batch), batch.weight
        logits = self.logits(net, params, ctx, {"h": h, **batch.random})
        loss = mean_cross_entropy(logits, batch.y, weight)
        found = batch.precomputed or {"theirs": self._theirs(net, ctx, batch)}
        return loss + self.lam * discrepancy(h, found["theirs"], weight)

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return the features of the global base, and of the client's base if it is frozen."""
        own = SplitModel.precompute(self, net, frozen, ctx, batch).replace
        return Precomputed({"theirs": self._theirs(net, ctx, batch)}, own)

    def _theirs(self, net: Net, ctx: Params, batch: Batch) -> Tensor:
        return net.features(select_prefix(ctx, RECEIVED), batch.x)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after, with the mean of global and personal head as the head after."""
        own, sent = FedAvg.client_update(self, net, before, after, ctx)
        for name, mine in add_prefix(select_prefix(after, OWN), "head.").items():
            sent[name] = (before[name] - mine) / 2
        return own, sent

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the personal share r * h, and the global head's logits of the rest."""
        h, policy = code["h"], select_prefix(params, POLICY)
        out = linear(h * ctx["who"], policy["layer.weight"], policy["layer.bias"])
        out = layer_norm(out, out.shape[-1:], policy["norm.weight"], policy["norm.bias"])
        mine, theirs = relu(out).unflatten(-1, (2, net.width)).unbind(-2)
        chance = mine - theirs
        if "policy" in code:  # The difference of two Gumbel variables is logistic.
            chance = chance + torch.logit(code["policy"], eps=1e-6)
        mine = torch.sigmoid(chance) * h
        return Opened(mine, net.logits(params, h - mine))


def discrepancy(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two batches of features.

    Its kernel is the sum of four Gaussian kernels e^(-d^2 / 2 w), and the diagonals count, as in
    the released code of FedCP.

    Args:
        a: features, ``[B, D]``.
        b: other features of the same examples, ``[B, D]``.
        weight: weights of the examples, 0 for padding, ``[B]``.
    """
    both = torch.cat([a, b], -2)
    share = torch.cat([weight, -weight]) / weight.sum().clamp(min=1)
    squares = (both**2).sum(-1)
    far = (squares.unsqueeze(-1) + squares - 2 * both @ both.mT).clamp(min=0)
    # All kernels are in one tensor, as launching operations dominates the time of a small batch.
    kernels = (far * _narrow(far.device, far.dtype)).exp().sum(0)
    return (kernels * (share.unsqueeze(-1) * share)).sum()


@cache
def _narrow(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return -1 / (2 width) of every kernel, cached because a GPU would wait for each copy."""
    return torch.tensor(WIDTHS, device=device, dtype=dtype).mul(-2).reciprocal().view(-1, 1, 1)


@value
class GPFL(SplitModel):
    """A base with personal heads, and features conditioned on the client's label distribution.

        steer(h; c) = ReLU(h (scale(c) + 1) + shift(c))
        logits      = head_s(steer(h; c_s)),  c_s = sum_y p(y|s) e_y,  c_g = mean_y e_y
        pull        = CE(cos(steer(h; c_g), e)) + lambda |steer(h; c_g) - e_y|
        loss        = CE(logits) + pull + mu/2 (|e|^2 + |steering|^2)

    Every label y has a shared embedding e_y of D numbers. The steering networks scale and shift are
    shared, too: a linear layer, ReLU and layer normalisation each. The contexts c_s and c_g and the
    distance use the embeddings at the start of the round.

    Args:
        near: weight lambda of the distance, at least 0. Default: 0.01.
        decay: weight decay mu of embeddings and steering networks, at least 0. Default: 0.1.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Zhang et al., GPFL: simultaneously learning global and personalized feature
    information for personalized federated learning, ICCV 2023. A method of the PM-MoE paper.
    Deviation: the released code computes contexts from the client's embeddings of an earlier round,
    at first zero, and the distance over whole batches.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, GPFL(), rounds=2, cohort=6))
    >>> [*last.state.client_params]  # what stays with its client
    ['head.weight', 'head.bias']
    """

    experts = "head."
    near: NonNegativeFloat = 0.01
    decay: NonNegativeFloat = 0.1

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, the label embeddings and the steering networks."""
        model, d = FedAvg.init_params(self, fed, seed), fed.net.width
        with seeded(torch_seed(seed, "model", 1)):
            new: dict[str, nn.Module] = {"labels": nn.Embedding(fed.classes, d)}
            new |= {f"{STEERED}{side}.layer": nn.Linear(d, d) for side in SIDES}
            new |= {f"{STEERED}{side}.norm": nn.LayerNorm(d) for side in SIDES}
        return {**model, **to_device(params_of(new), fed)}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all parameters that the model has here."""
        return (self.phase(train=("base.", "head.", LABELS, STEERED)),)

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the contexts, ``[clients, D]`` each."""
        share = fed.shares("label")[clients]
        labels = state.server_params[LABELS].expand(len(clients), -1, -1)
        return {"everybody": labels.mean(1), "mine": (share.unsqueeze(1) @ labels).squeeze(1)}

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return the label embeddings at the start of the round."""
        return {"received_labels": state.server_params[LABELS]}

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy, the pull to the label embeddings and the weight decay."""
        y, weight = batch.y, batch.weight
        h = features_of(net, params, batch)
        logits = net.logits(params, steer(params, h, ctx["mine"]))
        everybody = steer(params, h, ctx["everybody"])
        cosine = normalize(everybody, dim=-1) @ normalize(params[LABELS], dim=-1).mT
        right, near = (cross_entropy(a, y) for a in (logits, cosine))
        losses = right + near
        far = root(((everybody - ctx["received_labels"][y]) ** 2).sum(-1))
        loss = mean(losses, weight) + self.near * mean(far, weight)
        decayed = [params[LABELS], *select_prefix(params, STEERED).values()]
        return loss + self.decay / 2 * torch.stack([(t**2).sum() for t in decayed]).sum()

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features steered by the client's label distribution, and logits of zero."""
        h = code["h"]
        return Opened(steer(params, h, ctx["mine"]), h.new_zeros(h.shape[0], net.classes))


def steer(params: Params, h: Tensor, context: Tensor) -> Tensor:
    """Return features ``[B, D]`` steered by a context ``[D]``."""

    def read(layer: Params) -> Tensor:
        # A copy, because the rounding of a view's product depends on its memory alignment.
        out = relu(linear(context.clone(), layer["layer.weight"], layer["layer.bias"]))
        return layer_norm(out, out.shape[-1:], layer["norm.weight"], layer["norm.bias"])

    scale, shift = (read(select_prefix(params, f"{STEERED}{side}.")) for side in SIDES)
    return relu(h * (scale + 1) + shift)


def root(squares: Tensor) -> Tensor:
    """Return the square root, whose gradient at 0 is 0.

    >>> root(torch.tensor([4.0, 0.0]))  # distances; the gradient at 0 is 0
    tensor([2., 0.])
    """
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1).sqrt(), 0)


@value
class DBE(SplitModel):
    """A shared model with a private vector v_j of D numbers that is added to the features.

        logits = head(f(x) + v_j)
        m_j    = mean_batch f(x)
        loss   = CE + kappa mean_d (m_jd - g_d)^2 / 2

    The consensus g is computed once, before round 0: all clients train one epoch from the initial
    model, and g is the mean of their last m_j, weighted by examples. For that epoch every
    participating client downloads the initial model and uploads D numbers. These bytes are added to
    those of the first round, in equal parts for its cohort.

    Args:
        kappa: weight of the distance from the consensus, at least 0. Default: 50.0.
        client: optimiser of all parameters, v_j among them. It must be plain SGD. Default: SGD
            with rate 0.05.
        epochs, batch_size, server, steps: as in ``FedAvg``.

    Reference: Zhang et al., Eliminating domain bias for federated learning in representation space,
    NeurIPS 2023 (kappa 50, for news 0.1, as in PM-MoE; PFLlib's default is kappa 0). A method of
    the PM-MoE paper. Deviation: v_j has the clients' learning rate, and m_j is not a running mean
    over batches (the paper's mu is 1, as in PM-MoE).

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, DBE(kappa=1.0), rounds=2, cohort=6))
    >>> last.state.client_params["own.mean"].shape  # v_j of six clients
    torch.Size([6, 8])
    """

    experts = VECTOR
    local = (VECTOR, RUNNING)
    _needs_plain_sgd = True
    below_head = True
    kappa: NonNegativeFloat = 50.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the model's parameters, and vectors of zero."""
        zero = torch.zeros(fed.net.width)
        vectors = {n: zero.clone() for n in (VECTOR, RUNNING, CONSENSUS)}
        return {**FedAvg.init_params(self, fed, seed), **to_device(vectors, fed)}

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the initial state with the consensus, for which all clients train one epoch."""
        initial = FedAvg.init(self, fed, seed, first)
        if not self.kappa or (first and CONSENSUS in first.server_params):
            return initial
        # A copy, because a round updates local parameters in place.
        nothing = {n: torch.zeros_like(t) for n, t in initial.client_params.items()}
        fresh = State(dict(initial.server_params), nothing)
        once = _Consensus(batch_size=self.batch_size, client=self.client, kappa=0.0)
        found, report = play_round(once, fed, fresh, round=0, seed=seed, cohort=1.0)
        initial.server_params[CONSENSUS] = found.server_params[CONSENSUS]
        initial.server_memory[PREPARED] = torch.stack([report.download.sum(), report.upload.sum()])
        return initial

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all parameters but the consensus."""
        return (self.phase(train=("base.", "head.", VECTOR, RUNNING)),)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the global model, the client's vector, and mean features of zero."""
        initial = FedAvg.client_params(self, fed, state, clients)
        return {**initial, RUNNING: torch.zeros_like(initial[RUNNING])}

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy plus the distance of mean features from the consensus."""
        weight = batch.weight
        h = features_of(net, params, batch)
        logits = net.logits(params, h + params[VECTOR])
        loss = mean_cross_entropy(logits, batch.y, weight)
        center = mean_of(h, weight)
        loss = loss + self.kappa / 2 * ((center - params[CONSENSUS]) ** 2).mean()
        # This term has the value 0, and its SGD step sets ``running.mean`` to the batch's mean.
        back = params[RUNNING] - center.detach()
        step = (back**2).sum() - (back.detach() ** 2).sum()
        return loss + 1 / (2 * self.client.lr) * step

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of a round, and in the first round also those of the consensus.

        The latter are divided among the first cohort, in equal parts.
        """
        down, up = FedAvg.communication_bytes(self, state, clients, messages)
        if PREPARED not in state.server_memory:
            return down, up
        once, n = state.server_memory[PREPARED].cpu().unsqueeze(1), len(clients)
        more = once // n + (torch.arange(n) < once % n)
        return down + more[0], up + more[1]

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the averaged model, without the bytes of the consensus, which are counted."""
        return replace(FedAvg.aggregate(self, fed, state, clients, messages), server_memory={})

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the client's vector for every example."""
        return params[VECTOR].expand(entry.shape[0], -1)


@dataclass(frozen=True)
class _Consensus(DBE):
    """One epoch of training after which clients send their last mean features, and no model."""

    def phases(self) -> tuple[Phase, ...]:
        return (self.phase(train=("base.", "head.", RUNNING)),)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        return {}, {CONSENSUS: before[CONSENSUS] - after[RUNNING]}

    def download(self, state: State, row: int) -> State:
        return State(drop_prefix(state.server_params, CONSENSUS), {})  # it is not sent yet
