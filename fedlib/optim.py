"""Optimisers as values, for clients and server alike: torch.optim does the work."""

import torch
from torch import Tensor
from torch.optim.adam import adam as adam_step
from torch.optim.adamw import adamw as adamw_step
from torch.optim.sgd import sgd as sgd_step

from fedlib.values import value, within

Params = dict[str, Tensor]


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
        name=("sgd", "adam", "adamw"),
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

    def build(
        self, leaves: Params, *, fused: bool = False, memory: Params | None = None
    ) -> "Stepper":
        """Return what moves ``leaves`` along their gradients, step by step.

        ``fused`` asks for the variant that moves all leaves in one pass, where torch has one;
        ``memory`` is what another ``Stepper`` over such leaves remembered.
        """
        return Stepper(self, leaves, fused or None, memory or {})

    def rate(self, name: str) -> float:
        """Return the learning rate of the leaf called ``name``."""
        return next((lr for prefix, lr in self.rates if name.startswith(prefix)), self.lr)


class Stepper:
    """An optimiser and the ``leaves`` that it moves, with the bits of torch's own.

    It calls the functions that torch's classes call. These import torch's compiler at the first
    step of a process (two seconds, and about 800 modules), and at each they take longer over their
    own work than the fused kernel over the leaves.
    """

    def __init__(self, kind: Optimizer, leaves: Params, fused: bool | None, memory: Params) -> None:
        self._kind, self._leaves, self._fused = kind, leaves, fused
        self._groups: dict[float, list[str]] = {}
        for name in leaves:
            self._groups.setdefault(kind.rate(name), []).append(name)
        self._state: dict[str, Params] = {n: {} for n in leaves}
        for key, tensor in memory.items():
            name, _, quantity = key.rpartition("/")
            if name in leaves:
                self._state[name][quantity] = tensor.clone()

    @property
    def memory(self) -> Params:
        """What it remembers of its leaves, ``{leaf/quantity: tensor}``, to be stored."""
        return {f"{n}/{k}": t for n, state in self._state.items() for k, t in state.items()}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for leaf in self._leaves.values():
            leaf.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every leaf that has a gradient; another stands still with all that belongs to it."""
        move = self._sgd if self._kind.name == "sgd" else self._adam
        for lr, names in self._groups.items():
            awake = {n: w for n in names if (w := self._leaves[n]).grad is not None}
            if awake:
                move(lr, awake, [g for w in awake.values() if (g := w.grad) is not None])

    def _sgd(self, lr: float, leaves: Params, grads: list[Tensor]) -> None:
        kind, states = self._kind, [self._state[n] for n in leaves]
        buffers = [s.get("momentum_buffer") for s in states] if kind.momentum else []
        sgd_step(
            [*leaves.values()],
            grads,
            buffers,
            fused=self._fused,
            lr=lr,
            momentum=kind.momentum,
            weight_decay=kind.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for state, buffer in zip(states, buffers, strict=False):
            assert buffer is not None
            state["momentum_buffer"] = buffer

    def _adam(self, lr: float, leaves: Params, grads: list[Tensor]) -> None:
        kind, states = self._kind, [self._state[n] for n in leaves]
        for leaf, state in zip(leaves.values(), states, strict=True):
            if not state:
                state["step"] = torch.zeros((), device=leaf.device if self._fused else "cpu")
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(leaf) for _ in "12")
        (adam_step if kind.name == "adam" else adamw_step)(
            [*leaves.values()],
            grads,
            *([s[q] for s in states] for q in ("exp_avg", "exp_avg_sq")),
            max_exp_avg_sqs=[],
            state_steps=[s["step"] for s in states],
            fused=self._fused,
            lr=lr,
            beta1=kind.betas[0],
            beta2=kind.betas[1],
            eps=kind.eps,
            weight_decay=kind.weight_decay,
            amsgrad=False,
            maximize=False,
        )


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
    engine = optimizer.build(moved, memory=memory)
    engine.step()
    return _join(leaves, moved), engine.memory


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
