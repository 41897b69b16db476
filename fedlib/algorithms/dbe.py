"""DBE: a client's bias is taken out of the features and kept at home (Zhang et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, mean_cross_entropy, placed
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import Phase, State, Update, play_round
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.values import value

OWN, RUNNING, CONSENSUS = "own.mean", "running.mean", "consensus.mean"
PREPARED = "server/prepared"  # bytes down and up of the round that found the consensus


@value
class DBE(Split):
    """logits = head(h + v_j): the whole model is shared, the vector v_j of D numbers is private.

    ``kappa`` times half the mean squared distance of the running mean of the client's features
    from a consensus keeps bias out of the features. The running mean m <- (1 - momentum) m +
    momentum (the batch's mean) starts anew every round, and passes gradients through the batch's.
    The consensus is the mean of the clients' running means after one epoch of plain training from
    the initial model, weighted by examples, and stays as it is. For that epoch the initial model
    goes to every client that takes part, and D numbers come back: the first round is charged for
    it, whoever is in its cohort, in equal parts. PFLlib's default is kappa 0; its
    authors and 004 have 50 (0.1 for news) with momentum 1.
    """

    kappa: float = 50.0
    momentum: float = 1.0

    def check(self) -> None:
        FedAvg.check(self)
        if self.kappa < 0 or not 0 < self.momentum <= 1:
            raise ValueError(
                f"DBE needs kappa >= 0 and momentum in (0, 1], got {self.kappa}, {self.momentum}"
            )
        _plain(self)

    @property
    def experts(self) -> str:
        """How the names of a private vector's leaves begin."""
        return OWN

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
        once = _Consensus(batch_size=self.batch_size, client=self.client, momentum=self.momentum)
        found, report = play_round(
            once, fed, once.begun(fed, begun), round=0, seed=seed, cohort=1.0
        )
        begun.shared[CONSENSUS] = found.shared[CONSENSUS]
        begun.memory[PREPARED] = torch.stack([report.down.sum(), report.up.sum()])
        return begun

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the received model and the client's vector; the running mean starts anew."""
        begun = FedAvg.start(self, fed, state, rows)
        return {**begun, RUNNING: torch.zeros_like(begun[RUNNING])}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains the model and the vector."""
        names = ("base.", "head.", OWN, RUNNING)
        return (Phase(self.client, self.epochs, self.batch_size, train=names),)

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

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
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
class _Consensus(FedAvg):
    """One epoch of plain training whose clients send their running mean, and nothing else."""

    momentum: float = 1.0

    def begun(self, fed: Federation, state: State) -> State:
        """Return the state before that epoch; the initial model stays as it is."""
        local = {RUNNING: torch.zeros_like(state.local[RUNNING])}
        return State(dict(state.shared), local)

    def is_local(self, name: str) -> bool:
        return name == RUNNING

    def phases(self) -> tuple[Phase, ...]:
        names = ("base.", "head.", RUNNING)
        return (Phase(self.client, 1, self.batch_size, train=names),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        weight = batch["weight"]
        h = net.features(params, batch["x"], batch.get("noise"))
        loss = mean_cross_entropy(net.logits(params, h), batch["y"], weight)
        return loss + moved(params, mean_of(h, weight), self.momentum, self.client.lr)

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        return {}, {CONSENSUS: before[CONSENSUS] - after[RUNNING]}

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        model = {n: t for n, t in state.shared.items() if n != CONSENSUS}  # there is none yet
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


def _plain(algorithm: FedAvg) -> None:
    """Raise ValueError unless clients take plain SGD steps, on which the running mean counts."""
    o = algorithm.client
    if not o.is_plain or o.rates or not o.lr:
        raise ValueError(f"{type(algorithm).__name__}'s clients take plain SGD steps, got {o}")
