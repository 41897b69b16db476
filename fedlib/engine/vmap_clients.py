"""From the mathematics of one client to a cohort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap


def vmap_clients(fn: Callable[..., Any], clients: int, common: int = 0) -> Callable[..., Any]:
    """Return ``fn`` over ``clients`` rows: every tensor argument and result gains a first axis.

    The last ``common`` arguments are the same for all clients and have no such axis. With one
    client the axis is squeezed away instead of vmapped: the same program and, up to
    rounding, the same result, without the grouped convolutions that vmap makes.
    """

    def one(*args: Any) -> Any:
        rows, rest = args[: len(args) - common], args[len(args) - common :]
        return _on_tensors(_unsqueeze, fn(*(_on_tensors(_squeeze, row) for row in rows), *rest))

    def many(*args: Any) -> Any:
        axes = (*[0] * (len(args) - common), *[None] * common)
        return vmap(fn, in_dims=axes)(*args)

    return one if clients == 1 else many


def _on_tensors(fn: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply ``fn`` to a tensor, or to every tensor in dicts and (named) tuples."""
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, dict):
        return {name: _on_tensors(fn, t) for name, t in tree.items()}
    parts = [_on_tensors(fn, t) for t in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def _squeeze(t: Tensor) -> Tensor:
    return t.squeeze(0)


def _unsqueeze(t: Tensor) -> Tensor:
    return t.unsqueeze(0)
