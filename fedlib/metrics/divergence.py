"""How much the clients' updates of a round disagree (000, App. D)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.models import Params


def gradient_divergence(updates: Tensor, weights: Tensor) -> Tensor:
    """Return GD = sum_ij w_i w_j (1 - cos(D_i, D_j)) / 2 for one tensor (eq. 16; eq. 17 with p(s)).

    ``updates`` are the clients' before - after, ``[S, ...]`` with weights ``[S]``, giving a scalar,
    or ``[S, K, ...]`` with weights ``[S, K]``, giving one number per expert ``[K]``. Pairs with an
    update that is exactly zero have no direction and contribute nothing. Float64.

    With unit vectors u_i the double sum is ((sum w)^2 - |sum_i w_i u_i|^2) / 2: linear in S.
    """
    flat = updates.double().flatten(weights.ndim)
    length = flat.norm(dim=-1, keepdim=True)
    some = (length > 0).squeeze(-1)
    w = torch.where(some, weights.double(), 0)
    unit = flat / torch.where(length > 0, length, 1)
    resultant = (w.unsqueeze(-1) * unit).sum(0)
    return 0.5 * (w.sum(0) ** 2 - (resultant**2).sum(-1)).clamp(min=0)


def divergences(messages: Params, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the divergence of every aggregated tensor of a round, by leaf name."""
    return {n: gradient_divergence(messages[n], w) for n, w in weights.items()}
