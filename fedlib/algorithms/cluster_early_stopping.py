"""Clusters that have converged leave the federation, with their best weights (003)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.cluster_models import CLUSTERS
from fedlib.algorithms.fedavg import one_hot
from fedlib.engine import State
from fedlib.models import Params, named, part
from fedlib.values import value

OPEN = "clusters/open"
BEST, STALE, KEPT = "clusters/best", "clusters/stale", "clusters/kept:"


@value
class ClusterStop:
    """When a cluster has converged: its choosers' validation loss no longer improves.

    Checked in every ``every``-th round, before training; after ``patience`` checks without an
    improvement the cluster gets its best weights back and leaves what is sent and chosen (003).
    """

    every: int = 10
    patience: int = 10

    def check(self) -> None:
        if self.every < 1 or self.patience < 1:
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
