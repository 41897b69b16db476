"""FedMix: a federated mixture of experts. Not the mixup method of the same name."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import at_label, entropy, mean, placed, weighted_sum
from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import UNSEEN, Known, Phase, Prediction, State, Update
from fedlib.federation import Federation
from fedlib.models import Net, Params, each, named, part, stack
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import value, within

EXPERTS = "experts."
BIAS = "head.bias"


@value
class FedMix(FedAvg):
    """K global experts w_z, a gate theta_s per client, and a global q(z|y) that tells them apart.

        p(y|x, s)     = sum_z p_theta_s(z|x, s) p_w_z(y|x)
        L_s           = sum_i E_q(z|y_i)[ log p_w_z(y_i|x_i) + log p_theta_s(z|x_i, s) ]    (eq. 6)
        q(z|y)        = softmax phi_y,     q(z|s) = sum_y p(y|s) q(z|y)
        p(z|x, s)     = softmax( A_s^T sum_k q(z=k|s) h_k(x) + b_s )                        (eq. 9)
        w_s, phi_s, theta_s <- ... + alpha grad L_s                           at client s
        p(s|z)        = q(z|s) p(s) / sum_s' q(z|s') p(s')                                  (eq. 8)
        Delta w_z     = sum_s p(s|z) (w_z - w_s,z)
        Delta phi     = sum_s p(s) (phi - phi_s) - lambda_H grad H(sum_y q(z|y) p(y))
        w_z, phi     <- a step of ``server`` along Delta               at the server (algorithm 1)

    ========================= ======================================================================
    argument                  symbol or choice (A06 ...: see docs/READINGS.md)
    ========================= ======================================================================
    ``experts``               K
    ``condition``             what q conditions on: "label" is q(z|y), else a named side information
    ``objective``             "map" (eq. 6 without H(q), the paper's default), "entropy" (eq. 6 with
                              H(q(z|y)), Fig. 3) or "likelihood" (eq. 3, the original mixture of
                              experts: no q at all)
    ``gates``                 "local" (theta_s never leaves its client) or "averaged" (FEMNIST)
    ``marginal_entropy``      lambda_H, weight of the server's grad H(E_p(y)[q(z|y)]) (A06)
    ``phi_scale``             phi starts at N(0, phi_scale^2); 0 is the uniform q (A14)
    ``personal_bias``         one output bias per client, shared by all experts, instead of theirs
    ``server``                the server's optimiser; per-leaf rates: ``rates=(("phi", 0.03),)``
    ========================= ======================================================================

    Leaves: ``experts.*`` ``[K, ...]``, ``phi`` ``[values, K]``, ``gate.A`` ``[D, K]``, ``gate.b``
    ``[K]``, ``bias`` ``[classes]`` if personal. q(z|s) = sum_y p(y|s) q(z|y) needs the client's
    label counts, which stay at the client; what is sent is ``q_s``, the K numbers q(z|s) after
    training (A08).

    Reference: Reisser, Louizos, Gavves and Welling, Federated mixture of experts, 2021 (000).
    Deviation: none that is known; what the paper leaves open is read as in A05 to A09, A14, A15.

    >>> q = torch.tensor([[0.8, 0.2], [0.4, 0.6]])  # q(z|s), of 2 and 6 examples
    >>> client_given_expert(q, torch.tensor([0.25, 0.75]))
    tensor([[0.4000, 0.1000],
            [0.6000, 0.9000]])
    """

    limits = within(
        experts=">= 1",
        objective=("map", "entropy", "likelihood"),
        gates=("local", "averaged"),
        marginal_entropy=">= 0",
        phi_scale=">= 0",
    )
    server: Optimizer = adam(1e-3)
    experts: int = 4
    condition: str = "label"
    objective: str = "map"
    gates: str = "local"
    marginal_entropy: float = 1.0
    phi_scale: float = 0.0
    personal_bias: bool = False

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return K differently initialised experts, phi, and a gate that starts uniform (A14)."""
        k, values = self.experts, fed.values(self.condition)
        experts = stack([fed.net.init(torch_seed(seed, "model", i)) for i in range(k)])
        personal = {"bias": 0 * experts.pop(BIAS)[0]} if self.personal_bias else {}
        noise = torch.Generator().manual_seed(torch_seed(seed, "model", k))
        own = {
            "phi": self.phi_scale * torch.randn(values, k, generator=noise),
            "gate.A": torch.zeros(fed.net.width, k),
            "gate.b": torch.zeros(k),
            **personal,
        }
        return placed({**named(experts, EXPERTS), **own}, fed)

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is the personal bias or, unless averaged, of the gate theta_s."""
        return name == "bias" or (name.startswith("gate.") and self.gates == "local")

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return p(y|s), ``[clients, values]``, which each client knows of itself."""
        return {"p_y": fed.shares(self.condition)[rows]}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase; the original mixture has no q and leaves phi alone."""
        moving = (EXPERTS, "gate.", "bias") if self.objective == "likelihood" else ("",)
        return (self.phase(train=moving),)

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return every expert's h_k(x) ``[B, K, D]`` and log p_{w_k}(y|x) ``[B, K, classes]``.

        A personal bias is not in there yet: ``log_probs`` adds it.
        """
        none = {BIAS: x.new_zeros(net.classes)} if self.personal_bias else {}

        def expert(w: Params, x: Tensor) -> tuple[Tensor, Tensor]:
            h = net.features(w, x)
            return h, net.logits({**w, **none}, h).log_softmax(-1)

        out = each(expert, part(shared, EXPERTS), x)
        return {n: torch.stack([o[i] for o in out], 1) for i, n in enumerate(("h", "logp"))}

    def log_probs(self, params: Params, logp: Tensor) -> Tensor:
        """Return the experts' log-probabilities with the client's bias, if that is personal."""
        return (logp + params["bias"]).log_softmax(-1) if self.personal_bias else logp

    def marginal(self, params: Params, ctx: Params) -> Tensor:
        """Return q(z|s) of a client, ``[K]``."""
        return q_of_client(params["phi"], ctx["p_y"])

    def pool(self, params: Params, ctx: Params) -> Tensor:
        """Return the weights of the experts' features in the gate's input, ``[K]`` (eq. 9)."""
        return self.marginal(params, ctx)

    def gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return log p_theta_s(z|x, s) ``[B, K]`` from the experts' features (eq. 9).

        The loss trains experts through h_k(x), but not phi through q(z|s) (A08).
        """
        pooled = torch.einsum("k,bkd->bd", self.pool(params, ctx).detach(), h)
        return (pooled @ params["gate.A"] + params["gate.b"]).log_softmax(-1)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return what experts say instead of the examples, where these stand still."""
        if not any(name.startswith(EXPERTS) for name in frozen):
            return UNSEEN
        return Known({}, self.encode(net, frozen, batch["x"]))

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the negative bound of eq. 6, or of eq. 3, on one client's mini-batch."""
        code = batch if "logp" in batch else self.encode(net, params, batch["x"])
        said = at_label(self.log_probs(params, code["logp"]), batch["y"])  # log p(y|x, z)
        gate = self.gate(params, ctx, code["h"])
        if self.objective == "likelihood":
            return -mean((said + gate).logsumexp(-1), batch["weight"])
        return -mean(self.bound(params, ctx, batch, said, gate), batch["weight"])

    def logits(self, params: Params, batch: Params) -> Tensor:
        """Return the logits of q(z|y), or of q given other side information, ``[B, K]``."""
        return params["phi"][batch["y"] if self.condition == "label" else batch[self.condition]]

    def bound(
        self, params: Params, ctx: Params, batch: Params, said: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_q(z|y)[log p(y|x, z) p(z|x, s)] ``[B]``, with H(q) if that is the objective."""
        q = self.logits(params, batch).softmax(-1)
        bound = (q * (said + gate)).sum(-1)
        return bound + entropy(q) if self.objective == "entropy" else bound

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after of what is shared, and q(z|s) with the client's phi (A08)."""
        own, deltas = FedAvg.client_update(self, net, before, after, ctx)
        q = {} if self.objective == "likelihood" else {"q_s": self.marginal(after, ctx)}
        return own, {**deltas, **q}

    def weights(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> Params:
        """Return p(s|z) ``[clients, K]`` for the experts (eq. 8) and p(s) for phi and gates."""
        p = self.share(fed, rows)
        q = messages["q_s"].double() if "q_s" in messages else torch.ones(len(rows), self.experts)
        by_expert = client_given_expert(q.to(p), p)
        sent = (n for n in state.shared if n in messages)
        return {n: by_expert if n.startswith(EXPERTS) else p for n in sent}

    def regularise(self, fed: Federation, state: State, gradients: Params) -> Params:
        """Subtract lambda_H grad_phi H(sum_c q(z|c) p(c)): keeps experts from dying early."""
        if "phi" not in gradients or self.marginal_entropy == 0:
            return gradients
        pull = marginal_entropy_gradient(state.shared["phi"], self._prior(fed))
        return {**gradients, "phi": gradients["phi"] - self.marginal_entropy * pull}

    def _prior(self, fed: Federation) -> Tensor:
        """Return p(y) over the examples of all clients, ``[values]`` (A06)."""
        p = weighted_sum(fed.sizes, fed.shares(self.condition))
        return p / p.sum()

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return log sum_z p(y|x, z) p(z|x, s) (algorithm 1, first way to test) and the gate."""
        gate = self.open(params, ctx, code["h"])
        logp = self.log_probs(params, code["logp"])
        return Prediction((logp + gate.unsqueeze(-1)).logsumexp(-2), gate.exp())

    def open(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return the gate of predictions, log p(z|x, s) over the experts that features are of."""
        return self.gate(params, ctx, h)

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's p(z|x, s), and its bias if it has a personal one."""
        gate = self.open(params, ctx, code["h"]).exp()
        own = {"bias": params["bias"].expand(len(gate), -1)} if self.personal_bias else {}
        return {"gate": gate, **own}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return log sum_z p(y|x, z) p(z|x) with the marginalised gate (App. F)."""
        logp = code["logp"]
        if self.personal_bias:
            logp = (logp + votes["bias"].unsqueeze(-2)).log_softmax(-1)
        return (logp + votes["gate"].log().unsqueeze(-1)).logsumexp(-2)

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return q(z|y) ``[values, K]``, its mean entropy and its marginal's entropy (nats)."""
        if self.objective == "likelihood":
            return {}
        q = state.shared["phi"].softmax(-1)
        p = self._prior(fed)
        return {"q": q, "q_entropy": p @ entropy(q), "q_marginal_entropy": entropy(p @ q)}


def q_of_client(phi: Tensor, p_y: Tensor) -> Tensor:
    """Return q(z|s) = sum_y p(y|s) q_phi(z|y), ``[K]``, from phi ``[values, K]`` and p(y|s).

    Divided by its sum, which rounding would leave beside 1: with K = 1 it is 1 to the last bit.
    Uniform for a client without examples, whose p(y|s) is 0.
    """
    q = p_y @ phi.softmax(-1)
    total = q.sum(-1, keepdim=True)
    some = total > 0
    return torch.where(some, q, 1 / q.shape[-1]) / torch.where(some, total, 1)


def client_given_expert(q: Tensor, p: Tensor) -> Tensor:
    """Return p(s|z) = q(z|s) p(s) / sum_s' q(z|s') p(s') over the cohort, ``[clients, K]`` (eq. 8).

    An expert that no client of the cohort uses gets weight 0 from all (A07).
    """
    joint = q * p.unsqueeze(1)
    total = joint.sum(0)
    return torch.where(total > 0, joint / total.clamp(min=torch.finfo(total.dtype).tiny), 0)


def marginal_entropy_gradient(phi: Tensor, p: Tensor) -> Tensor:
    """Return the gradient in phi ``[values, K]`` of H(m), m_k = sum_c p(c) softmax(phi)[c, k].

    dH / dphi[c, k] = p(c) q(k|c) ( -log m_k + sum_j q(j|c) log m_j ).
    """
    q = phi.softmax(-1)
    log_m = (p @ q).clamp(min=torch.finfo(q.dtype).tiny).log()
    return p.unsqueeze(1) * q * ((q @ log_m).unsqueeze(1) - log_m)
