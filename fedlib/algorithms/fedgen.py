"""FedGen: a generator at the server says what features of a label look like (Zhu et al., 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from fedlib.algorithms.fedavg import (
    FedAvg,
    mean_cross_entropy,
    one_hot,
    placed,
    weighted_sum,
)
from fedlib.engine import Phase, State, noise_of
from fedlib.federation import Federation
from fedlib.models import Net, Params, drawn, named, part
from fedlib.optim import Optimizer, adam, recall, remembered
from fedlib.randomness import torch_seed
from fedlib.values import value

MADE = "generator."
POOL = "pool"  # p(y) over all clients, cumulated
DRAW = "server/seed"
FITTED = "server/fit:"  # what the generator's optimiser remembers, leaf/quantity


@value
class FedGen(FedAvg):
    """FedAvg whose clients also learn from features that a shared generator invents.

    The generator G takes ``noise`` uniform numbers and a one-hot label through a hidden layer of
    ``hidden`` units with batch normalisation to the features that the output layer reads. After
    every round the server fits it for ``steps`` of ``fit``, ``invented`` features at a time: the
    clients' output layers, together, should see the label in them (their mean logits are those of
    their mean, as they are linear). ``fit`` is one optimiser for all rounds, whose moments the
    server keeps, as in Zhu et al.'s code and in PFLlib. A client adds ``alpha`` times the
    cross-entropy of its output layer on as many invented examples as real ones. Labels are drawn
    from the counts of all clients, which the server knows: a leak by design.

    Zhu et al.'s code also has a distillation, a diversity term and fading weights, which are not in
    the paper's objective, nor here.
    """

    noise: int = 512
    hidden: int = 512
    fit: Optimizer = adam(5e-3)
    steps: int = 1000
    invented: int = 10
    alpha: float = 1.0

    def check(self) -> None:
        FedAvg.check(self)
        for name in ("noise", "hidden", "invented"):
            if getattr(self, name) < 1:
                raise ValueError(f"FedGen.{name} must be >= 1, got {getattr(self, name)}")
        for name in ("steps", "alpha"):
            if getattr(self, name) < 0:
                raise ValueError(f"FedGen.{name} must be >= 0, got {getattr(self, name)}")

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model and the generator."""
        made = drawn(
            lambda: {
                "first": nn.Linear(self.noise + fed.classes, self.hidden),
                "norm": nn.BatchNorm1d(self.hidden),
                "last": nn.Linear(self.hidden, fed.net.width),
            },
            torch_seed(seed, "model", 1),
        )
        return {**FedAvg.leaves(self, fed, seed), **placed(named(made, MADE), fed)}

    def before_round(
        self, fed: Federation, state: State, rows: Tensor, *, round: int, seed: int
    ) -> State:
        """Return the state with the seed of the server's draws in this round."""
        draw = torch.tensor(torch_seed(seed, "server", round))
        return replace(state, memory={**state.memory, DRAW: draw})

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the share of the labels up to each one."""
        return {POOL: self._pool(fed)}

    def _pool(self, fed: Federation) -> Tensor:
        counts = fed.train.counts(fed.classes).sum(0).to(torch.float64)
        return (counts.cumsum(0) / counts.sum()).to(torch.float32)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains the model; the generator is the server's."""
        names = ("base.", "head.")
        numbers = (("generator", self.noise), ("label", 1))
        return (Phase(self.client, self.epochs, self.batch_size, train=names, noise=numbers),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy on real examples and on invented ones."""
        y, weight = batch["y"], batch["weight"]
        made = part(params, MADE)
        invented = (batch[noise_of("label")] >= ctx[POOL]).sum(-1).clamp(max=net.classes - 1)
        z = generate(made, batch[noise_of("generator")], invented, net.classes, weight)
        on_made = mean_cross_entropy(net.logits(params, z), invented, weight)
        on_real = mean_cross_entropy(net(params, batch["x"], batch.get("noise")), y, weight)
        return on_real + self.alpha * on_made

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Fit the generator to the clients' output layers, then average the models."""
        p = self.share(fed, rows)
        heads = named(part(state.shared, "head."), "head.")
        heads = {n: t - weighted_sum(p, messages[n]) for n, t in heads.items()}
        made, fitted = self._fitted(fed, state, heads)
        after = FedAvg.aggregate(self, fed, state, rows, messages)
        memory = {**after.memory, **named(fitted, FITTED)}
        return replace(after, shared={**after.shared, **named(made, MADE)}, memory=memory)

    def _fitted(self, fed: Federation, state: State, heads: Params) -> tuple[Params, Params]:
        """Return the generator after its steps, and what its optimiser remembers of them.

        ``heads`` is the clients' mean output layer.
        """
        draw = torch.Generator().manual_seed(int(state.memory[DRAW]))
        made = {n: t.clone().requires_grad_() for n, t in part(state.shared, MADE).items()}
        optimizer, pool = self.fit.build(made), self._pool(fed)
        recall(optimizer, made, part(state.memory, FITTED))
        weight = torch.ones(self.invented, device=fed.device)
        for _ in range(self.steps):
            u = torch.rand(self.invented, self.noise + 1, generator=draw).to(fed.device)
            y = (u[:, self.noise, None] >= pool).sum(-1).clamp(max=fed.classes - 1)
            with torch.enable_grad():
                z = generate(made, u[:, : self.noise], y, fed.classes, weight)
                loss = cross_entropy(fed.net.logits(heads, z), y)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        return {n: t.detach() for n, t in made.items()}, remembered(optimizer, made)


def generate(made: Params, noise: Tensor, y: Tensor, classes: int, weight: Tensor) -> Tensor:
    """Return invented features ``[B, D]`` of labels ``[B]`` from uniform ``noise [B, n]``.

    Normalised with the mean and variance of the examples with ``weight`` 1.
    """
    labels = one_hot(y, classes).to(noise.dtype)
    h = linear(torch.cat([noise, labels], -1), made["first.weight"], made["first.bias"])
    w = (weight / weight.sum().clamp(min=1)).unsqueeze(-1)
    center = h - (w * h).sum(0)
    h = center * ((w * center**2).sum(0) + 1e-5).rsqrt() * made["norm.weight"] + made["norm.bias"]
    return linear(relu(h), made["last.weight"], made["last.bias"])
