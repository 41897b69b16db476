"""Optimisers as values, for clients and the server; torch.optim computes their steps."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.optim.adam import adam as adam_step
from torch.optim.adamw import adamw as adamw_step
from torch.optim.sgd import sgd as sgd_step

from fedlib.values import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share, value

Params = dict[str, Tensor]
# Element-wise classes of torch.optim, which update stacked clients independently.
ELEMENTWISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
# Those whose steps a function of torch takes.
_CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
ABSURD = 1e3  # no optimiser of `ELEMENTWISE` has learning rates of this size
_TUNED = ("momentum", "weight_decay", "betas", "eps", "nesterov")


@value
class Schedule:
    """Base class of learning-rate schedules: a factor per round. This one is constantly 1.

    To write another one, inherit from this class and override ``at``::

        @value
        class Halved(Schedule):
            after: int = 50

            def at(self, round: int) -> float:
                return 1.0 if round < self.after else 0.5

    >>> Optimizer(lr=0.1, schedule=Schedule()).at(round=7).lr
    0.1
    """

    def at(self, round: int) -> float:
        """Return the factor by which all learning rates of a round are multiplied.

        Args:
            round: the number of the round, 0 for the first.
        """
        return 1.0


@value
class Step(Schedule):
    """Multiply the learning rate by ``factor`` after every ``every`` rounds.

    Args:
        every: number of rounds between two changes. Default: 10.
        factor: the factor of each change. Default: 0.1.

    >>> [Step(every=2, factor=0.5).at(t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: PositiveInt = 10
    factor: PositiveFloat = 0.1

    def at(self, round: int) -> float:
        """Return the factor of a round."""
        return self.factor ** (round // self.every)


@value
class Cosine(Schedule):
    """Cosine annealing of the learning rate, after a linear warmup.

        (t + 1) / (warmup + 1)                                         for t < warmup
        least + (1 - least) (1 + cos(pi (t - warmup) / rounds)) / 2    for the next ``rounds``
        least                                                          after these

    Args:
        rounds: length of the annealing in rounds, without the warmup. Default: 100.
        least: the final factor, in [0, 1]. Default: 0.
        warmup: length of the warmup in rounds. Default: 0.

    Reference: Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, ICLR
    2017, eq. 5, without restarts.

    >>> [round(Cosine(rounds=2, warmup=1).at(t), 2) for t in range(5)]
    [0.5, 1.0, 0.5, 0.0, 0.0]
    """

    rounds: PositiveInt = 100
    least: Share = 0.0
    warmup: NonNegativeInt = 0

    def at(self, round: int) -> float:
        """Return the factor of a round."""
        if round < self.warmup:
            return (round + 1) / (self.warmup + 1)
        done = min((round - self.warmup) / self.rounds, 1.0)
        return self.least + (1 - self.least) * (1 + math.cos(math.pi * done)) / 2


@value
class Optimizer:
    """An optimiser and its settings, for clients or the server.

    All supported optimisers are element-wise, so that clients whose parameters are stacked are
    updated independently of each other. ``sgd`` and ``adam`` are shorter ways to write the common
    ones.

    Args:
        name: "sgd", "adam", "adamw", or the name of a class of ``torch.optim`` (``ELEMENTWISE``),
            for which settings left at their defaults here take the class's defaults. Default:
            "sgd".
        lr: the learning rate. A value above 1000, here or in ``rates``, raises a warning.
            Default: 0.05.
        momentum: momentum factor of SGD. Default: 0.
        weight_decay: weight decay. Default: 0.
        betas: decay rates of the two moments of Adam, in [0, 1). Default: (0.9, 0.999).
        eps: added to Adam's denominator. Default: 1e-8.
        rates: pairs (prefix of parameter names, learning rate) that override ``lr``. A prefix that
            matches no parameter raises ValueError when the parameters are known: when the run
            starts, and for models that the server trains, in its first round. Default: none.
        nesterov: whether SGD uses Nesterov momentum. Default: False.
        clip: the maximal norm of a client's gradient over all parameters, or of the server's
            pseudo-gradient; None for no clipping. Default: None.
        schedule: a ``Schedule`` of all learning rates by round. Default: None.
        options: pairs (name, value) of other arguments of the class of ``torch.optim``. Default:
            none.

    Raises:
        ValueError: if torch refuses the settings.

    >>> Optimizer("sgd", lr=0.1, rates=(("head.", 0.01),)).rate("head.bias")
    0.01
    >>> Optimizer(lr=0.1, schedule=Step(every=10, factor=0.5)).at(20).lr
    0.025
    """

    name: Annotated[str, (*_CLASSES, *ELEMENTWISE)] = "sgd"
    lr: NonNegativeFloat = 0.05
    momentum: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    betas: Annotated[tuple[float, float], "[0, 1)"] = (0.9, 0.999)
    eps: NonNegativeFloat = 1e-8
    rates: tuple[tuple[str, float], ...] = ()
    nesterov: bool = False
    clip: PositiveFloat | None = None
    schedule: Schedule | None = None
    options: tuple[tuple[str, bool | float | tuple[float, float]], ...] = ()

    def check(self) -> None:
        for name, rate in self.rates:
            if not rate >= 0:
                raise ValueError(f"the learning rate of {name!r} must be at least 0, got {rate}")
        if max(self.lr, *(lr for _, lr in self.rates), 0.0) > ABSURD:
            what = f"a learning rate is greater than {ABSURD:g}, with which training diverges"
            warnings.warn(what, stacklevel=2)
        # Settings that this optimiser does not have, which torch refuses.
        idle = ("betas", "eps") if self.name == "sgd" else ("momentum",)
        odd = any(getattr(self, n) != vars(Optimizer)[n] for n in idle)
        if self.name in ELEMENTWISE or self.options or self.nesterov or odd:
            try:
                TorchStepper(self, {"": torch.zeros(1)}, None, {})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self}: {error}") from error

    @property
    def is_plain(self) -> bool:
        """Whether every step is -lr times the gradient, in all rounds."""
        more = self.momentum or self.weight_decay or self.clip or self.schedule or self.options
        return self.name == "sgd" and not more

    @property
    def is_functional(self) -> bool:
        """Whether a function of torch takes its steps, from a state that begins at zero."""
        return self.name in _CLASSES and not self.options

    def at(self, round: int) -> Optimizer:
        """Return the optimiser with the learning rates of a round, without a schedule."""
        if self.schedule is None:
            return self
        by = self.schedule.at(round)
        rates = tuple((prefix, lr * by) for prefix, lr in self.rates)
        return replace(self, lr=self.lr * by, rates=rates, schedule=None)

    def build(
        self, params: Params, *, fused: bool = False, memory: Params | None = None
    ) -> Stepper:
        """Return an object that updates parameters in place, step by step.

        Args:
            params: the parameters by name.
            fused: whether to use torch's fused implementation, if there is one. Default: False.
            memory: the optimiser's state, as ``Stepper.memory`` returned it. Default: none.
        """
        if self.is_functional:
            return Stepper(self, params, fused or None, memory or {})
        return TorchStepper(self, params, None, memory or {})

    def rate(self, name: str) -> float:
        """Return the learning rate of the parameter called ``name``."""
        return next((lr for prefix, lr in self.rates if name.startswith(prefix)), self.lr)


class Stepper:
    """An optimiser applied to some parameters, with results equal to torch's bit for bit.

    It calls the functions that torch's classes call. The classes themselves import torch's compiler
    at the first step of a process (about two seconds), and their overhead per step exceeds the time
    of the fused kernel.

    Args:
        kind: the optimiser.
        params: the parameters by name; they are updated in place.
        fused: as torch's argument.
        memory: the optimiser's state, as ``memory`` returned it.
    """

    def __init__(self, kind: Optimizer, params: Params, fused: bool | None, memory: Params) -> None:
        self._kind, self._params, self._fused = kind, params, fused
        self._groups: dict[float, list[str]] = {}
        for name in params:
            self._groups.setdefault(kind.rate(name), []).append(name)
        self._state = self._states()
        for key, tensor in memory.items():
            name, _, quantity = key.rpartition("/")
            if name in params:
                self._state[name][quantity] = tensor.clone()

    def _states(self) -> dict[str, Params]:
        """Return the empty state of every parameter."""
        return {n: {} for n in self._params}

    @property
    def memory(self) -> Params:
        """The optimiser's state as ``{parameter/quantity: tensor}``, to be stored."""
        states = self._state.items()
        return {f"{n}/{k}": t for n, s in states for k, t in s.items() if t is not None}

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for param in self._params.values():
            param.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient; others and their states do not change."""
        move = self._sgd if self._kind.name == "sgd" else self._adam
        for lr, names in self._groups.items():
            awake = {n: w for n in names if (w := self._params[n]).grad is not None}
            if awake:
                move(lr, awake, [g for w in awake.values() if (g := w.grad) is not None])

    def _sgd(self, lr: float, params: Params, grads: list[Tensor]) -> None:
        if any(g.is_sparse for g in grads):  # plain SGD: the fused kernel takes dense ones
            for param, grad in zip(params.values(), grads, strict=True):
                param.add_(grad, alpha=-lr)
            return
        kind, states = self._kind, [self._state[n] for n in params]
        buffers = [s.get("momentum_buffer") for s in states] if kind.momentum else []
        own = {n: getattr(kind, n) for n in ("momentum", "weight_decay", "nesterov")}
        how = {"fused": self._fused, "lr": lr, "dampening": 0.0, "maximize": False, **own}
        sgd_step([*params.values()], grads, buffers, **how)
        for state, buffer in zip(states, buffers, strict=False):
            assert buffer is not None
            state["momentum_buffer"] = buffer

    def _adam(self, lr: float, params: Params, grads: list[Tensor]) -> None:
        kind, states = self._kind, [self._state[n] for n in params]
        for param, state in zip(params.values(), states, strict=True):
            if not state:
                state["step"] = torch.zeros((), device=param.device if self._fused else "cpu")
                state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(param) for _ in "12")
        take = adam_step if kind.name == "adam" else adamw_step
        first, second, steps = ([s[n] for s in states] for n in ("exp_avg", "exp_avg_sq", "step"))
        how: dict[str, Any] = {"fused": self._fused, "lr": lr, "amsgrad": False, "maximize": False}
        how |= {"eps": kind.eps, "weight_decay": kind.weight_decay}
        how |= zip(("beta1", "beta2"), kind.betas, strict=True)
        take([*params.values()], grads, first, second, [], steps, **how)


class TorchStepper(Stepper):
    """The same for any class of ``torch.optim``, by that class."""

    def _states(self) -> dict[str, Params]:
        """Return the state of every parameter, as the object of torch holds it."""
        kind, usual, params = self._kind, vars(Optimizer), self._params
        given = {n: getattr(kind, n) for n in _TUNED if getattr(kind, n) != usual[n]}
        made = getattr(torch.optim, _CLASSES.get(kind.name, kind.name))
        groups = self._groups.items()
        parts = [{"params": [params[n] for n in names], "lr": lr} for lr, names in groups]
        self._engine = made(parts, lr=kind.lr, **given, **dict(kind.options))
        return {n: self._engine.state[w] for n, w in params.items()}

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        self._engine.step()


def sgd(lr: float = 0.05, momentum: float = 0.0, **other: Any) -> Optimizer:
    """Return stochastic gradient descent. At the server, ``lr=1`` is plain averaging.

    Args:
        lr: the learning rate. Default: 0.05.
        momentum: the momentum factor. Default: 0.
        other: other fields of ``Optimizer``.

    >>> FedAvg(client=sgd(lr=0.1, weight_decay=1e-4), server=sgd(lr=1.0))
    FedAvg(client=Optimizer(lr=0.1, weight_decay=0.0001))
    """
    return Optimizer("sgd", lr=lr, momentum=momentum, **other)


def adam(lr: float = 1e-3, **other: Any) -> Optimizer:
    """Return Adam with the defaults of torch.

    Args:
        lr: the learning rate. Default: 0.001.
        other: other fields of ``Optimizer``.

    >>> FedAvg(server=adam(0.01, schedule=Cosine(rounds=20))).server.name
    'adam'
    """
    return Optimizer("adam", lr=lr, **other)


def server_step(
    optimizer: Optimizer,
    params: Params,
    gradients: Params,
    memory: Params,
    frozen_rows: dict[str, Tensor] | None = None,
) -> tuple[Params, Params]:
    """Update the server's parameters along aggregated pseudo-gradients.

    Args:
        optimizer: the server's optimiser.
        params: the parameters by name.
        gradients: pseudo-gradients by name. A parameter without one does not change.
        memory: the optimiser's state as ``{parameter/row/quantity: tensor}``.
        frozen_rows: bool ``[K]`` by name of a parameter ``[K, ...]``: the rows that do not change,
            such as experts that no client used, which momentum alone would move. Default: none.

    Returns:
        The new parameters and the new state of the optimiser.
    """
    if not gradients:
        return params, memory
    parts: dict[str, tuple[Tensor, Tensor | None]] = {}
    frozen = _lists(frozen_rows or {})
    for name, param in params.items():
        parts |= _parts(name, param, gradients.get(name), frozen.get(name))
    moved = {label: w.detach().clone() for label, (w, _) in parts.items()}
    for label, (w, gradient) in parts.items():
        if gradient is not None:
            moved[label].requires_grad_().grad = gradient.to(w.dtype)
    if optimizer.clip is not None:
        torch.nn.utils.clip_grad_norm_(moved.values(), optimizer.clip)
    engine = optimizer.build(moved, memory=memory)
    engine.step()
    return _join(params, moved), engine.memory


def _lists(flags: dict[str, Tensor]) -> dict[str, list[bool]]:
    """Return flags as lists, with one synchronisation of a GPU."""
    given = torch.cat([*flags.values()]).tolist() if flags else []
    ends = list(accumulate(len(t) for t in flags.values()))
    return {n: given[end - len(t) : end] for (n, t), end in zip(flags.items(), ends, strict=True)}


def _parts(
    name: str, param: Tensor, gradient: Tensor | None, frozen_rows: list[bool] | None
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the independently updated parts of a parameter: its rows if some are frozen."""
    if gradient is None or frozen_rows is None:
        return {f"{name}/-": (param, gradient)}
    rows = zip(param, gradient, frozen_rows, strict=True)
    return {f"{name}/{k}": (w, None if still else g) for k, (w, g, still) in enumerate(rows)}


def _join(params: Params, moved: Params) -> Params:
    out = {}
    for name in params:
        rows = [w.detach() for label, w in moved.items() if label.rpartition("/")[0] == name]
        out[name] = rows[0] if f"{name}/-" in moved else torch.stack(rows)
    return out
