"""The models of clusters of clients, one stacked leaf each, and which of them fits whom best."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.engine import State
from fedlib.models import Net, Params, each, part

CLUSTERS = "clusters."
FIT = "settled/fit"  # every client's loss under every model; forgotten when a round ends


def log_probs(net: Net, leaves: Params, x: Tensor) -> Tensor:
    """Return what every cluster's model says, log p ``[B, J, classes]``; a plain model is J = 1."""
    own, rest = part(leaves, CLUSTERS), _rest(leaves)
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
    return {**own, **{n: t.expand(len(choice), *t.shape) for n, t in _rest(shared).items()}}


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


def _rest(shared: Params) -> Params:
    """Return what all clusters share."""
    return {n: t for n, t in shared.items() if not n.startswith(CLUSTERS)}
