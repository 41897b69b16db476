"""Variants of FedMix: experts that a client does not use are pruned; clusters of clients (000)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import Bytes, nbytes, others
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedmix import EXPERTS, FedMix
from fedlib.engine import Phase, State, Update
from fedlib.federation import Federation
from fedlib.models import Net, Params, part
from fedlib.values import one_of, value, within

MEMORY = "clients/p_z"  # in the server's memory: every client's p(z|s), [population, K]


@value
class PrunedFedMix(FedMix):
    """FedMix in which a client neither gets nor trains the experts that it does not use.

    ``eta`` is eta; 0 is algorithm 1. The other arguments are FedMix's.

        q'(z|.) = q(z|.) where q(z|s) >= eta / K, else 0, divided by its sum      batch by batch
        L_s     = sum_i E_q'(z|y_i)[log p_w_z(y_i|x_i)] + E_q(z|y_i)[log p_theta_s(z|x_i, s)]
        sent to s:    the experts with p(z|s) >= 0.9 eta / K, p(z|s) being what the server remembers
        sent by s:    the experts with q'(z|s) > 0, whose p(s|z) is of q'(z|s)    (000, algorithm 2)

    Predictions use the experts that the server would send, with the gate restricted to them.
    Leaves ``experts.*`` of a client are ``[m, ...]`` for the m <= K experts that it was sent, and
    clients that are sent equally many share a program: a pruned expert costs no time.

    Reference: Reisser et al., Federated mixture of experts, App. I (000). Deviation: the server
    remembers q(z|s) as it was, and not as listed q'(z|s), which is never between the thresholds, so
    that pruning would be for ever (A10).

    >>> q = torch.tensor([0.5, 0.3, 0.2])
    >>> renormalised(q, q >= 0.75 / 3)  # eta = 0.75, K = 3
    tensor([0.6250, 0.3750, 0.0000])
    """

    limits = within(eta="[0, 1]")
    eta: float = 0.5

    def check(self) -> None:
        FedMix.check(self)
        one_of("objective with pruning", self.objective, ("map",))

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which the server takes p(z|s) to be 1 / K."""
        uniform = torch.full((fed.clients, self.experts), 1 / self.experts, device=fed.device)
        return replace(FedMix.init(self, fed, seed, first), memory={MEMORY: uniform})

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return p(y|s), which experts are sent (1 or 0), and all experts with those first."""
        sent = self._sent(state, rows).to(torch.int64)
        order = torch.argsort(sent, dim=1, descending=True, stable=True)
        return {**FedMix.client_context(self, fed, state, rows), "sent": sent, "order": order}

    def handed(self, state: State, row: int) -> State:
        """Return the shared leaves, and the client's own p(z|s) as the server remembers it."""
        known = {n: t[[row]] for n, t in state.memory.items() if n == MEMORY}
        return State(state.shared, {}, memory=known)

    def alike(self, fed: Federation, state: State, rows: Tensor) -> Tensor:
        """Return how many experts each client is sent."""
        return self.client_context(fed, state, rows)["sent"].sum(1)

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the experts that the clients are sent, and all other leaves."""
        ctx = self.client_context(fed, state, rows)
        mine = ctx["order"][:, : int(ctx["sent"][0].sum())]
        experts = {n: t[mine] for n, t in state.shared.items() if n.startswith(EXPERTS)}
        rest = others(state.shared, EXPERTS)
        return {**experts, **FedAvg.start(self, fed, State(rest, state.local), rows)}

    def kept(self, q: Tensor, ctx: Params) -> Tensor:
        """Return which experts are not pruned by a client with q(z|s), bool ``[K]``.

        Some of those sent; all of these if q(z|s) has left every one since they were chosen.
        """
        sent = ctx["sent"] > 0
        keep = sent & (q >= self.eta / self.experts)
        return torch.where(keep.any(), keep, sent)

    def pool(self, params: Params, ctx: Params) -> Tensor:
        """Return q'(z|s): only kept experts have features, ``[K]``."""
        q = self.marginal(params, ctx)
        return renormalised(q, self.kept(q, ctx)) if self.eta else q

    def gate(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return log p_theta_s(z|x, s) over all experts, ``[B, K]``, from the features of some."""
        if h.shape[-2] < self.experts:
            every = h.new_zeros(len(h), self.experts, h.shape[-1])
            h = every.index_add(1, ctx["order"][: h.shape[-2]], h)
        return FedMix.gate(self, params, ctx, h)

    def bound(
        self, params: Params, ctx: Params, batch: Params, said: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_q'(z|y)[log p(y|x, z)] + E_q(z|y)[log p(z|x, s)] ``[B]`` (algorithm 2)."""
        if not self.eta:  # to the last bit
            return FedMix.bound(self, params, ctx, batch, said, gate)
        keep = self.kept(self.marginal(params, ctx).detach(), ctx)
        logits = self.logits(params, batch)
        # The softmax over kept experts is q(z|y) zeroed and renormalised; it never divides by 0.
        mine = logits.masked_fill(~keep, -torch.inf).softmax(-1)
        listed = (logits.softmax(-1) * gate).sum(-1)  # the gate's term keeps all of q (A11)
        return (self._held(mine, ctx, said) * said).sum(-1) + listed

    def open(self, params: Params, ctx: Params, h: Tensor) -> Tensor:
        """Return the gate of predictions, restricted to the experts that a client has."""
        gate = self.gate(params, ctx, h).masked_fill(ctx["sent"] == 0, -torch.inf).log_softmax(-1)
        return self._held(gate, ctx, h[..., 0])

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after, zero for experts that are not sent back, q'(z|s) and q(z|s)."""
        own, deltas = FedAvg.client_update(self, net, before, after, ctx)
        q = self.marginal(after, ctx)
        keep = self.kept(q, ctx)
        for name, mine in deltas.items():
            if name.startswith(EXPERTS):
                held = ctx["order"][: len(mine)]
                back = mine * keep[held].view(-1, *[1] * (mine.ndim - 1))
                none = mine.new_zeros(self.experts, *mine.shape[1:])
                deltas[name] = none.index_add(0, held, back)
        return own, {**deltas, "q_s": renormalised(q, keep) if self.eta else q, "q_raw": q}

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        """Return the bytes down and up per client: only experts that are sent count.

        Of the two forms of q(z|s) one goes up, K numbers: the other follows from it.
        """
        expert = nbytes(part(state.shared, EXPERTS)) // self.experts
        rest, back = nbytes(others(state.shared, EXPERTS)), messages["q_s"]
        up = (back > 0).sum(1) * expert + rest + self.experts * back.element_size()
        return self._sent(state, rows).sum(1) * expert + rest, up

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Take FedMix's step, with p(s|z) from q'(z|s), and remember the cohort's q(z|s)."""
        after = FedMix.aggregate(self, fed, state, rows, messages)
        known = state.memory[MEMORY].index_copy(0, rows, messages["q_raw"])
        return replace(after, memory={**after.memory, MEMORY: known})

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return what FedMix does, and how many experts a client is sent on average."""
        everyone = torch.arange(len(state.memory[MEMORY]), device=fed.device)
        mean = self._sent(state, everyone).sum(1).to(torch.float64).mean()
        return {**FedMix.observe(self, fed, state), "experts_sent": mean}

    def _sent(self, state: State, rows: Tensor) -> Tensor:
        """Return which experts some clients are sent, bool ``[clients, K]``.

        The server takes p(z|s) to be 1 / K where it remembers nobody: in a second stage.
        """
        uniform = torch.full((len(rows), self.experts), 1 / self.experts, device=rows.device)
        p = state.memory[MEMORY][rows] if MEMORY in state.memory else uniform
        return p >= 0.9 * self.eta / self.experts

    def _held(self, values: Tensor, ctx: Params, like: Tensor) -> Tensor:
        """Return the columns ``[B, m]`` of values ``[B, K]`` that belong to the experts held."""
        held = like.shape[-1]
        return values if held == self.experts else values[:, ctx["order"][:held]]


def renormalised(q: Tensor, keep: Tensor) -> Tensor:
    """Return q ``[K]`` with what is not kept set to zero, divided by its sum."""
    q = torch.where(keep, q, 0)
    return q / q.sum(-1, keepdim=True)


@value
class ClusteredFedMix(FedMix):
    """FedMix whose q is q_pi(z|s), a point pi_s of the simplex per client, found in closed form.

    ``entropy_weight`` is beta, ``damping`` alpha; the others are FedMix's. There is no phi.

        L_s  = sum_i E_pi_s[ log p(y_i, z|x_i, s) ] + beta H(pi_s)                      (eq. 10)
        pi*  = softmax_k( mean_i log p(y_i, z=k|x_i, s) / beta )        of a mini-batch (eq. 13)
        pi_s <- alpha pi_s + (1 - alpha) pi*

    The last line is a step of plain SGD at rate 1 - alpha on the squared distance between the two,
    halved; so pi_s is a leaf like others, ``pi`` ``[K]``, which stays with its client.

    Reference: Reisser et al., Federated mixture of experts, App. B (000). Deviation: eq. 12 with
    the batch's mean in both terms; the damped pi is the one that the batch's loss uses (A12).

    >>> posterior(torch.tensor([-1.0, -2.0]), 1.0)  # mean log p(y, z|x) of two experts
    tensor([0.7311, 0.2689])
    """

    limits = within(damping="[0, 1)", entropy_weight="> 0")
    damping: float = 0.75
    entropy_weight: float = 1.0

    def check(self) -> None:
        one_of("objective of clusters", self.objective, ("map",))
        if not self.client.is_plain:
            raise ValueError(f"the damped step of pi needs plain SGD, got {self.client}")
        FedMix.check(self)

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return FedMix's leaves with a uniform pi in place of phi."""
        leaves = FedMix.leaves(self, fed, seed)
        del leaves["phi"]
        return {**leaves, "pi": torch.full((self.experts,), 1 / self.experts, device=fed.device)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is pi or otherwise personal."""
        return name == "pi" or FedMix.is_local(self, name)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return nothing: no label counts are needed."""
        return {}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase in which pi moves at the rate 1 - damping."""
        rates = (("pi", 1 - self.damping), *self.client.rates)
        return (self.phase(optimizer=replace(self.client, rates=rates)),)

    def marginal(self, params: Params, ctx: Params) -> Tensor:
        """Return pi = q(z|s), ``[K]``, a probability to the last bit."""
        return params["pi"] / params["pi"].sum()

    def bound(
        self, params: Params, ctx: Params, batch: Params, said: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_pi[log p(y, z|x, s)] ``[B]`` with the pi that this batch leads to (eq. 10)."""
        joint = said + gate
        weight = batch["weight"].unsqueeze(-1)
        average = (joint * weight).sum(0) / weight.sum().clamp(min=1)
        best = posterior(average.detach(), self.entropy_weight)
        pi = self.damping * params["pi"].detach() + (1 - self.damping) * best
        off = 0.5 * (params["pi"] - best).square().sum()
        # Zero in value: the loss that is reported stays the bound.
        return (joint * pi).sum(-1) - (off - off.detach())

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return every client's q(z|s), ``[clients, K]``, rows in the order of their ids."""
        return {"clusters": state.local["pi"][fed.by_id]}


def posterior(average: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Return the pi that maximises sum_k pi_k average_k + entropy_weight H(pi) (eq. 11), ``[K]``.

    ``average`` is the mean of log p(y_i, z=k|x_i) over a client's examples.
    """
    return (average / entropy_weight).softmax(-1)
