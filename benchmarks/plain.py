"""Federated rounds as they are usually written in PyTorch.

There is one DataLoader and one deep copy of the model per client, a plain training loop, and an
average of state dicts. Unlike in usual code, images are normalised once in advance, and not one by
one in every epoch.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedlib.federation import Federation
from fedlib.optim import Optimizer


@dataclass(eq=False)
class Client:
    """A client's data, its label shares p(y|s), and its gate, if it has one."""

    loader: DataLoader[tuple[Tensor, ...]]
    size: int
    p_y: Tensor
    gate: nn.Module | None = None


def clients_of(fed: Federation, batch_size: int) -> list[Client]:
    """Return the federation's clients with their own loaders, whose data are in main memory."""
    made = []
    for held in map(fed.train.client, range(fed.num_clients)):
        x, y = fed.train.inputs(held).contiguous().cpu(), fed.train.y[held].cpu()
        loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
        p_y = torch.bincount(y, minlength=fed.classes) / len(y)
        made.append(Client(loader, len(y), p_y.to(fed.device)))
    return made


def usual(model: nn.Module) -> nn.Module:
    """Return the model with PyTorch's LSTM in place of fedlib's own steps."""
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            module.forward = MethodType(_last_states, module)
    return model


def _last_states(lstm: nn.LSTM, x: Tensor) -> Tensor:
    _, (states, _) = nn.LSTM.forward(lstm, x)
    return states.transpose(0, 1).flatten(1)


def draw(clients: Sequence[Client], cohort: int, rng: np.random.Generator) -> list[Client]:
    """Return a random cohort."""
    return [clients[i] for i in rng.choice(len(clients), cohort, replace=False)]


def optimizer_of(
    choice: Optimizer, model: nn.Module, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return torch's SGD or Adam for the parameters of a module."""
    if choice.name == "sgd":
        how = {"momentum": choice.momentum, "weight_decay": choice.weight_decay}
        return torch.optim.SGD(model.parameters(), choice.lr, fused=fused, **how)
    assert choice.name == "adam", choice
    how = {"eps": choice.eps, "weight_decay": choice.weight_decay}
    return torch.optim.Adam(model.parameters(), choice.lr, choice.betas, fused=fused, **how)


def fedavg_round(
    model: nn.Module, cohort: Sequence[Client], choice: Optimizer, epochs: int = 1
) -> None:
    """Train a copy of ``model`` at every client; load the weighted average into ``model``."""
    device = next(model.parameters()).device
    total = sum(client.size for client in cohort)
    states = []
    for client in cohort:
        local = copy.deepcopy(model)
        optimizer = optimizer_of(choice, local)
        for _ in range(epochs):
            for x, y in client.loader:
                x, y = x.to(device), y.to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(x), y).backward()
                optimizer.step()
        states.append(local.state_dict())
    shares = [client.size / total for client in cohort]
    model.load_state_dict(
        {n: sum(p * s[n] for p, s in zip(shares, states, strict=True)) for n in states[0]}
    )


@dataclass(eq=False)
class Memory:
    """All examples as floats; images ``[N, height, width, channels]``, the fastest layout.

    They take four times the memory of the bytes in a federation. ``rows`` has the indices of each
    client's examples.
    """

    x: Tensor
    y: Tensor
    rows: list[Tensor]


def memory_of(fed: Federation) -> Memory:
    """Return the federation's examples, normalised in advance."""
    x = fed.train.inputs(torch.arange(len(fed.train.y), device=fed.device))
    x = x.movedim(-3, -1) if x.ndim == 4 else x
    return Memory(x.contiguous(), fed.train.y, [*map(fed.train.client, range(fed.num_clients))])


