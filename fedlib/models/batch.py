"""``Batch``: the mini-batch of one client in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

Params = dict[str, Tensor]


class Statistics:
    """Records the running statistics that networks update in one training step.

    Args:
        params: the running statistics before the step, by name.

    Attributes:
        after: the running statistics after the last forward pass, by name.
        used: whether a network has run in train mode.
    """

    def __init__(self, params: Params) -> None:
        self.after, self.used = dict(params), False
        self._names = {id(t): name for name, t in params.items()}

    def name(self, param: Tensor) -> str | None:
        """Return the name of a running statistic; None for any other tensor."""
        return self._names.get(id(param))


@dataclass(eq=False)
class Batch:
    """The mini-batch of one client; inside the engine the client is an additional first axis.

    Args:
        x: examples ``[B, ...]``; None if ``precomputed`` replaces them.
        y: labels ``[B]``.
        weight: weight of each example ``[B]``; 0 for padding.
        noise: all uniform random numbers of a step; a network uses the last ones for dropout.
            Default: None.
        random: uniform random numbers ``[B, numbers]`` that a phase requests, by name.
        side: side information ``[B]`` by name.
        precomputed: the result of the loss's ``precompute`` for these examples, ``[B, ...]`` each,
            by name.
        statistics: records the running statistics that networks update in this step. Default: None.

    >>> batch = Batch(x=torch.zeros(2, 3), y=torch.tensor([0, 1]), weight=torch.ones(2))
    >>> batch.y is batch["y"], batch.side
    (True, {})
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    noise: Tensor | None = None
    random: Params = field(default_factory=dict)
    side: Params = field(default_factory=dict)
    precomputed: Params = field(default_factory=dict)
    statistics: Statistics | None = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with ``fn`` applied to every tensor."""
        own: Any = (t if t is None else fn(t) for t in (self.x, self.y, self.weight, self.noise))
        groups = self.random, self.side, self.precomputed
        return Batch(*own, *({n: fn(t) for n, t in group.items()} for group in groups))


# A batch is a pytree so that vmap accepts it. It is flat, as every level costs time in every step.
_OWN, _GROUPS = ("x", "y", "weight", "noise"), ("random", "side", "precomputed")


def _flatten(batch: Batch) -> tuple[list[Tensor], list[tuple[str, str]]]:
    fields = vars(batch)
    leaves = [("", n, t) for n in _OWN if (t := fields[n]) is not None]
    for group in _GROUPS:
        leaves += [(group, n, t) for n, t in fields[group].items()]
    return [t for _, _, t in leaves], [(group, n) for group, n, _ in leaves]


def _unflatten(tensors: Iterable[Any], names: list[tuple[str, str]]) -> Batch:
    absent: Any = None
    made = Batch(absent, absent, absent)
    for (group, name), t in zip(names, tensors, strict=True):
        if group:
            getattr(made, group)[name] = t
        else:
            setattr(made, name, t)
    return made


pytree.register_pytree_node(Batch, _flatten, _unflatten)
