"""Evaluation of all clients in large batches; what is shared is computed once per example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import costs
from fedlib.engine.protocol import Algorithm, Prediction, State, playing, predicting
from fedlib.engine.vmap_clients import vmap_clients
from fedlib.federation import Federation, Table
from fedlib.models import Params


@dataclass(eq=False)
class Scores:
    """What an evaluation found, client by client.

    ``accuracy`` and ``nll`` float64 ``[clients]`` (nan for a client without examples), ``sizes``
    int64 ``[clients]``; ``gate`` float64 ``[classes, K]`` or None: the mean of p(z|x, s) over the
    examples of each label.
    """

    accuracy: np.ndarray
    nll: np.ndarray
    sizes: np.ndarray
    gate: np.ndarray | None = None


@dataclass(eq=False)
class Encoded:
    """What the shared leaves say of a table's examples, each computed once.

    ``code`` ``[examples, ...]`` by name; ``at`` ``[N]`` is an example's place in it.
    """

    code: Params
    at: Tensor


def encode(
    fed: Federation, algorithm: Algorithm, state: State, table: Table, everything: bool = False
) -> Encoded:
    """Encode the examples of ``table`` that some client holds, or all of them."""
    held = torch.full((len(table.y),), everything, device=fed.device)
    held[table.index[table.real]] = True
    used = torch.nonzero(held)[:, 0]
    at = torch.zeros(len(table.y), dtype=torch.int64, device=fed.device)
    at[used] = torch.arange(len(used), device=fed.device)
    with torch.no_grad():
        parts = [
            algorithm.encode(fed.net, state.shared, table.inputs(b))
            for b in used.split(costs.BLOCK)
        ]
    return Encoded({n: torch.cat([p[n] for p in parts]) for n in parts[0]} if parts else {}, at)


def evaluate(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    table: Table,
    encoded: Encoded | None = None,
) -> Scores:
    """Score every client on its own examples of ``table`` with the server's current leaves."""
    fed = predicting(algorithm, fed)
    state = algorithm.assign_models(fed, state)
    encoded = encoded or encode(fed, algorithm, state, table)
    hits, nll = torch.zeros(fed.clients).double(), torch.zeros(fed.clients).double()
    gates: list[tuple[Tensor, Tensor]] = []
    for rows, mask, y, out in _predictions(fed, algorithm, state, table, encoded):
        right = (out.logp.argmax(-1) == y) & mask
        said = _surprise(out.logp, y)
        hits[rows.cpu()] = right.sum(1).double().cpu()
        nll[rows.cpu()] = torch.where(mask, said, 0).sum(1).double().cpu()
        if out.gate.shape[-1]:
            gates.append((y[mask], out.gate[mask]))
    sizes = np.asarray(table.sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Scores(
            hits.numpy() / sizes, nll.numpy() / sizes, sizes, _by_label(gates, fed.classes)
        )


def evaluate_global(
    fed: Federation, algorithm: Algorithm, state: State, encoded: Encoded | None = None
) -> float:
    """Return the accuracy on all test examples of what the clients say of a newcomer's, together.

    Their votes are averaged with p(s) = N_s / N, or with p(s|x) where an algorithm has an
    ``affinity`` (000, App. F), and tallied: for an algorithm without local leaves that is the
    global model, for FedMix the mixture with the gates marginalised. ``encoded`` must hold every
    test example. Where a vote runs a personal network for every example, ``MOST`` examples at even
    distances stand for all.
    """
    fed = predicting(algorithm, fed)
    state = algorithm.assign_models(fed, state)
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    rows = torch.arange(fed.clients if _personal(algorithm, fed, state) else 1, device=fed.device)
    every = costs.polled(algorithm, len(fed.test.y), len(rows))
    seen = torch.arange(0, len(fed.test.y), every, device=fed.device)
    hits = 0
    with torch.no_grad():
        poll = _Poll(fed, algorithm, state, rows)
        for block in seen.split(costs.BLOCK):
            code = {n: t[encoded.at[block]] for n, t in encoded.code.items()}
            said = algorithm.ensemble(fed.net, state.shared, code, poll.votes(code))
            hits += int((said.argmax(-1) == fed.test.y[block]).sum())
    return hits / len(seen)


def evaluate_everywhere(
    fed: Federation, algorithm: Algorithm, state: State, encoded: Encoded | None = None
) -> np.ndarray:
    """Return every client's accuracy on the same examples, those that anybody tests on.

    ``[clients]``. At most ``MOST`` of all test examples, at even distances, which ``encoded`` must
    hold: how much of what a client has learned is about more than its own data.
    """
    every = -(-len(fed.test.y) // costs.MOST)
    some = torch.arange(0, len(fed.test.y), every, device=fed.device)
    sizes = np.full(fed.clients, len(some))
    table = replace(fed.test, index=some.expand(fed.clients, -1), sizes=sizes, side={})
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    return evaluate(fed, algorithm, state, table, encoded).accuracy


class _Poll:
    """The clients of a federation, asked about examples that none of them holds."""

    def __init__(self, fed: Federation, algorithm: Algorithm, state: State, rows: Tensor) -> None:
        self.fed, self.algorithm, self.state, self.rows = fed, algorithm, state, rows
        self.context = algorithm.client_context(fed, state, rows)
        self.common = algorithm.broadcast(fed, state)
        sizes = playing(algorithm, fed).sizes[rows]
        self.log_share = (sizes / sizes.sum()).to(torch.float32).log()

    def votes(self, code: Params) -> Params:
        """Return the mean votes on a block of examples, ``[B, ...]`` each."""
        size = len(next(iter(code.values())))
        groups = self.rows.split(costs.predicted_together(self.fed, self.algorithm, code, size))
        known = [self._ask(self.algorithm.log_density, i, code) for i in groups]
        share = self.log_share.unsqueeze(1).expand(-1, size)
        if known[0]:
            share = share + torch.cat([each["log_p"] for each in known])
        share = share.softmax(0)
        total: Params = {}
        for i in groups:
            for name, vote in self._ask(self.algorithm.client_output, i, code).items():
                part = torch.einsum("sb,sb...->b...", share[i], vote)
                total[name] = total[name] + part if name in total else part
        return total

    def _ask(self, method: Callable[..., Params], rows: Tensor, code: Params) -> Params:
        """Return what a method of the algorithm says for some clients, ``[clients, B, ...]``."""

        def one(own: Params, ctx: Params, code: Params) -> Params:
            params = {**self.state.shared, **own}
            return method(self.fed.net, params, {**ctx, **self.common}, code)

        own = {n: t[rows] for n, t in self.state.local.items()}
        ctx = {n: t[rows] for n, t in self.context.items()}
        said: Params = vmap_clients(one, len(rows), common=1)(own, ctx, code)
        return said


def nll_of(algorithm: Algorithm, fed: Federation) -> Callable[..., Tensor]:
    """Return one client's mean negative log-likelihood on a batch: what early stopping watches."""

    def nll(params: Params, ctx: Params, batch: Params, common: Params) -> Tensor:
        code = algorithm.encode(fed.net, params, batch["x"])
        logp = algorithm.predict(fed.net, params, {**ctx, **common}, code).logp
        said = _surprise(logp, batch["y"])
        return (said * batch["weight"]).sum() / batch["weight"].sum().clamp(min=1)

    return nll


def accuracy_of(algorithm: Algorithm, fed: Federation) -> Callable[..., Tensor]:
    """Return one client's accuracy on a batch with leaves of its own; nan for an empty batch."""

    def accuracy(params: Params, ctx: Params, batch: Params, common: Params) -> Tensor:
        code = algorithm.encode(fed.net, params, batch["x"])
        logp = algorithm.predict(fed.net, params, {**ctx, **common}, code).logp
        right = (logp.argmax(-1) == batch["y"]).to(logp.dtype) * batch["weight"]
        return right.sum() / batch["weight"].sum()

    return accuracy


def _surprise(logp: Tensor, y: Tensor) -> Tensor:
    """Return -log p of the labels ``[...]``, from log p ``[..., classes]``."""
    return -logp.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _personal(algorithm: Algorithm, fed: Federation, state: State) -> bool:
    some = torch.zeros(1, dtype=torch.int64, device=fed.device)
    return bool(state.local) or bool(algorithm.client_context(fed, state, some))


def _predictions(
    fed: Federation, algorithm: Algorithm, state: State, table: Table, encoded: Encoded
) -> Iterator[tuple[Tensor, Tensor, Tensor, Prediction]]:
    """Yield (rows, mask [clients, n], labels [clients, n], prediction) for groups of clients."""
    sizes = torch.as_tensor(table.sizes, device=fed.device)
    everyone = torch.nonzero(sizes > 0)[:, 0]
    if not len(everyone):
        return
    size = costs.predicted_together(fed, algorithm, encoded.code, table.index.shape[1])
    for rows in everyone.split(size):
        width = int(sizes[rows].max())
        held = table.index[rows, :width].clamp(min=0)
        out = _said(fed, algorithm, state, rows, encoded, held, algorithm.predict)
        yield rows, table.real[rows, :width], table.y[held], out


def tabulate(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    table: Table,
    method: Callable[..., Tensor],
) -> Tensor:
    """Return ``method(net, params, ctx, code) [B, ...]`` of every client's own examples.

    ``[clients, width, ...]``; anything in the padding. What is shared is computed once per example.
    """
    encoded = encode(fed, algorithm, state, table)
    held = table.index.clamp(min=0)
    everyone = torch.arange(fed.clients, device=fed.device)
    size = costs.predicted_together(fed, algorithm, encoded.code, table.index.shape[1])
    groups = everyone.split(size)
    return torch.cat([_said(fed, algorithm, state, i, encoded, held[i], method) for i in groups])


def _said(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    rows: Tensor,
    encoded: Encoded,
    held: Tensor,
    method: Callable[..., Any],
) -> Any:
    """Return ``method(net, params, ctx, code)`` of some clients, on ``held`` examples of each."""
    common = algorithm.broadcast(fed, state)

    def say(own: Params, ctx: Params, code: Params) -> Any:
        return method(fed.net, {**state.shared, **own}, {**ctx, **common}, code)

    with torch.no_grad():
        own = {n: t[rows] for n, t in state.local.items()}
        code = {n: t[encoded.at[held]] for n, t in encoded.code.items()}
        return vmap_clients(say, len(rows))(own, algorithm.client_context(fed, state, rows), code)


def _by_label(gates: list[tuple[Tensor, Tensor]], classes: int) -> np.ndarray | None:
    if not gates:
        return None
    y = torch.cat([y for y, _ in gates])
    gate = torch.cat([g for _, g in gates]).double()
    total = torch.zeros(classes, gate.shape[1], dtype=torch.float64, device=gate.device)
    total.index_add_(0, y, gate)
    return (total / torch.bincount(y, minlength=classes).unsqueeze(1)).cpu().numpy()