def tight_round(
    model: nn.Module,
    memory: Memory,
    cohort: Sequence[int],
    batch: int,
    choice: Optimizer,
    epochs: int,
) -> None:
    """Play the round of `fedavg_round` with one module, a fused optimiser, and no loader."""
    leaves = dict(model.named_parameters())
    begun = {n: w.detach().clone() for n, w in leaves.items()}
    mean = {n: torch.zeros_like(w) for n, w in begun.items()}
    total = sum(len(memory.rows[i]) for i in cohort)
    for i in cohort:
        with torch.no_grad():
            for n, w in leaves.items():
                w.copy_(begun[n])
        optimizer, rows = optimizer_of(choice, model, fused=True), memory.rows[i]
        for _ in range(epochs):
            for some in rows[torch.randperm(len(rows), device=rows.device)].split(batch):
                x = memory.x[some]
                x = x.movedim(-1, -3) if x.ndim == 4 else x
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), memory.y[some]).backward()
                optimizer.step()
        for n, w in leaves.items():
            mean[n].add_(w.detach(), alpha=len(rows) / total)
    with torch.no_grad():
        for n, w in leaves.items():
            w.copy_(mean[n])


class Mixture(nn.Module):
    """K experts, each with ``base`` and ``head``, and q(z|y); the gates belong to the clients."""

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        head = experts[0].head
        self.width, self.classes = head.in_features, head.out_features
        self.phi = nn.Parameter(torch.zeros(self.classes, len(experts)))

    def new_gate(self) -> nn.Module:
        """Return a gate with uniform output."""
        gate = nn.Linear(self.width, len(self.experts))
        nn.init.zeros_(gate.weight)
        nn.init.zeros_(gate.bias)
        return gate.to(self.phi.device)

    def loss(self, gate: nn.Module, x: Tensor, y: Tensor, p_y: Tensor) -> Tensor:
        """Return the negative bound of the FedMix paper's eq. 6, without the entropy of q."""
        h = torch.stack([expert.base(x) for expert in self.experts], 1)
        logits = [e.head(h[:, k]) for k, e in enumerate(self.experts)]
        logp = torch.stack(logits, 1).log_softmax(-1)
        at_label = logp[torch.arange(len(y)), :, y]
        q = self.phi.softmax(-1)
        pool = (p_y @ q).detach()
        route = gate((pool[:, None] * h).sum(1)).log_softmax(-1)
        return -(q[y] * (at_label + route)).sum(1).mean()


def add_gates(clients: Sequence[Client], mixture: Mixture) -> None:
    """Give every client a gate of its own."""
    for client in clients:
        client.gate = mixture.new_gate()


def label_shares(clients: Sequence[Client]) -> Tensor:
    """Return p(y) over all clients."""
    return sum(c.size * c.p_y for c in clients) / sum(c.size for c in clients)


def fedmix_round(
    mixture: Mixture,
    server: torch.optim.Optimizer,
    cohort: Sequence[Client],
    lr: float,
    prior: Tensor,
) -> None:
    """Play algorithm 1 of the FedMix paper with lambda_H = 1; ``server`` updates ``mixture``."""
    locals_ = [_train(mixture, client, lr) for client in cohort]
    total = sum(client.size for client in cohort)
    p = torch.tensor([client.size / total for client in cohort], device=prior.device)
    with torch.no_grad():
        q = torch.stack([c.p_y @ m.phi.softmax(-1) for c, m in zip(cohort, locals_, strict=True)])
        given = q * p[:, None] / (q * p[:, None]).sum(0)  # p(s|z)
    server.zero_grad()
    marginal = prior @ mixture.phi.softmax(-1)
    (marginal * marginal.log()).sum().backward()  # -H: descending raises the entropy
    for weight, local in zip(p, locals_, strict=True):
        mixture.phi.grad += weight * (mixture.phi - local.phi).detach()
    for k, expert in enumerate(mixture.experts):
        twins = zip(*(m.experts[k].parameters() for m in locals_), strict=True)
        for w, own in zip(expert.parameters(), twins, strict=True):
            w.grad = sum(g * (w - v).detach() for g, v in zip(given[:, k], own, strict=True))
    server.step()


def _train(mixture: Mixture, client: Client, lr: float) -> Mixture:
    local = copy.deepcopy(mixture)
    assert client.gate is not None
    optimizer = torch.optim.SGD([*local.parameters(), *client.gate.parameters()], lr=lr)
    for x, y in client.loader:
        x, y = x.to(local.phi.device), y.to(local.phi.device)
        optimizer.zero_grad()
        local.loss(client.gate, x, y, client.p_y).backward()
        optimizer.step()
    return local
