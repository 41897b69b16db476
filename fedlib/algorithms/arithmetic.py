"""The arithmetic that algorithms share: means over batches, sums over clients, leaves and bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlib.federation import Federation
from fedlib.models import Params

Bytes = tuple[Tensor, Tensor]  # sent to, and by, every client of a cohort, int64 ``[clients]`` each


def others(leaves: Params, prefix: str) -> Params:
    """Return the leaves whose names do not begin with ``prefix``: what ``part`` leaves out."""
    return {n: t for n, t in leaves.items() if not n.startswith(prefix)}


def nbytes(leaves: Params) -> int:
    """Return the bytes of some tensors."""
    return sum(t.numel() * t.element_size() for t in leaves.values())


def alike_bytes(rows: Tensor, down: Params, up: Params) -> Bytes:
    """Return the bytes of what every client of ``rows`` is sent and sends."""
    return torch.full((len(rows),), nbytes(down)), torch.full((len(rows),), nbytes(up))


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over the batch axis of values ``[B]``; 0 for an empty batch."""
    return (values * weight).sum() / weight.sum().clamp(min=1)


def mean_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of logits ``[B, classes]`` at the labels ``[B]``."""
    return mean(cross_entropy(logits, y, reduction="none"), weight)


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Return true at the place of every label, bool ``[..., classes]`` from int64 ``[...]``."""
    return y.unsqueeze(-1) == torch.arange(classes, device=y.device)


def at_label(logp: Tensor, y: Tensor) -> Tensor:
    """Return ``logp[..., y]``: log-probabilities ``[B, (K,) classes]`` at the labels ``[B]``."""
    place = y.view(-1, *[1] * (logp.ndim - 1)).expand(*logp.shape[:-1], 1)
    return logp.gather(-1, place).squeeze(-1)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return ``sum_s w_s v_s``, or per row k ``sum_s w_sk v_sk`` for weights ``[clients, K]``."""
    weights = weights.to(values.dtype)
    if weights.ndim == 1:
        return torch.tensordot(weights, values, 1)
    columns = zip(weights.unbind(1), values.unbind(1), strict=True)
    return torch.stack([torch.tensordot(w, v, 1) for w, v in columns])


def placed(leaves: Params, fed: Federation) -> Params:
    """Return the same leaves on the device of a federation."""
    return {n: t.to(fed.device) for n, t in leaves.items()}


def rows_of(leaves: Params, fed: Federation) -> Params:
    """Return the same leaves for every client, ``[clients, ...]``, each to be trained."""
    return {n: t.expand(fed.clients, *t.shape).clone() for n, t in placed(leaves, fed).items()}


def entropy(p: Tensor) -> Tensor:
    """Return the Shannon entropy (nats) over the last axis, with 0 log 0 = 0."""
    return -torch.special.xlogy(p, p).sum(-1)
