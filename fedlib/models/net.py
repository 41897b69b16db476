"""A model as pure functions of its parameters: what the algorithms see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

Leaves = dict[str, Tensor]


class Classifier(nn.Module):
    """A feature extractor ``base`` followed by a linear output layer ``head``."""

    def __init__(self, base: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, classes]`` of a batch ``[B, ...]``."""
        return self.head(self.base(x))


class Net:
    """The functions of a classifier, parameters first: ``net(params, x)``.

    ``width`` is the length D of the features h(x), the input of the output layer.
    """

    def __init__(self, spec: Any, shape: tuple[int, ...], classes: int) -> None:
        self._spec, self.shape, self.classes = spec, shape, classes
        self.module = self._make(0)
        self.width = self.module.head.in_features
        self.has_convolutions = any(isinstance(m, nn.Conv2d) for m in self.module.modules())

    def _make(self, seed: int) -> Classifier:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            base, width = self._spec.base(self.shape)
            return Classifier(base, width, self.classes)

    def init(self, seed: int) -> Leaves:
        """Return fresh parameters (PyTorch's default initialisation) drawn from ``seed``."""
        return {n: p.detach() for n, p in self._make(seed).named_parameters()}

    def features(self, params: Leaves, x: Tensor) -> Tensor:
        """Return h(x), ``[B, D]``; only the leaves ``base.*`` of ``params`` are read."""
        return functional_call(self.module.base, part(params, "base."), (x,))

    def logits(self, params: Leaves, h: Tensor) -> Tensor:
        """Return the output layer's logits ``[B, classes]`` of features ``[B, D]``."""
        return functional_call(self.module.head, part(params, "head."), (h,))

    def __call__(self, params: Leaves, x: Tensor) -> Tensor:
        """Return logits ``[B, classes]`` of a batch ``[B, channels, height, width]``."""
        return self.logits(params, self.features(params, x))

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(p.numel() for p in self.module.parameters())


def part(leaves: Leaves, prefix: str) -> Leaves:
    """Return the leaves whose name starts with ``prefix``, with the prefix taken off."""
    return {n[len(prefix) :]: t for n, t in leaves.items() if n.startswith(prefix)}


def named(leaves: Leaves, prefix: str) -> Leaves:
    """Return ``leaves`` with ``prefix`` put before every name; the inverse of ``part``."""
    return {prefix + n: t for n, t in leaves.items()}


def stack(rows: list[Leaves]) -> Leaves:
    """Stack the same leaves of several models along a new first axis."""
    return {n: torch.stack([row[n] for row in rows]) for n in rows[0]}


def each(
    fn: Callable[..., Any], leaves: Leaves, *shared: Any, together: bool | None = None
) -> list[Any]:
    """Return ``[fn(row, *shared) for row in leaves]``, e.g. every expert's output on one batch.

    By default one row after another on a CPU, where a vmapped convolution becomes a slow grouped
    one, and as one vmapped program (``together``) elsewhere, where launching kernels is what costs.
    """
    first = next(iter(leaves.values()))
    rows = len(first)
    if first.is_cuda if together is None else together:
        out = vmap(fn, in_dims=(0, *[None] * len(shared)))(leaves, *shared)
        return [_pick(out, k) for k in range(rows)]
    split = {n: t.unbind(0) for n, t in leaves.items()}
    return [fn({n: t[k] for n, t in split.items()}, *shared) for k in range(rows)]


def _pick(out: Any, k: int) -> Any:
    return tuple(o[k] for o in out) if isinstance(out, tuple) else out[k]
