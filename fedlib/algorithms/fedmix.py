"""FedMix: a federated mixture of experts, with its pruned and its clustered variant.

It is not the mixup method of the same name.
"""

# Algorithm 1 of the paper, with its function for clients inlined. The methods of ``FedMix`` have
# this order and name these lines; lines 2 to 4 are the engine's, and FedAvg's ``aggregate`` takes
# the sums of lines 12 and 13 and the step of line 15.
#
#    1  initialise phi and W = [w_1, ..., w_K]
#    2  for t in 1, ..., T:
#    3      S' <- random subset of the clients
#    4      for s in S':
#    5          get local parameters theta_s
#    6          for e in 1, ..., E, for batch b in D_s:
#    7              L_s <- E_q(z|y_b)[ log p_w_z(y_b|x_b, z) p_theta_s(z|x_b, s) ]
#    8              phi_s, W_s, theta_s += alpha grad L_s
#    9          q(z|s) <- E_y~D_s[ q(z|y) ]
#   10          send W_s, phi_s, q(z|s)
#   11      p(s|z) <- q(z|s) p(s) / sum_s' q(z|s') p(s')
#   12      Delta_w_k <- sum_s p(s|z=k) (w_k - w_s,k) for all k
#   13      Delta_phi <- sum_s N_s / N_S' (phi - phi_s)
#   14      Delta_phi -= grad_phi H( sum_c q(z|y=c) p(y=c) )
#   15      W, phi <- Adam(Delta, beta)

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *

EXPERTS = "experts."
BIAS = "head.bias"
MEMORY = "clients/p_z"  # in the server's memory: every client's p(z|s), [population, K]


