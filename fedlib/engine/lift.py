"""From the mathematics of one client to a cohort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_map


def lift(fn: Callable[..., Any], clients: int, common: int = 0) -> Callable[..., Any]:
    """Return ``fn`` over ``clients`` rows: every tensor argument and result gains a first axis.

    The last ``common`` arguments are the same for all clients and have no such axis. With one
    client the axis is squeezed away instead of vmapped: the same program and the same result,
    without the grouped convolutions that vmap makes.
    """

    def one(*args: Any) -> Any:
        rows, rest = args[: len(args) - common], args[len(args) - common :]
        out = fn(*tree_map(_squeeze, rows), *rest)
        return tree_map(lambda t: t.unsqueeze(0), out)

    def many(*args: Any) -> Any:
        axes = (*[0] * (len(args) - common), *[None] * common)
        return vmap(fn, in_dims=axes)(*args)

    return one if clients == 1 else many


def _squeeze(t: torch.Tensor) -> torch.Tensor:
    return t.squeeze(0)
