"""PM-MoE: a gate per client over all clients' private parts, and a mixture of two bases (004)."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedlib.algorithms.arithmetic import mean_cross_entropy, one_hot
from fedlib.algorithms.fedavg import Bytes, FedAvg, equal_bytes, left, placed, rows_of
from fedlib.algorithms.local import SecondStage
from fedlib.algorithms.mixture import GATE, OWN, expert_diagnostics, on_tests
from fedlib.algorithms.splitting import FedPer, SplitModel
from fedlib.engine import Phase, Prediction, State, tabulate, uses_precomputed
from fedlib.engine.costs import company
from fedlib.engine.protocol import DROPOUT
from fedlib.federation import Federation, Precomputed
from fedlib.models import Batch, Net, Params, add_prefix, map_experts, select_prefix
from fedlib.models.families import GateNet
from fedlib.optim import Optimizer, sgd
from fedlib.partition import whole_part
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeInt, PositiveFloat, value

POOL, KEPT, PLACE = "pool.", "kept.experts", "place"
# What is precomputed: the experts' logits, the rest of the logits, and what the gate sees.
LOGITS, REST, ENTRY = "logits", "rest", "entry"


@value
class PMMoE(SecondStage):
    """A gate G_j per client j mixes the private parts v_1 ... v_M of a finished federation.

    ``of`` is the method that split models: v_l are heads, bases or vectors. They stay as they are,
    as does all else; only the ``gate`` is trained.

        a      = softmax G_j(x),  of which the ``top`` largest count (k; 0: all)
        logits = rest(x) + joined( sum_l a_l v_l(entry(x)) )                          (eq. 5 to 8)
        G_j   <- G_j - eta grad CE(logits)                                            (eq. 13)
        H_l    = T log sum_d exp(o_ld o_jd / (|o_l| |o_j| T))  for outputs o_l = v_l  (eq. 10 to 12)

    The gate sees what the private part is given: features below a head or a vector, the raw image
    below a base, for text the client's own features (A33). Weights are divided by their sum if they
    are to be ``renormalised`` (A32). ``denoise`` is gamma: floor(gamma M) experts are left out, for
    each client those of the least confidence H (the negative of their free energy) averaged over
    its training examples, never its own (A31). ``temperature`` is T. ``own_expert_bias`` adds to
    the initial bias of the own expert, so that the mixture begins near the client's own prediction:
    an extension (A42). After FedBABU's ``Local`` stage ``of`` says which base is used:
    ``FedBABU()`` the server's, ``Personal(local=("base.", "head."))`` the client's own, as released
    (A43). Play one round with every client (cohort 1.0).

    Reference: Feng et al., PM-MoE: mixture of experts on private model parameters for personalized
    federated learning, WWW 2025 (004). Deviation: experts stay as they are, also after FedCP (A41).

    >>> PMMoE(denoise=0.4).clean(torch.tensor([[0.9, 0.1, 0.5]]).expand(3, 3))  # one leaves
    tensor([[1., 0., 1.],
            [1., 1., 0.],
            [1., 0., 1.]])
    """

    trains = (GATE,)
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

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is a client's: its gate, and what ``of`` keeps there."""
        return name.startswith((GATE, KEPT)) or self.of.is_local(name)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the federation's leaves, the pool of private parts, and fresh gates.

        ValueError without a first stage that has all leaves of ``of``, and where somebody opts out.
        """
        if fed.members is not None:
            raise ValueError("PMMoE hands every private part to everybody: nobody can opt out")
        needed, there = self.of.leaves(fed, seed), first or State({}, {})
        sides = {n: there.local if self.of.is_local(n) else there.shared for n in needed}
        if lacking := [n for n, side in sides.items() if n not in side]:
            of, names = type(self.of).__name__, ", ".join(lacking)
            raise ValueError(f"PMMoE mixes {of}: give its experiment as `after` (it lacks {names})")
        own = {n: fed.clients if self.of.is_local(n) else None for n in needed}
        found = {n: left(there, n, t, own[n]) for n, t in needed.items()}
        mine = {n: t.clone() for n, t in found.items() if own[n]}
        shared = {n: t for n, t in there.shared.items() if not self.of.is_local(n)}
        pool = {POOL + n: t.clone() for n, t in select_prefix(mine, self.of.experts).items()}
        if not pool:
            raise ValueError(f"{self.of} has no private part that others could borrow")
        experts = len(next(iter(pool.values())))
        mine |= rows_of(fresh_gate(self.gate, fed.net, experts, self._sees(fed.net), seed), fed)
        mine[f"{GATE}head.bias"] += self.own_expert_bias * torch.eye(experts, device=fed.device)
        mine[KEPT] = torch.ones(fed.clients, experts, device=fed.device)
        state = State({**shared, **pool}, mine)
        if self.denoise:
            mine[KEPT] = self.clean(self.energies(fed, state))
        return state

    def _sees(self, net: Net) -> tuple[int, ...]:
        """Return the shape of what the gate sees: an image, or features."""
        return below_base(net) if self.of.experts == "base." else (net.width,)

    def energies(self, fed: Federation, state: State) -> Tensor:
        """Return every expert's confidence, its negative free energy, by client, ``[clients, M]``.

        The mean over its training examples; NaN for a client without any.
        """
        each_example = tabulate(fed, self, state, fed.train, self._energy)
        sizes = fed.train.spans[1]
        total = each_example.new_zeros(fed.clients, each_example.shape[-1])
        for rows in company(fed.train.sizes, lambda width: fed.clients):
            total[rows] = fed.train.padded(rows, column=each_example)[0].sum(1)
        return total / torch.where(sizes > 0, sizes, torch.nan).unsqueeze(1)

    def _energy(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the experts' confidences, ``[B, M]``."""
        outputs = normalize(self._outputs(net, params, ctx, code), dim=-1)
        own = one_hot(ctx[PLACE], outputs.shape[-2]).to(outputs.dtype)
        mine = (outputs * own.unsqueeze(-1)).sum(-2, keepdim=True)
        alike = outputs * mine
        if self.temperature > 1:  # T log D is then large beside what tells experts apart
            alike = alike.double()
        return self.temperature * (alike / self.temperature).logsumexp(-1)

    def clean(self, energies: Tensor) -> Tensor:
        """Return 1 for experts that stay and 0 for those left out, floor(gamma M) of M.

        ``[clients, M]``, from ``energies`` of the same shape; a client's own is in its own place.
        """
        experts = energies.shape[-1]
        own = torch.eye(experts, device=energies.device).bool()
        ranks = torch.where(own, torch.inf, energies.nan_to_num(0.0)).argsort(-1).argsort(-1)
        gone = min(whole_part(self.denoise * experts), experts - 1)
        return (ranks >= gone).float()

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return what ``of`` tells its clients, and which expert is a client's own."""
        return {**self.of.client_context(fed, state, rows), PLACE: rows}

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return what experts predict for examples, and what the gate reads if not images."""
        parts = self._consulted(net, frozen, ctx, self.encode(net, frozen, batch.x))
        if parts[ENTRY].ndim > 2:
            return Precomputed({n: parts[n] for n in (REST, LOGITS)}, {})
        return Precomputed({}, parts)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of the mixture on one client's mini-batch."""
        found = batch.precomputed
        if not found:
            found = self._consulted(net, params, ctx, self.encode(net, params, batch.x))
        logits, _ = self._mixed(net, params, {ENTRY: batch.x, **found})
        return mean_cross_entropy(logits, batch.y, batch.weight)

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what ``of`` has, and where bases are lent, their features ``[B, M, D]``."""
        code = self.of.encode(net, shared, x)
        if self.of.experts != "base.":
            return code
        bases = add_prefix(select_prefix(shared, POOL), "base.")
        return code | map_experts(lambda w, x: {"out": net.features(w, x)}, bases, x)

    def _outputs(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return what every expert makes of its entry, ``[B, M, ...]``."""
        if "out" in code:
            return code["out"]
        entry = self.of.opened(net, params, ctx, code).entry
        pool = add_prefix(select_prefix(params, POOL), self.of.experts)
        lent = map_experts(lambda w: {"out": self.of.private(net, {**params, **w}, entry)}, pool)
        return lent["out"]

    def _consulted(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return rest ``[B, C]``, experts' logits ``[B, M, C]`` and what the gate sees."""
        entry, rest = self.of.opened(net, params, ctx, code)
        outputs = self.of.joined(net, params, self._outputs(net, params, ctx, code))
        if not entry.is_floating_point():
            entry = self.of.private(net, params, entry)
        return {REST: rest, LOGITS: outputs, ENTRY: entry}

    def _mixed(self, net: Net, params: Params, parts: Params) -> tuple[Tensor, Tensor]:
        """Return the mixture's logits ``[B, C]`` and the weights of the experts, ``[B, M]``."""
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

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's logits, as its prediction's logarithm."""
        return {"logits": self.predict(net, params, ctx, code).logp}

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        """Return the bytes: the private part goes up, all of them and the global model go down.

        As in 004, algorithm 1, lines 1 and 2: what ``of`` shares is sent once more.
        """
        mine = {n: t[0] for n, t in select_prefix(state.shared, POOL).items()}
        return equal_bytes(rows, state.shared, mine)

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return what experts are worth to clients, the weights of gates, and how energies tell.

        ``[clients, M]``: "expert_accuracy" and "gate_share" on the client's tests,
        "expert_energy" and "kept_experts"; ``[clients, 1]``: "gate_entropy" (nats) and
        "error_spread", the variance of how many experts are right over what it would be if they
        erred independently (Theorem 3.1 assumes 1; M experts that always agree have M).
        """
        tests = on_tests(fed, self, state, self._asked)
        return {
            **expert_diagnostics(tests),
            "error_spread": error_spread(tests),
            "expert_energy": self.energies(fed, state)[fed.by_id],
            "kept_experts": state.local[KEPT][fed.by_id],
        }

    def _asked(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the label that each expert alone would give, then the gate, ``[B, 2 M]``."""
        parts = self._consulted(net, params, ctx, code)
        labels = (parts[REST].unsqueeze(-2) + parts[LOGITS]).argmax(-1)
        _, gate = self._mixed(net, params, parts)
        return torch.cat([labels.to(gate.dtype), gate], -1)


@value
class FedSynMoE(FedAvg):
    """A global and a local base below one head, mixed by a gate that is trained with them.

        logits = head( g(x) f_g(x) + (1 - g(x)) f_l(x) )

    The global base f_g and the head are shared, the local base f_l and the ``gate`` g are private;
    the gate sees what PM-MoE's does below bases. A new client gets the global base and the head.

    Reference: Feng et al., PM-MoE (004), Table 4. Deviation: the released code makes fresh gates in
    every round and predicts with the global base only, so that what it reports is not the method
    that it describes, which is this one.
    """

    reads_examples = True
    keeps = (OWN, GATE)
    copies: ClassVar[dict[str, str]] = {OWN: ""}
    gate: GateNet = GateNet()

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the shared model, a local base like its own, and a gate."""
        model = FedAvg.leaves(self, fed, seed)
        own = add_prefix(select_prefix(model, "base."), f"{OWN}base.")
        gate = fresh_gate(self.gate, fed.net, 2, below_base(fed.net), seed)
        return {**model, **own, **placed(gate, fed)}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the cross-entropy of the mixture on one mini-batch."""
        code = {"x": batch.x, "h": net.features(params, batch.x, batch)}
        outputs, _ = self._mixed(net, params, code, batch)
        return mean_cross_entropy(outputs, batch.y, batch.weight)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase, in which both bases drop units by themselves."""
        return (self.phase(noise=(("own", DROPOUT),)),)

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the batch itself, and the features of the global base."""
        return {"x": x, "h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the mixture and the gate, ``[B, 2]``: global, local."""
        outputs, gate = self._mixed(net, params, code)
        return Prediction(outputs.log_softmax(-1), gate)

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the logits of the global base."""
        return {"logits": net.logits(params, code["h"])}

    def _mixed(
        self, net: Net, params: Params, code: Params, batch: Batch | None = None
    ) -> tuple[Tensor, Tensor]:
        x, theirs = code["x"], code["h"]
        if batch is not None and batch.noise is not None:  # the global base's are the last
            batch = replace(batch, noise=batch.noise[..., : net.noise])
        mine = net.features(select_prefix(params, OWN), x, batch)
        seen = x if x.is_floating_point() else mine
        opening = net.like(self.gate, 2, below_base(net))
        gate = opening(select_prefix(params, GATE), seen).softmax(-1)
        both = torch.stack([theirs, mine], -2)
        return net.logits(params, (gate.unsqueeze(-1) * both).sum(-2)), gate


def below_base(net: Net) -> tuple[int, ...]:
    """Return the shape of what a gate over bases sees: an example, or a text's features."""
    return (net.width,) if net.reads_tokens else net.shape


def fresh_gate(gate: GateNet, net: Net, experts: int, sees: tuple[int, ...], seed: int) -> Params:
    """Return the leaves of a fresh gate over some experts, which sees inputs of a shape."""
    draw = torch_seed(seed, "model", 1)
    return add_prefix(gate.init_weights(net.like(gate, experts, sees).init(draw), draw), GATE)


def error_spread(tests: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return how far experts err together, ``[clients, 1]``: 1 independently, M always alike.

    The variance of how many are right over what it would be if they erred independently, which
    Theorem 3.1 of 004 assumes.
    """
    spread_of = torch.stack([right.sum(1).var(correction=0) for right, _ in tests])
    rates = torch.stack([right.mean(0) for right, _ in tests])
    alone = (rates * (1 - rates)).sum(1)
    spread = torch.where(alone > 0, spread_of / torch.where(alone > 0, alone, 1), 1.0)
    return spread.unsqueeze(1)
