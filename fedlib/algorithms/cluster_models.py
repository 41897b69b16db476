"""The models of clusters of clients: one stacked leaf each, who fits which, when one leaves."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import one_hot, others
from fedlib.engine import State
from fedlib.models import Net, Params, each, named, part
from fedlib.values import value

CLUSTERS = "clusters."
FIT = "settled/fit"  # every client's loss under every model; forgotten when a round ends
OPEN = "clusters/open"
BEST, STALE, KEPT = "clusters/best", "clusters/stale", "clusters/kept:"


def log_probs(net: Net, leaves: Params, x: Tensor) -> Tensor:
    """Return what every cluster's model says, log p ``[B, J, classes]``; a plain model is J = 1."""
    own, rest = part(leaves, CLUSTERS), others(leaves, CLUSTERS)
    if not own:
        return net.logp(leaves, x).unsqueeze(-2)
    said = each(lambda w, x: net.logp({**rest, **w}, x), own, x)
    return torch.stack(said, 1)


def count(leaves: Params) -> int:
    """Return J, the number of clusters whose models some shared leaves are; 1 for a plain model."""
    return next((len(t) for n, t in leaves.items() if n.startswith(CLUSTERS)), 1)


def pick(shared: Params, choice: Tensor) -> Params:
    """Return the model of each client's cluster, as plain leaves ``[clients, ...]``."""
    own = {n: t[choice] for n, t in part(shared, CLUSTERS).items()}
    rest = others(shared, CLUSTERS)
    return {**own, **{n: t.expand(len(choice), *t.shape) for n, t in rest.items()}}


def settled(first: State) -> Params:
    """Return each client's model after a first stage that shared clusters, ``[clients, ...]``."""
    return pick(first.shared, best_fit(first))


def used(first: State) -> Params:
    """Return the shared leaves with those clusters only that are some client's best."""
    best = best_fit(first).unique()
    return {n: t[best] if n.startswith(CLUSTERS) else t for n, t in first.shared.items()}


def best_fit(state: State) -> Tensor:
    """Return the cluster that fits each client best, ``[clients]``, of a settled state."""
    return state.memory[FIT].nan_to_num(torch.inf).argmin(1)


@value
class ClusterStop:
    """When a cluster has converged: its choosers' validation loss no longer improves.

    Checked in every ``every``-th round, before training; after ``patience`` checks without an
    improvement the cluster gets its best weights back and leaves what is sent and chosen.

    Reference: Isaksson et al. (003), an option of algorithm 1.
    """

    every: int = 10
    patience: int = 10

    def check(self) -> None:
        if min(self.every, self.patience) < 1:
            raise ValueError(f"every and patience must be >= 1, got {self}")

    def begun(self, shared: Params, clusters: int) -> Params:
        """Return what the server remembers of clusters that have not been checked yet."""
        now = part(shared, CLUSTERS)
        device = next(iter(now.values())).device
        # Worse than any loss, yet finite, as all that a server remembers has to be.
        worst = torch.finfo(torch.float32).max
        return {
            BEST: torch.full((clusters,), worst, device=device),
            STALE: torch.zeros(clusters, device=device),
            **{n: t.clone() for n, t in named(now, KEPT).items()},
        }

    def closed(self, state: State, fit: Tensor, choice: Tensor) -> State:
        """Return the state after a check of which clusters still improve.

        ``fit`` ``[clients, J]`` are losses under every cluster, NaN for a client without examples;
        ``choice`` ``[clients]`` is each one's cluster.
        """
        mine = fit.gather(1, choice.unsqueeze(1)).squeeze(1)
        share = one_hot(choice, fit.shape[1])[~mine.isnan()]
        count = share.sum(0)
        loss = mine[~mine.isnan()] @ share.to(mine.dtype) / count
        asked = (count > 0) & state.memory[OPEN]
        better = asked & (loss < state.memory[BEST])
        stale = torch.where(better, 0, state.memory[STALE] + (asked & ~better))
        closing = state.memory[OPEN] & (stale >= self.patience)
        now, kept = part(state.shared, CLUSTERS), part(state.memory, KEPT)
        kept = {n: _rows(better, t, kept[n]) for n, t in now.items()}
        shared = {n: _rows(closing, kept[n], t) for n, t in now.items()}
        memory = {
            **state.memory,
            BEST: torch.where(better, loss, state.memory[BEST]),
            STALE: stale,
            OPEN: state.memory[OPEN] & ~closing,
            **named(kept, KEPT),
        }
        return replace(state, shared={**state.shared, **named(shared, CLUSTERS)}, memory=memory)


def _rows(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (yes.ndim - 1)), yes, no)
