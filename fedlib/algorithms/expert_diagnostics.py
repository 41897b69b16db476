"""What experts are worth to the clients that mix them, and whom their gates trust."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import entropy
from fedlib.engine import Algorithm, State, tabulate
from fedlib.federation import Federation


def on_tests(
    fed: Federation, algorithm: Algorithm, state: State, asked: Callable[..., Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Return which experts are right and what the gate opens, for every test of every client.

    A pair per client, float64 ``[tests, M]`` each. ``asked`` says the labels that the experts alone
    would give, then the gate, ``[B, 2 M]``.
    """
    told = tabulate(fed, algorithm, state, fed.test, asked)
    labels, gate = told.split(told.shape[-1] // 2, -1)
    right = (labels == fed.test.y[fed.test.index.clamp(min=0)].unsqueeze(-1)).double()
    sizes = fed.test.sizes
    return [(right[i, : sizes[i]], gate[i, : sizes[i]].double()) for i in range(fed.clients)]


def expert_diagnostics(tests: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return "expert_accuracy" and "gate_share" ``[clients, M]``, "gate_entropy" ``[clients, 1]``.

    Means over a client's tests, NaN for one without; the entropy is in nats.
    """
    return {
        "expert_accuracy": torch.stack([right.mean(0) for right, _ in tests]),
        "gate_share": torch.stack([gate.mean(0) for _, gate in tests]),
        "gate_entropy": torch.stack([entropy(gate).mean() for _, gate in tests]).unsqueeze(1),
    }


def error_spread(tests: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return how far experts err together, ``[clients, 1]``: 1 independently, M always alike.

    The variance of how many are right over what it would be if they erred independently, which
    Theorem 3.1 of 004 assumes.
    """
    alike = torch.stack([right.sum(1).var(correction=0) for right, _ in tests])
    rates = torch.stack([right.mean(0) for right, _ in tests])
    alone = (rates * (1 - rates)).sum(1)
    spread = torch.where(alone > 0, alike / torch.where(alone > 0, alone, 1), 1.0)
    return spread.unsqueeze(1)
