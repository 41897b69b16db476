"""Optimisers as values, for clients and server alike: torch.optim does the work."""

from typing import Any

import torch
from torch import Tensor

from fedlib.values import value, within

Params = dict[str, Tensor]
# The optimisers and the fields that they read.
_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "sgd": (torch.optim.SGD, ("momentum", "weight_decay")),
    "adam": (torch.optim.Adam, ("betas", "eps", "weight_decay")),
    "adamw": (torch.optim.AdamW, ("betas", "eps", "weight_decay")),
}


@value
class Optimizer:
    """Which optimiser moves some leaves, with per-leaf rates.

    ``rates`` are pairs (prefix of a leaf's name, learning rate) that override ``lr``. Stacked
    leaves need no special care: every optimiser here is element-wise, so that each client, a row,
    is moved as if it were alone.

    ``name`` is "sgd", with ``momentum``, "adam" or "adamw", with ``betas`` and ``eps``; ``lr`` and
    ``weight_decay`` are all of theirs.

    >>> Optimizer("sgd", lr=0.1, rates=(("head.", 0.01),)).rate("head.bias")
    0.01
    """

    limits = within(
        name=tuple(_KINDS),
        lr=">= 0",
        momentum=">= 0",
        weight_decay=">= 0",
        eps=">= 0",
        betas="[0, 1)",
    )
    name: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    rates: tuple[tuple[str, float], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether a step is -lr times the gradient: SGD without momentum and weight decay."""
        return self.name == "sgd" and not self.momentum and not self.weight_decay

    def build(self, leaves: Params, *, fused: bool = False) -> torch.optim.Optimizer:
        """Return the torch optimiser over ``leaves``, one parameter group per rate.

        ``fused`` asks for the variant that moves all leaves in one pass, where torch has one.
        """
        groups: dict[float, list[Tensor]] = {}
        for name, leaf in leaves.items():
            groups.setdefault(self.rate(name), []).append(leaf)
        kind, names = _KINDS[self.name]
        options = {name: getattr(self, name) for name in names}
        parts = [{"params": p, "lr": lr} for lr, p in groups.items()]
        return kind(parts, lr=self.lr, fused=fused or None, **options)

    def rate(self, name: str) -> float:
        """Return the learning rate of the leaf called ``name``."""
        return next((lr for prefix, lr in self.rates if name.startswith(prefix)), self.lr)


def sgd(lr: float = 0.05, momentum: float = 0.0) -> Optimizer:
    """Return stochastic gradient descent; at a server with ``lr=1`` it is plain averaging.

    Args:
        lr: the learning rate.
        momentum: of the last steps, 0 for none.

    >>> FedAvg(client=sgd(lr=0.1, momentum=0.9), server=sgd(lr=1.0))
    FedAvg(client=Optimizer(lr=0.1, momentum=0.9))
    """
    return Optimizer("sgd", lr=lr, momentum=momentum)


def adam(lr: float = 1e-3) -> Optimizer:
    """Return Adam with PyTorch's defaults.

    Args:
        lr: the learning rate.

    >>> FedAvg(server=adam(0.01)).server.name
    'adam'
    """
    return Optimizer("adam", lr=lr)


def server_step(
    optimizer: Optimizer,
    leaves: Params,
    gradients: Params,
    memory: Params,
    asleep: dict[str, Tensor] | None = None,
) -> tuple[Params, Params]:
    """Move the global ``leaves`` along aggregated pseudo-gradients; return leaves and memory.

    A leaf without gradient stands still, and so does every row k of a leaf for which
    ``asleep[name][k]`` is true (an expert that no client used: moving it by momentum alone would be
    wrong). ``memory`` holds the optimiser's state as ``{leaf/row/quantity: tensor}``, so that it
    can be stored.
    """
    if not gradients:
        return leaves, memory
    parts: dict[str, tuple[Tensor, Tensor | None]] = {}
    for name, leaf in leaves.items():
        parts |= _parts(name, leaf, gradients.get(name), (asleep or {}).get(name))
    moved = {label: w.detach().clone().requires_grad_(True) for label, (w, _) in parts.items()}
    for label, (w, gradient) in parts.items():
        moved[label].grad = None if gradient is None else gradient.to(w.dtype)
    engine = optimizer.build(moved)
    recall(engine, moved, memory)
    engine.step()
    return _join(leaves, moved), remembered(engine, moved)


def recall(engine: torch.optim.Optimizer, leaves: Params, memory: Params) -> None:
    """Give an optimiser over ``leaves`` back what ``remembered`` returned of one before it."""
    for key, tensor in memory.items():
        name, _, quantity = key.rpartition("/")
        if name in leaves:
            engine.state[leaves[name]][quantity] = tensor.clone()


def remembered(engine: torch.optim.Optimizer, leaves: Params) -> Params:
    """Return an optimiser's state over ``leaves`` as ``{leaf/quantity: tensor}``, to be stored."""
    return {
        f"{n}/{k}": t
        for n, w in leaves.items()
        for k, t in engine.state[w].items()
        if t is not None
    }


def _parts(
    name: str, leaf: Tensor, gradient: Tensor | None, asleep: Tensor | None
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return what of a leaf moves on its own: its rows if some may sleep, else the whole."""
    if gradient is None or asleep is None:
        return {f"{name}/-": (leaf, gradient)}
    rows = zip(leaf, gradient, asleep.tolist(), strict=True)
    return {f"{name}/{k}": (w, None if still else g) for k, (w, g, still) in enumerate(rows)}


def _join(leaves: Params, moved: Params) -> Params:
    out = {}
    for name in leaves:
        rows = [w.detach() for label, w in moved.items() if label.rpartition("/")[0] == name]
        out[name] = rows[0] if f"{name}/-" in moved else torch.stack(rows)
    return out
