"""What one client sees in one step: its examples, and all that belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

Params = dict[str, Tensor]


class Statistics:
    """Records the running statistics that a network in training moves: the leaves of one step.

    ``first_stage`` are their values as the last forward pass left them, by the names of ``leaves``;
    ``used`` says whether a network has run in training at all.
    """

    def __init__(self, leaves: Params) -> None:
        self.after, self.used = dict(leaves), False
        self._names = {id(t): name for name, t in leaves.items()}

    def name(self, leaf: Tensor) -> str | None:
        """Return what a tensor is called among the leaves that move; None for any other."""
        return self._names.get(id(leaf))


@dataclass(eq=False)
class Batch:
    """The mini-batch of ONE client; between the engine's own functions clients are a first axis.

    ``x`` are the examples ``[B, ...]`` (None where what is precomputed takes their place), ``y``
    their labels ``[B]``, and ``weight`` ``[B]`` is 0 for padding. ``random`` are the uniform
    numbers that a phase asks for by name, ``[B, numbers]`` each; ``noise`` all numbers of a step,
    of which a network takes the last to drop units. ``side`` is side information ``[B]`` and
    ``precomputed`` what the loss's ``precompute`` said of the examples, ``[B, ...]``, by name.
    ``statistics`` records what the networks of a step of training move.

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
        """Return the batch with ``fn`` of every tensor."""
        own: Any = (t if t is None else fn(t) for t in (self.x, self.y, self.weight, self.noise))
        groups = self.random, self.side, self.precomputed
        return Batch(*own, *({n: fn(t) for n, t in group.items()} for group in groups))


# As leaves of a tree, so that vmap takes a batch: one level, as every other costs at every step.
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
