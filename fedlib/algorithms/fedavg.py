"""Federated averaging (McMahan et al., 2017; generalised: Reddi et al., 2020): the default of
every method of an algorithm."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlib.engine import Phase, Prediction, State, Update
from fedlib.federation import Federation, Known
from fedlib.models import Net, Params
from fedlib.optim import Optimizer, server_step, sgd
from fedlib.randomness import torch_seed
from fedlib.values import one_of, value


@value
class FedAvg:
    """One global model; clients run SGD, the server averages (000, eq. 1 and 7).

    ``client`` moves a client's leaves for ``epochs`` passes over its data in batches of
    ``batch_size`` (None: all at once); ``server`` moves the global leaves along the mean of
    before - after (SGD with rate 1 is plain averaging, Adam generalised FedAvg). ``weighting``
    "size" weighs a client by its number of examples, "uniform" equally.
    """

    federates: ClassVar[bool] = True
    """Whether clients send anything."""

    drops: ClassVar[bool] = True
    """Whether the loss hands on the noise that drops units, where a model has dropout."""

    epochs: int = 1
    batch_size: int | None = 64
    client: Optimizer = Optimizer()
    server: Optimizer = sgd(1.0)
    weighting: str = "size"

    @property
    def reads_examples(self) -> bool:
        """Whether predicting runs a client's own network on every example."""
        return False

    def check(self) -> None:
        one_of("weighting", self.weighting, ("size", "uniform"))
        self.phases()

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of one client and the server."""
        return placed(fed.net.init(torch_seed(seed, "model", 0)), fed)

    def is_local(self, name: str) -> bool:
        """Return whether a leaf stays with its client."""
        return False

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0; every client starts from the same local leaves.

        After a ``first`` stage the leaves that it has under the same name start from its values;
        ValueError if it has none of them.
        """
        leaves = self.leaves(fed, seed)
        begun = first or State({}, {})
        if first and not leaves.keys() & (first.shared.keys() | first.local.keys()):
            raise ValueError(f"the first stage has no leaf of {type(self).__name__} to start from")
        shared = {n: begun.shared.get(n, t) for n, t in leaves.items() if not self.is_local(n)}
        local = {
            n: begun.local.get(n, begun.shared.get(n, t).expand(fed.clients, *t.shape)).clone()
            for n, t in leaves.items()
            if self.is_local(n)
        }
        return State(shared, local)

    def alike(self, fed: Federation, state: State, rows: Tensor) -> Tensor:
        """Return zeros: the leaves of all clients have the same shapes."""
        return torch.zeros_like(rows)

    def before_round(
        self, fed: Federation, state: State, rows: Tensor, *, round: int, seed: int
    ) -> State:
        """Return the state as it is: clients have nothing to decide."""
        return state

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the received shared leaves and the client's own, ``[clients, ...]``."""
        received = {n: t.expand(len(rows), *t.shape) for n, t in state.shared.items()}
        return {**received, **{n: t[rows] for n, t in state.local.items()}}

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return what a client knows besides its batch: here nothing."""
        return {}

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return what every client knows besides its batch: here nothing."""
        return {}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains every leaf."""
        return (Phase(self.client, self.epochs, self.batch_size),)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return nothing: no leaf stands still."""
        return Known({}, {})

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        x, y, noise = batch["x"], batch["y"], batch.get("noise")
        if net.says_p:
            return -mean(at_label(net.logp(params, x, noise), y), batch["weight"])
        return mean_cross_entropy(net(params, x, noise), y, batch["weight"])

    def client_statistics(
        self, fed: Federation, rows: Tensor, after: Params, context: Params
    ) -> Params:
        """Return nothing: a client's examples show in its leaves only."""
        return {}

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return before - after of the shared leaves that some phase trains, to be sent."""
        local = {n for n in before if self.is_local(n)}
        moved = {n for phase in self.phases() for n in phase.moves(before, local)}
        return {}, {n: before[n] - after[n] for n in before if n in moved - local}

    def weights(
        self, fed: Federation, state: State, rows: Tensor, messages: Params
    ) -> dict[str, Tensor]:
        """Return p(s) = N_s / N_S' for every shared leaf."""
        p = self.share(fed, rows)
        return {n: p for n in state.shared if n in messages}

    def share(self, fed: Federation, rows: Tensor) -> Tensor:
        """Return p(s) over the cohort, float64 ``[clients]``."""
        n = fed.sizes[rows]
        n = n if self.weighting == "size" else torch.ones_like(n)
        return n / n.sum()

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Step the server's optimiser along the weighted mean of the messages.

        A leaf without message stands still; so does an expert (a row k of a leaf with weights
        ``[clients, K]``) to which no client gives any weight.
        """
        weights = self.weights(fed, state, rows, messages)
        gradients = {n: weighted_sum(w, messages[n]) for n, w in weights.items()}
        asleep = {n: w.sum(0) == 0 for n, w in weights.items() if w.ndim == 2}
        gradients = self.regularise(fed, state, gradients)
        shared, optimizer = server_step(
            self.server, state.shared, gradients, state.optimizer, asleep
        )
        return replace(state, shared=shared, optimizer=optimizer)

    def regularise(self, fed: Federation, state: State, gradients: Params) -> Params:
        """Return the pseudo-gradients with what the server itself adds: here nothing."""
        return gradients

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the bytes down and up per client, counted from the tensors exchanged."""
        down = sum(t.numel() * t.element_size() for t in state.shared.values())
        up = sum(t[0].numel() * t.element_size() for t in messages.values())
        return torch.full((len(rows),), down), torch.full((len(rows),), up)

    def assign_models(self, fed: Federation, state: State, *, judging: bool = False) -> State:
        """Return the state as it is: everybody predicts with what the server has."""
        return state

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the global model's log-probabilities, which every client shares."""
        return {"logp": net.logp(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the global model's prediction."""
        return Prediction.single(code["logp"])

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return a client's prediction p(y|x, s) for a newcomer's examples."""
        return {"p": self.predict(net, params, ctx, code).logp.exp()}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return the logarithm of the mean prediction."""
        return votes["p"].log()

    def log_density(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return zeros: an algorithm without a model of x weighs votes by p(s) alone."""
        first = next(iter(code.values()))
        return first.new_zeros(len(first), dtype=torch.float32)

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return what is worth logging besides accuracies: here nothing."""
        return {}


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