@value
class FedMix(FedAvg):
    """K global experts w_z, a local gate theta_s per client and a global posterior q(z|y).

        p(y|x, s)     = sum_z p_theta_s(z|x, s) p_w_z(y|x)
        L_s           = mean_i E_q(z|y_i)[ log p_w_z(y_i|x_i) + log p_theta_s(z|x_i, s) ]   (eq. 6)
        q(z|y)        = softmax phi_y,     q(z|s) = sum_y p(y|s) q(z|y)
        p(z|x, s)     = softmax( A_s^T sum_k q(z=k|s) h_k(x) + b_s )                        (eq. 9)
        w_s, phi_s, theta_s <- ... + alpha grad L_s       at client s, i in a mini-batch, no H(q)
        p(s|z)        = q(z|s) p(s) / sum_s' q(z|s') p(s')                                  (eq. 8)
        Delta w_z     = sum_s p(s|z) (w_z - w_s,z)
        Delta phi     = sum_s p(s) (phi - phi_s) - lambda_H grad H(sum_y q(z|y) p(y))
        w_z, phi     <- a step of ``server`` along Delta               at the server (algorithm 1)

    The parameters are ``experts.*`` ``[K, ...]``, ``phi`` ``[values, K]``, ``gate.A`` ``[D, K]``,
    ``gate.b`` ``[K]`` and, with ``personal_bias``, ``bias`` ``[classes]``. A client computes q(z|s)
    from its label counts, which it does not send; it sends the K numbers q(z|s) after training, as
    ``q_s``. docs/READINGS.md lists what the paper leaves open.

    Args:
        experts: number of experts K. Default: 4.
        condition: what q conditions on: "label" for q(z|y), or the name of side information.
            Default: "label".
        objective: "map" (eq. 6 without H(q), as in the paper), "entropy" (eq. 6 with H(q(z|y)),
            Fig. 3) or "likelihood" (eq. 3, the original mixture of experts without q).
            Default: "map".
        gates: "local" gates never leave their client; "averaged" gates are aggregated as phi is
            (FEMNIST). Default: "local".
        marginal_entropy: weight lambda_H of the server's grad H(E_p(y)[q(z|y)]), at least 0.
            Default: 1.0.
        phi_scale: phi is initialised from N(0, phi_scale^2); 0 is the uniform q. Default: 0.
        personal_bias: whether each client has one output bias for all experts, in place of the
            experts' own. Default: False.
        server: the server's optimiser; a rate of its own for phi is ``rates=(("phi", 0.03),)``.
            Default: Adam with rate 0.001, the paper's for 2,000 rounds. Fewer than some hundreds of
            rounds need larger steps, such as ``sgd(1.0)``, which averages the experts.
        epochs, batch_size, client, steps: as in ``FedAvg``.

    Reference: Reisser, Louizos, Gavves and Welling, Federated mixture of experts, 2021.
    Deviation: none is known; what the paper leaves open is read as docs/READINGS.md says.

    >>> from fedrun import Experiment, run, tiny
    >>> short = FedMix(experts=2, epochs=5, client=sgd(0.2), server=sgd(1.0))  # for 20 rounds
    >>> result = run(Experiment(tiny.task, short, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    _optional = (*FedAvg._optional, "bias", "phi")  # without a personal bias; ClusteredFedMix
    server: Optimizer = adam(1e-3)  # line 15
    experts: Annotated[int, "[1, 1024]"] = 4
    condition: str = "label"
    objective: Annotated[str, ("map", "entropy", "likelihood")] = "map"
    gates: Annotated[str, ("local", "averaged")] = "local"
    marginal_entropy: NonNegativeFloat = 1.0
    phi_scale: NonNegativeFloat = 0.0
    personal_bias: bool = False

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return K differently initialised experts, phi, and a gate that starts uniform."""
        # line 1
        k, values = self.experts, fed.values(self.condition)
        experts = stack([fed.net.init(torch_seed(seed, "model", i)) for i in range(k)])
        personal = {"bias": 0 * experts.pop(BIAS)[0]} if self.personal_bias else {}
        noise = torch.Generator().manual_seed(torch_seed(seed, "model", k))
        phi = self.phi_scale * torch.randn(values, k, generator=noise)
        gate = {"gate.A": torch.zeros(fed.net.width, k), "gate.b": torch.zeros(k)}
        return to_device({**add_prefix(experts, EXPERTS), "phi": phi, **gate, **personal}, fed)

    @property
    def local(self) -> tuple[str, ...]:
        """The personal bias and, unless gates are averaged, the gate theta_s."""
        # line 5
        return ("bias", "gate.") if self.gates == "local" else ("bias",)

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return each client's label distribution p(y|s), ``[clients, values]``."""
        return {"p_y": fed.shares(self.condition)[clients]}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all parameters, but without phi for the original mixture."""
        # lines 6 and 8
        moving = (EXPERTS, "gate.", "bias") if self.objective == "likelihood" else ("",)
        return (self.phase(train=moving, random_inputs=dropping(self.experts)),)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return every expert's h_k(x) ``[B, K, D]`` and log p_{w_k}(y|x) ``[B, K, classes]``.

        A personal bias is added later, by ``log_probs``.
        """
        return map_experts(partial(self._expert_output, net), select_prefix(shared, EXPERTS), x)

    def _expert_output(self, net: Net, w: Params, x: Tensor, batch: Batch | None = None) -> Params:
        """Return one expert's features and log-probabilities."""
        none = {BIAS: x.new_zeros(net.classes)} if self.personal_bias else {}
        h = net.features(w, x, batch)
        return {"h": h, "logp": net.logits({**w, **none}, h).log_softmax(-1)}

    def log_probs(self, params: Params, logp: Tensor) -> Tensor:
        """Return the experts' log-probabilities, with the client's bias if it is personal."""
        return (logp + params["bias"]).log_softmax(-1) if self.personal_bias else logp

    def label_marginal(self, params: Params, ctx: Params) -> Tensor:
        """Return q(z|s) of a client, ``[K]``."""
        return q_of_client(params["phi"], ctx["p_y"])

    def pool_weights(self, params: Params, ctx: Params) -> Tensor:
        """Return the weights of the experts' features in the gate's input, ``[K]`` (eq. 9)."""
        return self.label_marginal(params, ctx)

    def gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return log p_theta_s(z|x, s) ``[B, K]`` from the experts' features (eq. 9).

        The gradient reaches the experts through h_k(x), but not phi through q(z|s).
        """
        pooled = torch.einsum("k,bkd->bd", self.pool_weights(params, ctx).detach(), h)
        return (pooled @ params["gate.A"] + params["gate.b"]).log_softmax(-1)

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return the experts' outputs in place of the examples, if the experts are frozen."""
        if not any(name.startswith(EXPERTS) for name in frozen):
            return NOTHING
        return Precomputed({}, self.shared_forward(net, frozen, batch.x))

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the negative bound of eq. 6, or of eq. 3, on one client's mini-batch."""
        code = batch.precomputed
        if "logp" not in code:
            code = in_training(partial(self._expert_output, net), net, params, batch)
        # line 7
        log_p = at_label(self.log_probs(params, code["logp"]), batch.y)  # log p(y|x, z)
        gate = self.gate(params, ctx, code["h"])
        if self.objective == "likelihood":
            return -mean((log_p + gate).logsumexp(-1), batch.weight)
        return -mean(self.elbo(params, ctx, batch, log_p, gate), batch.weight)

    def logits(self, params: Params, batch: Batch) -> Tensor:
        """Return the logits of q(z|y), or of q given side information, ``[B, K]``."""
        return params["phi"][batch.y if self.condition == "label" else batch.side[self.condition]]

    def elbo(
        self, params: Params, ctx: Params, batch: Batch, log_p: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_q(z|y)[log p(y|x, z) p(z|x, s)] ``[B]``, plus H(q) for "entropy"."""
        # line 7
        q = self.logits(params, batch).softmax(-1)
        bound = (q * (log_p + gate)).sum(-1)
        return bound + entropy(q) if self.objective == "entropy" else bound

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after of shared parameters, and q(z|s) under the client's phi."""
        # lines 9 and 10
        own, deltas = FedAvg.client_update(self, net, before, after, ctx)
        q = {} if self.objective == "likelihood" else {"q_s": self.label_marginal(after, ctx)}
        return own, {**deltas, **q}

    def client_weight(self, p: Tensor, messages: Params) -> Params:
        """Return p(s) q(z|s) ``[clients, K]`` for the experts, p(s) for phi and gates.

        Divided by its sum over the cohort, the former is p(s|z) (eq. 8); an expert that no client
        uses gets weight 0 from every client. Where clients do not send q(z|s), it is 1 / K.
        """
        # line 11, and the weights of lines 12 and 13
        uniform = p.new_full((len(p), self.experts), 1 / self.experts)
        mine = p.unsqueeze(1) * messages.get("q_s", uniform).to(p)
        return {n: mine if n.startswith(EXPERTS) else p for n in messages if n != "q_s"}

    def server_update(
        self, fed: Federation, state: State, gradients: Params, frozen_rows: Params | None = None
    ) -> State:
        """Return the state after a step along the pseudo-gradients less the regulariser's.

        lambda_H grad_phi H(sum_c q(z|c) p(c)) prevents experts from being pruned early in training.
        """
        # line 14
        if "phi" in gradients and self.marginal_entropy:
            pull = marginal_entropy_gradient(state.server_params["phi"], self._prior(fed))
            gradients = {**gradients, "phi": gradients["phi"] - self.marginal_entropy * pull}
        return FedAvg.server_update(self, fed, state, gradients, frozen_rows)

    @property
    def shares_asked(self) -> tuple[str, ...]:
        """The condition, whose distribution p(y) the marginal entropy needs."""
        return (self.condition,) if self.marginal_entropy else ()

    def _prior(self, fed: Federation) -> Tensor:
        """Return p(y) over the examples of all participating clients, ``[values]``."""
        clients = fed.member_rows
        p = weighted_sum(fed.sizes[clients], fed.shares(self.condition)[clients])
        return p / p.sum().clamp(min=1)

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return log sum_z p(y|x, z) p(z|x, s), the paper's first case of testing, and the gate."""
        gate = self.predict_gate(params, ctx, code["h"])
        logp = self.log_probs(params, code["logp"])
        return Prediction((logp + gate.unsqueeze(-1)).logsumexp(-2), gate.exp())

    def predict_gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return the gate of predictions, log p(z|x, s) over the experts that ``h`` belongs to."""
        return self.gate(params, ctx, h)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's p(z|x, s), and its bias if it has a personal one."""
        gate = self.predict_gate(params, ctx, code["h"]).exp()
        own = {"bias": params["bias"].expand(gate.shape[0], -1)} if self.personal_bias else {}
        return {"gate": gate, **own}

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return log sum_z p(y|x, z) p(z|x) with the marginalised gate (App. F)."""
        logp = self.log_probs({n: t.unsqueeze(-2) for n, t in outputs.items()}, code["logp"])
        return (logp + outputs["gate"].log().unsqueeze(-1)).logsumexp(-2)

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return q(z|y) ``[values, K]``, its mean entropy and its marginal's entropy (nats)."""
        if self.objective == "likelihood":
            return {}
        q = state.server_params["phi"].softmax(-1)
        p = self._prior(fed)
        return {"q": q, "q_entropy": p @ entropy(q), "q_marginal_entropy": entropy(p @ q)}


def dropping(experts: int) -> tuple[tuple[str, str], ...]:
    """Return a phase's random inputs, with which each expert draws a dropout mask of its own.

    The last expert uses the noise that every phase has for the model.
    """
    return tuple((f"expert:{k}", DROPOUT) for k in range(1, experts))


def in_training(output: Callable[..., Params], net: Net, params: Params, batch: Batch) -> Params:
    """Return ``output(w, x, batch)`` of every expert w in training mode, ``[B, K, ...]``.

    Each expert has its own dropout noise and updates its own running statistics.
    """
    experts = select_prefix(params, EXPERTS)
    if not (net.noise or net.remembers):
        return map_experts(output, experts, batch.x)
    count = len(next(iter(experts.values())))
    record = batch.statistics or Statistics({})
    moving = {n: name for n, t in experts.items() if (name := record.name(t))}
    outputs, moved = [], []
    for k in range(count):
        w = {n: t[k] for n, t in experts.items()}
        mine = Statistics({name: w[n] for n, name in moving.items()})
        own = replace(batch, statistics=mine)
        if batch.noise is not None:
            own.noise = batch.noise[..., k * net.noise : (k + 1) * net.noise]
        outputs.append(output(w, batch.x, own))
        moved.append(mine.after)
    record.used = True
    record.after |= stack(moved) if moving else {}
    return stack(outputs, 1)


def q_of_client(phi: Tensor, p_y: Tensor) -> Tensor:
    """Return q(z|s) = sum_y p(y|s) q_phi(z|y), ``[K]``, from phi ``[values, K]`` and p(y|s).

    It is uniform for a client without examples, whose p(y|s) is 0.
    """
    # line 9. Rounding leaves the sum slightly off 1, so divide by it: with K = 1, q is exactly 1.
    q = p_y @ phi.softmax(-1)
    total = q.sum(-1, keepdim=True)
    some = total > 0
    return torch.where(some, q, 1 / q.shape[-1]) / torch.where(some, total, 1)


def marginal_entropy_gradient(phi: Tensor, p: Tensor) -> Tensor:
    """Return the gradient in phi ``[values, K]`` of H(m), m_k = sum_c p(c) softmax(phi)[c, k].

    dH / dphi[c, k] = p(c) q(k|c) ( -log m_k + sum_j q(j|c) log m_j ).
    """
    q = phi.softmax(-1)
    log_m = (p @ q).clamp(min=torch.finfo(q.dtype).tiny).log()
    return p.unsqueeze(1) * q * ((q @ log_m).unsqueeze(1) - log_m)


@value
class PrunedFedMix(FedMix):
    """FedMix in which a client neither downloads nor trains the experts that it does not use.

        q'(z|.) = q(z|.) where q(z|s) >= eta / K, else 0, divided by its sum      batch by batch
        L_s     = sum_i E_q'(z|y_i)[log p_w_z(y_i|x_i)] + E_q(z|y_i)[log p_theta_s(z|x_i, s)]
        downloaded by s:  experts with p(z|s) >= 0.9 eta / K, p(z|s) as remembered by the server
        uploaded by s:    experts with q'(z|s) > 0, weighted by p(s|z) from q'(z|s)

    Predictions use the experts that the client would download, and the gate restricted to them.
    The parameters ``experts.*`` of a client are ``[m, ...]`` for the m <= K experts that it
    downloads. Clients with the same m share a program, so pruned experts take no time.

    Args:
        objective: "map", the only choice.
        eta: pruning threshold eta, a number from 0 to 1; 0 is FedMix. Default: 0.5.
        other arguments: as in ``FedMix``.

    Reference: Reisser et al., Federated mixture of experts, 2021, App. I and algorithm 2.
    Deviation: the server remembers q(z|s), and not q'(z|s) as in the listing: q'(z|s) never lies
    between the two thresholds, so an expert could never return.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, PrunedFedMix(eta=0.5), rounds=2, cohort=6))
    >>> last.state.server_memory["clients/p_z"].shape  # p(z|s) of six clients
    torch.Size([6, 4])
    """

    objective: Annotated[str, ("map",)] = "map"
    eta: Share = 0.5

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which the server's p(z|s) is 1 / K."""
        uniform = torch.full((fed.num_clients, self.experts), 1 / self.experts, device=fed.device)
        return replace(FedMix.init(self, fed, seed, first), server_memory={MEMORY: uniform})

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return p(y|s), which experts are downloaded (1 or 0), and an order with those first."""
        sent = self._sent(state, clients).to(torch.int64)
        order = torch.argsort(sent, dim=1, descending=True, stable=True)
        known = FedMix.client_constants(self, fed, state, clients)
        return {**known, "sent": sent, "order": order, SHAPES: sent.sum(1)}

    def download(self, state: State, row: int) -> State:
        """Return the shared parameters and the server's p(z|s) of this client."""
        mine = {MEMORY: state.server_memory[MEMORY][[row]]}
        return State(state.server_params, {}, server_memory=mine)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the experts that the clients download, and all other parameters."""
        ctx = self.client_constants(fed, state, clients)
        mine = ctx["order"][:, : int(ctx[SHAPES][0])]
        experts = {n: t[mine] for n, t in state.server_params.items() if n.startswith(EXPERTS)}
        rest = State(drop_prefix(state.server_params, EXPERTS), state.client_params)
        return {**experts, **FedAvg.client_params(self, fed, rest, clients)}

    def kept(self, q: Tensor, ctx: Params) -> Tensor:
        """Return which experts a client with q(z|s) does not prune, bool ``[K]``.

        They are a subset of the downloaded ones: all of these if q(z|s) is below the threshold
        for every one of them.
        """
        sent = ctx["sent"] > 0
        keep = sent & (q >= self.eta / self.experts)
        return torch.where(keep.any(), keep, sent)

    def pool_weights(self, params: Params, ctx: Params) -> Tensor:
        """Return q'(z|s) ``[K]``, as only experts that are not pruned have features."""
        q = self.label_marginal(params, ctx)
        return renormalised(q, self.kept(q, ctx))

    def gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return log p_theta_s(z|x, s) over all K experts from the features of the downloaded."""
        if h.shape[-2] < self.experts:
            every = h.new_zeros(h.shape[0], self.experts, h.shape[-1])
            h = every.index_add(1, ctx["order"][: h.shape[-2]], h)
        return FedMix.gate(self, params, ctx, h)

    def elbo(
        self, params: Params, ctx: Params, batch: Batch, log_p: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_q'(z|y)[log p(y|x, z)] + E_q(z|y)[log p(z|x, s)] ``[B]`` (algorithm 2)."""
        keep = self.kept(self.label_marginal(params, ctx).detach(), ctx)
        logits = self.logits(params, batch)
        # A softmax over the kept experts is q(z|y) zeroed and renormalised, without a 0 / 0.
        mine = logits.masked_fill(~keep, -torch.inf).softmax(-1)
        of_gate = (logits.softmax(-1) * gate).sum(-1)  # with the unpruned q, as in the listing
        return (self._held(mine, ctx, log_p) * log_p).sum(-1) + of_gate

    def predict_gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return the gate of predictions, restricted to the experts that the client downloads."""
        gate = self.gate(params, ctx, h).masked_fill(ctx["sent"] == 0, -torch.inf).log_softmax(-1)
        return self._held(gate, ctx, h[..., 0])

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after, which is zero for experts not uploaded, q'(z|s) and q(z|s)."""
        own, deltas = FedAvg.client_update(self, net, before, after, ctx)
        q = self.label_marginal(after, ctx)
        keep = self.kept(q, ctx)
        for name, mine in deltas.items():
            if name.startswith(EXPERTS):
                held = ctx["order"][: len(mine)]
                none = mine.new_zeros(self.experts, *mine.shape[1:])
                deltas[name] = none.index_add(0, held, mine * beside(keep[held], mine))
        return own, {**deltas, "q_s": renormalised(q, keep), "q_raw": q}

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of downloads and uploads, in which pruned experts do not count.

        Of the two forms of q(z|s) one counts as uploaded, K numbers, as the other follows from it.
        """
        expert = nbytes(select_prefix(state.server_params, EXPERTS)) // self.experts
        rest, back = nbytes(drop_prefix(state.server_params, EXPERTS)), messages["q_s"]
        up = (back > 0).sum(1) * expert + rest + self.experts * back.element_size()
        return self._sent(state, clients).sum(1) * expert + rest, up

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state after FedMix's step, which also remembers q(z|s) of the cohort."""
        after = FedMix.aggregate(self, fed, state, clients, messages)
        p = state.server_memory[MEMORY].index_copy(0, clients, messages["q_raw"])
        return replace(after, server_memory={**after.server_memory, MEMORY: p})

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return FedMix's metrics, and how many experts a participating client downloads."""
        mean = self._sent(state, fed.member_rows).sum(1).to(torch.float64).mean()
        return {**FedMix.log_metrics(self, fed, state), "experts_sent": mean}

    def _sent(self, state: State, clients: Tensor) -> Tensor:
        """Return which experts the clients download, bool ``[clients, K]``.

        Where the server's memory has no p(z|s), as in a second stage, it is taken to be 1 / K.
        """
        uniform = torch.full((len(clients), self.experts), 1 / self.experts, device=clients.device)
        p = state.server_memory[MEMORY][clients] if MEMORY in state.server_memory else uniform
        return p >= 0.9 * self.eta / self.experts

    def _held(self, values: Tensor, ctx: Params, like: Tensor) -> Tensor:
        """Return the columns ``[B, m]`` of values ``[B, K]`` for the m downloaded experts."""
        held = like.shape[-1]
        return values if held == self.experts else values[:, ctx["order"][:held]]


def renormalised(q: Tensor, keep: Tensor) -> Tensor:
    """Return q ``[K]`` with zeros where ``keep`` is False, divided by its sum.

    >>> q = torch.tensor([0.5, 0.3, 0.2])
    >>> renormalised(q, q >= 0.75 / 3)  # eta = 0.75, K = 3
    tensor([0.6250, 0.3750, 0.0000])
    """
    q = torch.where(keep, q, 0)
    return q / q.sum(-1, keepdim=True)


@value
class ClusteredFedMix(FedMix):
    """FedMix with q(z|s) = pi_s, a distribution per client that is found in closed form.

        L_s  = mean_i E_pi_s[ log p(y_i, z|x_i, s) ] + beta H(pi_s)                     (eq. 10)
        pi*  = softmax_k( mean_i log p(y_i, z=k|x_i, s) / beta )        of a mini-batch (eq. 13)
        pi_s <- d pi_s + (1 - d) pi*                                      d = ``damping``

    The last line is a plain SGD step at rate 1 - d on half the squared distance between the two.
    So pi_s is a parameter like others, ``pi`` ``[K]``, which is local. There is no phi.

    Args:
        objective: "map", the only choice.
        damping: damping d of pi_s, at least 0 and below 1. Default: 0.75.
        entropy_weight: weight beta of the entropy H(pi_s), above 0. Default: 1.0.
        other arguments: as in ``FedMix``; ``client`` must be plain SGD.

    Reference: Reisser et al., Federated mixture of experts, 2021, App. B. Deviation: eq. 12 has
    the batch's mean in both terms, and a batch's loss uses the damped pi.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, ClusteredFedMix(experts=2), rounds=2, cohort=6))
    >>> last.state.client_params["pi"].shape  # pi_s of six clients
    torch.Size([6, 2])
    """

    _needs_plain_sgd = True
    objective: Annotated[str, ("map",)] = "map"
    damping: Annotated[float, "[0, 1)"] = 0.75
    entropy_weight: PositiveFloat = 1.0

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return FedMix's parameters with a uniform pi in place of phi."""
        params = FedMix.init_params(self, fed, seed)
        del params["phi"]
        return {**params, "pi": torch.full((self.experts,), 1 / self.experts, device=fed.device)}

    @property
    def local(self) -> tuple[str, ...]:
        """The local parameters of FedMix, and pi_s."""
        return ("pi", *super().local)

    client_constants = FedAvg.client_constants  # none, as no label counts are needed

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase, in which the learning rate of pi is 1 - damping."""
        rates = (("pi", 1 - self.damping),)
        noise = dropping(self.experts)
        return (self.phase(optimizer=replace(self.client, rates=rates), random_inputs=noise),)

    def label_marginal(self, params: Params, ctx: Params) -> Tensor:
        """Return pi = q(z|s), ``[K]``, divided by its sum, which rounding leaves slightly off 1."""
        return params["pi"] / params["pi"].sum()

    def elbo(
        self, params: Params, ctx: Params, batch: Batch, log_p: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_pi[log p(y, z|x, s)] ``[B]`` with the pi updated on this batch (eq. 10)."""
        joint = log_p + gate
        best = posterior(mean_of(joint, batch.weight).detach(), self.entropy_weight)
        pi = self.damping * params["pi"].detach() + (1 - self.damping) * best
        off = 0.5 * (params["pi"] - best).square().sum()
        # This term has a gradient but the value 0, so that the reported loss is the bound.
        return (joint * pi).sum(-1) - (off - off.detach())

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return q(z|s) of every client, ``[clients, K]``, in the order of client ids."""
        return {"clusters": state.client_params["pi"][fed.by_id]}


def posterior(average: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Return the pi that maximises sum_k pi_k average_k + entropy_weight H(pi) (eq. 11), ``[K]``.

    Args:
        average: the mean of log p(y_i, z=k|x_i) over a client's examples, ``[K]``.
        entropy_weight: weight of the entropy, above 0. Default: 1.0.

    >>> posterior(torch.tensor([-1.0, -2.0]), 1.0)  # mean log p(y, z|x) of two experts
    tensor([0.7311, 0.2689])
    """
    return (average / entropy_weight).softmax(-1)
