"""Functions that algorithms share: means, losses, sums over clients, parameters by client."""

import torch
from torch import Tensor

from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Params


def mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over the batch axis of values ``[B]``; 0 for an empty batch."""
    return (values * weight).sum() / weight.sum().clamp(min=1)


def mean_of(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean ``[D]`` over the batch of values ``[B, D]``; 0 if it is empty."""
    return (values * weight.unsqueeze(-1)).sum(0) / weight.sum().clamp(min=1)


def mean_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean cross-entropy of logits ``[B, classes]`` at the labels ``[B]``."""
    return mean(cross_entropy(logits, y), weight)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy ``[B]`` of logits ``[B, classes]`` at the labels ``[B]``."""
    # torch's own has the same bits, but under vmap it imports sympy, which takes a second.
    return -at_label(logits.log_softmax(-1), y)


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Return the one-hot encoding, bool ``[..., classes]``, of labels, int64 ``[...]``."""
    return y.unsqueeze(-1) == torch.arange(classes, device=y.device)


def at_label(logp: Tensor, y: Tensor) -> Tensor:
    """Return the entries of ``logp`` ``[B, classes]`` or ``[B, K, classes]`` at labels ``[B]``."""
    place = y.view(-1, *[1] * (logp.ndim - 1)).expand(*logp.shape[:-1], 1)
    return logp.gather(-1, place).squeeze(-1)


def beside(u: Tensor, t: Tensor) -> Tensor:
    """Return ``u`` with the type of ``t`` and axes of length 1 for all of its further axes."""
    return u.to(t.dtype).view(*u.shape, *[1] * (t.ndim - u.ndim))


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return the weighted sum over clients of values ``[clients, ...]``.

    Args:
        weights: ``[clients]``, or ``[clients, K]`` for a weight of its own in each expert.
        values: ``[clients, ...]``, or ``[clients, K, ...]``.

    Returns:
        ``sum_s w_s v_s``, or ``sum_s w_sk v_sk`` for each k, without the axis of clients.

    >>> p, sent = torch.tensor([0.25, 0.75]), torch.tensor([[4.0], [0.0]])  # w - w_s of two clients
    >>> torch.tensor([3.0]) - weighted_sum(p, sent)  # w, averaged
    tensor([2.])
    """
    weights = weights.to(values.dtype)
    if weights.ndim == 1:
        return torch.tensordot(weights, values, 1)
    columns = zip(weights.unbind(1), values.unbind(1), strict=True)
    return torch.stack([torch.tensordot(w, v, 1) for w, v in columns])


def normalised(weights: Tensor) -> Tensor:
    """Return weights ``[clients, K]`` divided by their sums over the clients; 0 where that is 0.

    >>> q = torch.tensor([[0.8, 0.2], [0.4, 0.6]])  # q(z|s), of 2 and 6 examples
    >>> normalised(torch.tensor([0.25, 0.75]).unsqueeze(1) * q)  # p(s|z) of FedMix
    tensor([[0.4000, 0.1000],
            [0.6000, 0.9000]])
    """
    total = weights.sum(0)
    return torch.where(total > 0, weights / total.clamp(min=torch.finfo(total.dtype).tiny), 0)


def entropy(p: Tensor) -> Tensor:
    """Return the Shannon entropy (nats) over the last axis, with 0 log 0 = 0."""
    return -torch.special.xlogy(p, p).sum(-1)


def data_share(fed: Federation, clients: Tensor) -> Tensor:
    """Return p(s) over the cohort, float64 ``[clients]``; 0 if no client has an example."""
    n = fed.sizes[clients]
    return n / n.sum().clamp(min=1)


def own_params(first: State, fed: Federation) -> Params:
    """Return the local parameters of a first stage.

    Raises:
        ValueError: if the first stage had another number of clients.
    """
    for name, param in first.client_params.items():
        if len(param) != fed.num_clients:
            here = f"there are {fed.num_clients} clients here"
            there = f"{len(param)} clients in the first stage"
            raise ValueError(f"{name} has values for {there}, and {here}")
    return first.client_params


def drop_prefix(params: Params, prefix: str) -> Params:
    """Return the parameters whose names do not begin with ``prefix``."""
    return {n: t for n, t in params.items() if not n.startswith(prefix)}


def to_device(params: Params, fed: Federation) -> Params:
    """Return the parameters on the federation's device."""
    return {n: t.to(fed.device) for n, t in params.items()}


def broadcast_to_clients(params: Params, fed: Federation) -> Params:
    """Return a copy of the parameters for every client, ``[clients, ...]`` each."""
    there = to_device(params, fed).items()
    return {n: t.expand(fed.num_clients, *t.shape).clone() for n, t in there}
