"""PM-MoE: a gate per client over the private parts of all clients; FedSynMoE."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedlib.algorithms.arithmetic import one_hot
from fedlib.algorithms.fedavg import FedAvg, local_names
from fedlib.algorithms.interface import *
from fedlib.algorithms.local import LaterStage
from fedlib.algorithms.mixture import GATE, OWN, expert_diagnostics, on_tests
from fedlib.algorithms.splitting import FedPer, SplitModel
from fedlib.engine.width import group_by_size
from fedlib.models.architectures import GateNet
from fedlib.partition import whole_part

POOL, KEPT, PLACE = "pool.", "kept.experts", "place"
# Precomputed for each example: the experts' logits, the rest of the logits, the gate's input.
LOGITS, REST, ENTRY = "logits", "rest", "entry"


@value
class PMMoE(LaterStage):
    """A gate G_j per client j mixes the private parts v_1 ... v_M of a trained federation.

        a      = softmax G_j(x),  restricted to the ``top`` largest
        logits = rest(x) + joined( sum_l a_l v_l(entry(x)) )                          (eq. 5 to 8)
        G_j   <- G_j - eta grad CE(logits)                                            (eq. 13)
        H_l    = T log sum_d exp(o_ld o_jd / (|o_l| |o_j| T))  for outputs o_l = v_l  (eq. 10 to 12)

    Only the gates are trained. The input of a gate is that of the private part: features for a head
    or a vector, the raw image for a base, and the client's own features for a base of texts.
    Train for one round with all clients (``rounds=1, cohort=1.0``), after ``first_stage``, the
    experiment of ``of``.

    Args:
        of: the method that split the models; v_l are heads, bases or vectors. After the ``Local``
            stage of FedBABU, ``FedBABU()`` uses the server's base and
            ``Personal(local=("base.", "head."))`` the client's own, as in the released code.
            Default: ``FedPer()``.
        epochs: local epochs of the gate. Default: 50.
        batch_size: examples per mini-batch. Default: 10.
        client: optimiser of the gate. Default: SGD with rate 0.1.
        gate: network of G_j. Default: ``GateNet()``.
        top: number k of experts that are used for each example; 0 uses all. Default: 0.
        renormalised: whether the weights of these k are divided by their sum.
            Default: False.
        denoise: gamma, at least 0 and below 1. For each client floor(gamma M) experts are left
            out: those with the least confidence H, the negative of their free energy, averaged
            over the client's training examples, but never its own. Default: 0.
        temperature: T of the energy, above 0. Default: 1.0.
        own_expert_bias: added to the gate's initial bias for the client's own expert, so that the
            mixture starts near the client's own prediction; an extension. Default: 0.
        server, steps: as in ``FedAvg``; there is no server step.

    Reference: Feng et al., PM-MoE: mixture of experts on private model parameters for personalized
    federated learning, WWW 2025. Deviation: experts are frozen, also after FedCP.

    >>> from fedrun import Experiment, run, tiny
    >>> first = Experiment(tiny.task, FedPer(epochs=5, client=sgd(0.2)), rounds=20, cohort=6)
    >>> gates = PMMoE(of=FedPer(), epochs=5)
    >>> result = run(Experiment(tiny.task, gates, 1, 1.0, first_stage=first), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    stored_as: ClassVar[dict[str, str]] = {"own_expert_bias": "favour"}
    of: SplitModel = FedPer()
    epochs: int = 50
    batch_size: int | None = 10
    client: Optimizer = sgd(0.1)
    gate: GateNet = GateNet()
    top: NonNegativeInt = 0
    renormalised: bool = False
    denoise: Annotated[float, "[0, 1)"] = 0.0
    temperature: PositiveFloat = 1.0
    own_expert_bias: float = 0.0

    @property
    def local(self) -> tuple[str, ...]:
        """The gate, the mask of experts that are used, and the local parameters of ``of``."""
        return (GATE, KEPT, *self.of.local)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the first stage's parameters, the pool of private parts, and fresh gates.

        Raises:
            ValueError: without a first stage that has all parameters of ``of``, or if a client
                opts out.
        """
        if fed.participants is not None:
            raise ValueError("PMMoE sends every private part to all clients: nobody can opt out")
        needed, there = self.of.init_params(fed, seed), first or State({}, {})
        stays = local_names(self.of, [*needed, *there.server_params])
        sides = {n: there.client_params if n in stays else there.server_params for n in needed}
        if lacking := [n for n, side in sides.items() if n not in side]:
            of, names = type(self.of).__name__, ", ".join(lacking)
            where = f"give its experiment as `first_stage` (it lacks {names})"
            raise ValueError(f"PMMoE mixes private parts of {of}: {where}")
        begun = FedAvg.init(self.of, fed, seed, there)
        mine, shared = begun.client_params, begun.server_params
        pool = {POOL + n: t.clone() for n, t in select_prefix(mine, self.of.experts).items()}
        if not pool:
            raise ValueError(f"{self.of} has no private part that others could borrow")
        experts = len(next(iter(pool.values())))
        gate = fresh_gate(self.gate, fed.net, experts, self._sees(fed.net), seed)
        mine |= broadcast_to_clients(gate, fed)
        mine[f"{GATE}head.bias"] += self.own_expert_bias * torch.eye(experts, device=fed.device)
        mine[KEPT] = torch.ones(fed.num_clients, experts, device=fed.device)
        state = State({**shared, **pool}, mine)
        if self.denoise:
            mine[KEPT] = self.clean(self.energies(fed, state))
        return state

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the gate."""
        return (self.phase(train=(GATE,)),)

    def _sees(self, net: Net) -> tuple[int, ...]:
        """Return the shape of the gate's input: an image, or features."""
        return below_base(net) if self.of.experts == "base." else (net.width,)

    def energies(self, fed: Federation, state: State) -> Tensor:
        """Return the confidence of every expert for every client, ``[clients, M]``.

        The confidence is the negative of the free energy, averaged over the client's training
        examples; NaN for a client without any.
        """
        each_example = tabulate(fed, self, state, fed.train, self._energy)
        sizes = fed.train.offsets[1]
        total = each_example.new_zeros(fed.num_clients, each_example.shape[-1])
        for clients in group_by_size(fed.train.sizes, lambda width: fed.num_clients):
            total[clients] = fed.train.padded(clients, column=each_example)[0].sum(1)
        return total / torch.where(sizes > 0, sizes, torch.nan).unsqueeze(1)

    def _energy(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the confidences of the experts for each example, ``[B, M]``."""
        outputs = normalize(self._outputs(net, params, ctx, code), dim=-1)
        own = one_hot(ctx[PLACE], outputs.shape[-2]).to(outputs.dtype)
        mine = (outputs * own.unsqueeze(-1)).sum(-2, keepdim=True)
        alike = outputs * mine
        if self.temperature > 1:  # the differences between experts are then small next to T log D
            alike = alike.double()
        return self.temperature * (alike / self.temperature).logsumexp(-1)

    def clean(self, energies: Tensor) -> Tensor:
        """Return 1 for experts that are used and 0 for the floor(gamma M) that are left out.

        Args:
            energies: ``[clients, M]`` with M = clients; a client's own expert has its index.

        Returns:
            The mask, ``[clients, M]``.

        >>> PMMoE(denoise=0.4).clean(torch.tensor([[0.9, 0.1, 0.5]]).expand(3, 3))  # leave out one
        tensor([[1., 0., 1.],
                [1., 1., 0.],
                [1., 0., 1.]])
        """
        experts = energies.shape[-1]
        own = torch.eye(experts, device=energies.device).bool()
        ranks = torch.where(own, torch.inf, energies.nan_to_num(0.0)).argsort(-1).argsort(-1)
        gone = min(whole_part(self.denoise * experts), experts - 1)
        return (ranks >= gone).float()

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the constants of ``of``, and the index of each client's own expert."""
        return {**self.of.client_constants(fed, state, clients), PLACE: clients}

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return the experts' logits, and the gate's input unless it is the image itself."""
        parts = self._consulted(net, frozen, ctx, self.shared_forward(net, frozen, batch.x))
        if parts[ENTRY].ndim > 2:
            return Precomputed({n: parts[n] for n in (REST, LOGITS)}, {})
        return Precomputed({}, parts)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of the mixture on one client's mini-batch."""
        found = batch.precomputed
        if not found:
            found = self._consulted(net, params, ctx, self.shared_forward(net, params, batch.x))
        logits, _ = self._mixed(net, params, {ENTRY: batch.x, **found})
        return mean_cross_entropy(logits, batch.y, batch.weight)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the result of ``of``, and the features of all bases if these are the experts."""
        code = self.of.shared_forward(net, shared, x)
        if self.of.experts != "base.":
            return code
        bases = add_prefix(select_prefix(shared, POOL), "base.")
        return code | map_experts(lambda w, x: {"out": net.features(w, x)}, bases, x)

    def _outputs(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the outputs of all private parts, ``[B, M, ...]``."""
        if "out" in code:
            return code["out"]
        entry = self.of.opened(net, params, ctx, code).entry
        pool = add_prefix(select_prefix(params, POOL), self.of.experts)
        lent = map_experts(lambda w: {"out": self.of.private(net, {**params, **w}, entry)}, pool)
        return lent["out"]

    def _consulted(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return rest ``[B, C]``, the experts' logits ``[B, M, C]`` and the gate's input."""
        entry, rest = self.of.opened(net, params, ctx, code)
        outputs = self.of.joined(net, params, self._outputs(net, params, ctx, code))
        if not entry.is_floating_point():
            entry = self.of.private(net, params, entry)
        return {REST: rest, LOGITS: outputs, ENTRY: entry}

    def _mixed(self, net: Net, params: Params, parts: Params) -> tuple[Tensor, Tensor]:
        """Return the mixture's logits ``[B, C]`` and the experts' weights ``[B, M]``."""
        own = select_prefix(params, GATE)
        experts = own["head.bias"].shape[-1]
        a = net.like(self.gate, experts, self._sees(net))(own, parts[ENTRY])
        a = torch.where(params[KEPT] > 0, a, -torch.inf).softmax(-1)
        if 0 < self.top < experts:
            least = a.topk(self.top, -1).values[..., -1:]
            a = torch.where(a >= least, a, 0)
            a = a / a.sum(-1, keepdim=True) if self.renormalised else a
        return parts[REST] + (a.unsqueeze(-1) * parts[LOGITS]).sum(-2), a

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the mixture's prediction and the gate, ``[B, M]``."""
        logits, gate = self._mixed(net, params, self._consulted(net, params, ctx, code))
        return Prediction(logits.log_softmax(-1), gate)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's log-probabilities in place of logits."""
        return {"logits": self.predict(net, params, ctx, code).logp}

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of one private part up, and of all private parts and the model down.

        As in the paper's algorithm 1, lines 1 and 2, the shared parameters of ``of`` are sent once
        more.
        """
        mine = {n: t[0] for n, t in select_prefix(state.server_params, POOL).items()}
        return equal_bytes(clients, state.server_params, mine)

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return the experts' accuracies and energies, and the gates' weights, for each client.

        "expert_accuracy" and "gate_share" on the client's test examples, "expert_energy" and
        "kept_experts" are ``[clients, M]``. "gate_entropy" (nats) and "error_spread" (see
        ``error_spread``) are ``[clients, 1]``.
        """
        tests = on_tests(fed, self, state, self._asked)
        return {
            **expert_diagnostics(tests),
            **({"error_spread": error_spread(tests)} if tests else {}),
            "expert_energy": self.energies(fed, state)[fed.by_id],
            "kept_experts": state.client_params[KEPT][fed.by_id],
        }

    def _asked(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the label predicted by each single expert, then the gate, ``[B, 2 M]``."""
        parts = self._consulted(net, params, ctx, code)
        labels = (parts[REST].unsqueeze(-2) + parts[LOGITS]).argmax(-1)
        _, gate = self._mixed(net, params, parts)
        return torch.cat([labels.to(gate.dtype), gate], -1)


@value
class FedSynMoE(FedAvg):
    """A global and a local base with one head, mixed by a gate that is trained with them.

        logits = head( g(x) f_g(x) + (1 - g(x)) f_l(x) )

    The global base f_g and the head are shared; the local base f_l and the gate g are private. The
    input of the gate is the image, or the local features of a text. A new client uses the global
    base and the head.

    Args:
        gate: network of g. Default: ``GateNet()``.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Feng et al., PM-MoE, 2025, Table 4. Deviation: this is the method as described. The
    released code initialises gates anew in every round and predicts with the global base alone.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedSynMoE(), rounds=2, cohort=6))
    >>> last.state.client_params["own.base.1.weight"].shape  # of six clients' local bases
    torch.Size([6, 8, 256])
    """

    local = (OWN, GATE)
    gate: GateNet = GateNet()

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the shared model, a local copy of its base, and a gate."""
        model = FedAvg.init_params(self, fed, seed)
        own = add_prefix(select_prefix(model, "base."), f"{OWN}base.")
        gate = fresh_gate(self.gate, fed.net, 2, below_base(fed.net), seed)
        return {**model, **own, **to_device(gate, fed)}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of the mixture on one mini-batch."""
        code = {"x": batch.x, "h": net.features(params, batch.x, batch)}
        outputs, _ = self._mixed(net, params, code, batch)
        return mean_cross_entropy(outputs, batch.y, batch.weight)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase, in which both bases have dropout masks of their own."""
        return (self.phase(random_inputs=(("own", DROPOUT),)),)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the examples, and their features in the global base."""
        return {"x": x, "h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the mixture's prediction and gate ``[B, 2]``, the global base first."""
        outputs, gate = self._mixed(net, params, code)
        return Prediction(outputs.log_softmax(-1), gate)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the logits of the global base."""
        return {"logits": net.logits(params, code["h"])}

    def _mixed(
        self, net: Net, params: Params, code: Params, batch: Batch | None = None
    ) -> tuple[Tensor, Tensor]:
        x, theirs = code["x"], code["h"]
        if batch is not None and batch.noise is not None:  # the rest is the global base's noise
            batch = replace(batch, noise=batch.noise[..., : net.noise])
        mine = net.features(select_prefix(params, OWN), x, batch)
        seen = x if x.is_floating_point() else mine
        opening = net.like(self.gate, 2, below_base(net))
        gate = opening(select_prefix(params, GATE), seen).softmax(-1)
        both = torch.stack([theirs, mine], -2)
        return net.logits(params, (gate.unsqueeze(-1) * both).sum(-2)), gate


def below_base(net: Net) -> tuple[int, ...]:
    """Return the input shape of a gate over bases: an example's, or that of a text's features."""
    return (net.width,) if net.reads_tokens else net.shape


def fresh_gate(gate: GateNet, net: Net, experts: int, sees: tuple[int, ...], seed: int) -> Params:
    """Return the parameters of a freshly initialised gate.

    Args:
        gate: the gate's network.
        net: the task's model.
        experts: number of the gate's outputs.
        sees: shape of its input, without the batch axis.
        seed: the experiment's seed.
    """
    draw = torch_seed(seed, "model", 1)
    return add_prefix(gate.init_weights(net.like(gate, experts, sees).init(draw), draw), GATE)


def error_spread(tests: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return how dependent the errors of a client's experts are, ``[clients, 1]``.

    It is the variance of the number of experts that are right, divided by its value for
    independent errors: 1 for independent errors, as Theorem 3.1 of Feng et al. (2025) assumes, and
    M for M experts that always agree.
    """
    variance = torch.stack([right.sum(1).var(correction=0) for right, _ in tests])
    rates = torch.stack([right.mean(0) for right, _ in tests])
    alone = (rates * (1 - rates)).sum(1)
    spread = torch.where(alone > 0, variance / torch.where(alone > 0, alone, 1), 1.0)
    return spread.unsqueeze(1)
