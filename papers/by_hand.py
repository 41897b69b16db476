"""Federated averaging in plain PyTorch, as in notebook 00.

The programs of notebooks 09, 11 and 13 add what their papers add. Weights w are tensors by name,
and log_p(w, x) returns log-probabilities ``[B, classes]``: all methods there minimise the mean of
-log p(y|x).
"""

from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import nll_loss

from fedlib.federation import ClientData, Federation
from fedlib.models import MLP
from fedlib.partition import ClassDirichlet, LocalHoldout
from fedlib.tasks import Task
from fedrun import Experiment, batches
from fedrun.checking import MiniBatch

Weights = dict[str, Tensor]
Cohort = dict[int, list[MiniBatch]]
LogP = Callable[[Weights, Tensor], Tensor]

SHARDS = ClassDirichlet(clients=20, alpha=0.5, least=30)
TASK = Task("digits", SHARDS, MLP((32,)), LocalHoldout())


def rounds(experiment: Experiment) -> Iterator[Cohort]:
    """Yield the mini-batches of the last stage as ``fedlib`` draws them, by round and client."""
    for _, steps in groupby(batches(experiment), lambda step: step.round):
        yield {s: [*own] for s, own in groupby(steps, lambda step: step.client)}


def loss(w: Weights, log_p: LogP, x: Tensor, y: Tensor) -> Tensor:
    """Return -1/B sum_i log p_w(y_i|x_i)."""
    return nll_loss(log_p(w, x), y)


def trained(w: Weights, own: list[MiniBatch], log_p: LogP, rate: float) -> Weights:
    """Return w <- w - rate grad loss(w), for each mini-batch of a client in turn."""
    for step in own:
        slope = grad(loss)(w, log_p, step.x, step.y)
        w = {name: w[name] - rate * slope[name] for name in w}
    return w


def averaged(w: Weights, cohort: Cohort, log_p: LogP, rate: float) -> Weights:
    """Return sum_s n_s w_s / sum_s n_s, where client s of the cohort has trained w_s from w.

    For an empty cohort it is w itself.
    """
    total, zero = sum(own[0].weight for own in cohort.values()), torch.zeros(())
    back = [(own[0].weight / total, trained(w, own, log_p, rate)) for own in cohort.values()]
    return {name: sum((p * w_s[name] for p, w_s in back), zero) for name in w} if back else w


def examples(table: ClientData, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's examples and their labels."""
    rows = table.client(client)
    return table.inputs(rows), table.y[rows]


def accuracy(fed: Federation, log_p: Callable[[int, Tensor], Tensor]) -> float:
    """Return the mean over clients of the accuracy on their own test examples.

    Args:
        fed: the federation.
        log_p: a function of a client and examples.
    """
    tests = [examples(fed.test, s) for s in range(fed.num_clients)]
    right = [(log_p(s, x).argmax(1) == y).double().mean() for s, (x, y) in enumerate(tests)]
    return float(sum(right)) / len(right)


def of_client(params: Weights, client: int) -> Weights:
    """Return the tensors of one client of parameters ``[clients, ...]``."""
    return {name: t[client] for name, t in params.items()}


def difference(mine: Weights, theirs: Weights) -> float:
    """Return the largest difference between two tensors of the same name."""
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)
