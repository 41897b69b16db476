"""DBE: a client's bias is taken out of the features and kept at home."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import Bytes, mean_cross_entropy, others, placed
from fedlib.algorithms.fedavg import FedAvg, plain_steps
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import State, Update, play_round
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.values import value, within

OWN, RUNNING, CONSENSUS = "own.mean", "running.mean", "consensus.mean"
PREPARED = "server/prepared"  # bytes down and up of the round that found the consensus


@value
class DBE(Split):
    """The whole model is shared, a vector v_j of D numbers, added to the features, is private.

    ``kappa`` is kappa, ``momentum`` mu of the running mean m_j of the client's features, which
    starts anew every round and passes gradients through the batch's mean; g is the consensus.

        logits = head(f(x) + v_j)
        m_j    <- (1 - mu) m_j + mu mean_batch f(x)
        loss   = CE + kappa mean_d (m_jd - g_d)^2 / 2

    g is the mean of the clients' m_j after one epoch of plain training from the initial model,
    weighted by examples, and stays as it is. For that epoch the initial model goes to every client
    that takes part, and D numbers come back: the first round is charged for it, whoever is in its
    cohort, in equal parts.

    Reference: Zhang et al., Eliminating domain bias for federated learning in representation space,
    NeurIPS 2023 (kappa 50, for news 0.1, mu 1, as in 004; PFLlib's default is kappa 0). A method of
    004. Deviation: v_j moves at the clients' rate, in plain SGD steps.

    >>> running({"running.mean": torch.tensor([1.0])}, torch.tensor([3.0]), 0.25)  # mu = 1/4
    tensor([1.5000])
    """

    experts = OWN
    trains: ClassVar[tuple[str, ...]] = ("base.", "head.", OWN, RUNNING)
    limits = within(kappa=">= 0", momentum="(0, 1]")
    kappa: float = 50.0
    momentum: float = 1.0

    def check(self) -> None:
        FedAvg.check(self)
        plain_steps(self)

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, and vectors that start at zero."""
        zero = torch.zeros(fed.net.width)
        vectors = {n: zero.clone() for n in (OWN, RUNNING, CONSENSUS)}
        return {**FedAvg.leaves(self, fed, seed), **placed(vectors, fed)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is a client's: its vector, and its running mean."""
        return name in (OWN, RUNNING)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the initial model with the consensus, for which every client trains one epoch."""
        begun = FedAvg.init(self, fed, seed, first)
        if not self.kappa or (first and CONSENSUS in first.shared):
            return begun
        fields = {n: getattr(self, n) for n in ("batch_size", "client", "momentum")}
        # The initial model stays as it is.
        fresh = State(dict(begun.shared), {n: torch.zeros_like(t) for n, t in begun.local.items()})
        once = _Consensus(kappa=0.0, **fields)
        found, report = play_round(once, fed, fresh, round=0, seed=seed, cohort=1.0)
        begun.shared[CONSENSUS] = found.shared[CONSENSUS]
        begun.memory[PREPARED] = torch.stack([report.down.sum(), report.up.sum()])
        return begun

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the received model and the client's vector; the running mean starts anew."""
        begun = FedAvg.start(self, fed, state, rows)
        return {**begun, RUNNING: torch.zeros_like(begun[RUNNING])}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy, and how far the mean features are from the consensus."""
        weight = batch["weight"]
        h = self.features(net, params, batch)
        said = net.logits(params, h + params[OWN])
        loss = mean_cross_entropy(said, batch["y"], weight)
        center = mean_of(h, weight)
        m = running(params, center, self.momentum)
        loss = loss + self.kappa / 2 * ((m - params[CONSENSUS]) ** 2).mean()
        return loss + moved(params, center, self.momentum, self.client.lr)

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        """Return the bytes of a round, of the first one with those of the consensus.

        What all clients exchanged for that is dealt to the first cohort: where everybody is in it,
        each has its own. The server's memory of it ends with the first round.
        """
        down, up = FedAvg.communication_bytes(self, state, rows, messages)
        if PREPARED not in state.memory:
            return down, up
        before = state.memory[PREPARED].tolist()
        return down + _dealt(before[0], len(rows)), up + _dealt(before[1], len(rows))

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Average the models; what finding the consensus took has been charged."""
        return replace(FedAvg.aggregate(self, fed, state, rows, messages), memory={})

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features, and the head's logits of them."""
        return Opened(code["h"], net.logits(params, code["h"]))

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the client's vector for every example."""
        return params[OWN].expand(len(entry), -1)

    def joined(self, net: Net, params: Params, out: Tensor) -> Tensor:
        """Return what a vector adds to the logits."""
        return out @ params["head.weight"].mT


@dataclass(frozen=True)
class _Consensus(DBE):
    """One epoch of plain training whose clients send their running mean, and nothing else."""

    trains = ("base.", "head.", RUNNING)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        return {}, {CONSENSUS: before[CONSENSUS] - after[RUNNING]}

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        model = others(state.shared, CONSENSUS)  # there is none yet
        return FedAvg.communication_bytes(self, replace(state, shared=model), rows, messages)


def mean_of(h: Tensor, weight: Tensor) -> Tensor:
    """Return the mean features ``[D]`` of a batch."""
    return (h * weight.unsqueeze(-1)).sum(0) / weight.sum().clamp(min=1)


def running(params: Params, center: Tensor, momentum: float) -> Tensor:
    """Return the running mean ``[D]`` after a batch; gradients pass through the batch's mean."""
    return (1 - momentum) * params[RUNNING].detach() + momentum * center


def moved(params: Params, center: Tensor, momentum: float, lr: float) -> Tensor:
    """Return a loss, 0 in value, whose SGD step moves the running mean by one batch."""
    back = params[RUNNING] - center.detach()
    return momentum / (2 * lr) * ((back**2).sum() - (back.detach() ** 2).sum())


def _dealt(total: int, clients: int) -> Tensor:
    """Return whole numbers that sum to ``total``, as equal as can be, int64 ``[clients]``."""
    return total // clients + (torch.arange(clients) < total % clients).to(torch.int64)
