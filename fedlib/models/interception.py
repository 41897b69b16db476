"""``Interceptor`` makes any module in train mode a pure function of parameters, noise and a mask.

It replaces calls of torch that draw random numbers (dropout, attention), depend on padding or
update running statistics (BatchNorm), or that vmap does not support.
"""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from fedlib.models.batch import Statistics

BatchNorm = nn.modules.batchnorm._BatchNorm
_STATISTICS = (".running_mean", ".running_var")
FEW = 8  # with fewer channels, oneDNN writes gradients of some convolutions out of bounds
_ATTENTION = F.scaled_dot_product_attention


def is_statistic(name: str) -> bool:
    """Return whether a parameter is a running statistic, which is averaged but has no gradient."""
    return name.endswith(_STATISTICS)


@dataclass(eq=False)
class Interceptor(TorchFunctionMode):
    """Replaces calls of torch that a module makes in one forward pass.

    Args:
        noise: uniform numbers in [0, 1), ``[B, n]``, which draws consume in order. Default: None,
            no dropout.
        axes: for each draw the index of its batch axis. Default: None, a dry run that only records
            ``shapes``.
        weight: weight of each example ``[B]``; 0 for padding. Default: None.
        statistics: records updated running statistics. Layers whose statistics are not among them
            normalise as in eval mode.
        shapes: the shapes of all draws so far.
    """

    noise: Tensor | None = None
    axes: tuple[int, ...] | None = None
    weight: Tensor | None = None
    statistics: Statistics = field(default_factory=lambda: Statistics({}))
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    _taken: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the result of a call of torch, or of its replacement in ``_ANSWERS``."""
        answer = _ANSWERS.get(func)
        return answer(self, *args, **kwargs or {}) if answer else func(*args, **kwargs or {})

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers of a shape, those of each example from its own noise."""
        assert self.noise is not None
        self.shapes.append(tuple(shape))
        if self.axes is None:  # a dry run, which needs only the shapes
            return self.noise.new_full(shape, 0.5)
        examples, axis = len(self.noise), self.axes[len(self.shapes) - 1]
        first, self._taken = self._taken, self._taken + math.prod(shape) // examples
        u = self.noise[:, first : self._taken]
        if not axis:
            return u.reshape(shape)
        return u.reshape(examples, *shape[:axis], *shape[axis + 1 :]).movedim(0, axis)


def _dropping(axes: int | None = None) -> Callable[..., Tensor]:
    """Return a dropout of single values, or of whole slices of the first ``axes`` axes."""

    def drop(
        mode: Interceptor, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not p or mode.noise is None:
            return x
        u = mode.draw(x.shape[:axes])
        keep = (u >= p).to(x.dtype).view(*u.shape, *[1] * (x.ndim - u.ndim))
        return x * (keep / ((1 - p) or 1))

    return drop


_drop = _dropping()


def _attend(
    mode: Interceptor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Tensor:
    """Return torch's attention, with explicit weights if these are dropped or under vmap."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # True: the key is attended to
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    how = query, key, value, attn_mask, 0.0, is_causal
    drops = dropout_p and mode.noise is not None
    if not drops and not is_batchedtensor(query):
        return _ATTENTION(*how, **more)
    out, weights = torch.ops.aten._scaled_dot_product_attention_math(*how, **more)
    return _drop(mode, weights, dropout_p) @ value if drops else out


def _attend_in_heads(mode: Interceptor, *args: Any, **kwargs: Any) -> Any:
    """Return torch's multi-head attention, whose inner calls a function mode does not see."""
    drop, attend = partial(_drop, mode), partial(_attend, mode)
    with patch.multiple(F, dropout=drop, scaled_dot_product_attention=attend):
        return F.multi_head_attention_forward(*args, **kwargs)


def _normalise(
    mode: Interceptor, x: Tensor, running_mean: Any, running_var: Any, **how: Any
) -> Tensor:
    """Return the output of BatchNorm, and record its running statistics, without padding.

    A batch with one value per channel does not update the running variance.

    Raises:
        ValueError: for a layer without running statistics.
    """
    if running_mean is None:
        raise ValueError("normalises by the batch also to predict: it needs running statistics")
    if not how["training"] or mode.statistics.name(running_mean) is None:
        return F.batch_norm(x, running_mean, running_var, **{**how, "training": False})
    assert mode.weight is not None
    channels = [1, -1, *[1] * (x.ndim - 2)]
    real = mode.weight.repeat_interleave(len(x) // len(mode.weight))
    real = real.view(-1, *[1] * (x.ndim - 1))
    axes = [0, *range(2, x.ndim)]
    n = real.sum() * math.prod(x.shape[2:])
    mean = (x * real).sum(axes) / n.clamp(min=1)
    centered = x - mean.view(channels)
    var = (centered.square() * real).sum(axes) / n.clamp(min=1)
    unbiased = var * n / (n - 1).clamp(min=1)
    recorded = mode.statistics
    for statistic, now, least in ((running_mean, mean, 0), (running_var, unbiased, 1)):
        if name := recorded.name(statistic):
            old = recorded.after[name]
            moved = old.lerp(now.detach(), how["momentum"])
            recorded.after[name] = torch.where(n > least, moved, old)
    out = centered * (var + how["eps"]).rsqrt().view(channels)
    if how["weight"] is None:
        return out
    return out * how["weight"].view(channels) + how["bias"].view(channels)


def _group(mode: Interceptor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return torch's GroupNorm, for which ``vmap`` does not support the channels-last layout."""
    x = x.contiguous() if is_batchedtensor(x) else x
    return F.group_norm(x, *args, **kwargs)


def _densely(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a convolution that avoids strided ones whose gradient oneDNN writes out of bounds.

    These are 1 x 1 convolutions of fewer than ``FEW`` input channels, with AVX2 and channels last.
    Instead, the input is subsampled and convolved with stride 1, which gives the same numbers.
    """

    def densely(
        mode: Interceptor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *how: Any,
        **more: Any,
    ) -> Tensor:
        axes = weight.ndim - 2
        steps, borders = (_each(n, axes) for n in (stride, padding))
        few = {*weight.shape[2:]} == {1} and weight.shape[1] < FEW
        if not few or {*steps} == {1} or padding == "same":  # torch raises for "same" with a stride
            return convolve(input, weight, bias, stride, padding, *how, **more)
        if padding != "valid" and any(borders):
            input = F.pad(input, [n for n in reversed(borders) for _ in (0, 1)])
        visited: Any = (..., *(slice(None, None, n) for n in steps))
        return convolve(input[visited], weight, bias, 1, 0, *how, **more)

    return densely


def _each(given: Any, axes: int) -> tuple[Any, ...]:
    """Return an argument for each axis, given one for all or one for each."""
    alone = isinstance(given, int | str)
    return (given,) * axes if alone else tuple(given) * (axes // len(given))


_ANSWERS: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _drop,
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _dropping(2)),
    F.scaled_dot_product_attention: _attend,
    F.multi_head_attention_forward: _attend_in_heads,
    F.batch_norm: _normalise,
    F.group_norm: _group,
    **{convolve: _densely(convolve) for convolve in (F.conv1d, F.conv2d, F.conv3d)},
}


def _chance() -> tuple[Any, ...]:
    """Return the states of the global random generators of torch, Python and NumPy."""
    of_numpy = repr(np.random.get_state(legacy=False)["state"])  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), of_numpy


@contextmanager
def blamed(module: nn.Module, forward: Callable[[], Any]) -> Iterator[None]:
    """Convert errors in the context to a ValueError that names the module, with advice.

    It is also raised if a layer has drawn from a global random generator, and names that layer.
    Parameters that are not float32, as examples are, are mentioned.

    Args:
        module: the module that runs in the context.
        forward: runs the module again, to find the layer that draws.
    """
    before = _chance()
    with torch.random.fork_rng(devices=[]):
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        if _chance() != before:
            error = ValueError(_instead_of(_drawing(module, forward), module))
    if error is not None:
        held = [*module.named_parameters(), *module.named_buffers()]
        other = (f"{n} is {t.dtype}" for n, t in held if t.is_floating_point() and t.itemsize != 4)
        cast = [f"; examples are torch.float32, and {one}: cast one of them" for one in other][:1]
        raise ValueError(f"{type(module).__name__}: {error}{''.join(cast)}") from error


def _drawing(module: nn.Module, forward: Callable[[], Any]) -> nn.Module:
    """Return the first module to end that has drawn random numbers, which is an innermost one."""
    before, found = dict[nn.Module, Any](), list[nn.Module]()

    def leave(inner: nn.Module, *_: Any) -> None:
        if _chance() != before[inner]:
            found.append(inner)

    enter = register_module_forward_pre_hook(lambda inner, _: before.update({inner: _chance()}))
    hooks = enter, register_module_forward_hook(leave)
    try:
        with suppress(Exception):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else module


def _instead_of(drawing: nn.Module, module: nn.Module) -> str:
    """Return advice how to replace a layer that draws from a global random generator."""
    named = (f"{n} ({type(m).__name__}) " for n, m in module.named_modules() if m is drawing and n)
    way = (
        "only nn.Dropout and nn.Dropout1d to 3d draw from a client's; a coin for each example is"
        " F.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)), p, self.training)"
    )
    if isinstance(drawing, nn.RNNBase):
        way = "replace its dropout by several modules of one layer, with nn.Dropout between them"
    return f"{next(named, '')}draws random numbers of its own: {way}"


def drawn_by(dry_run: Callable[[int], list[tuple[int, ...]]]) -> tuple[tuple[int, int], ...]:
    """Return for each draw the number of values per example, and the index of its batch axis.

    Args:
        dry_run: returns the shapes of all draws for a number of examples.

    Raises:
        ValueError: if the examples of a batch share random numbers.
    """
    draws = []
    for small, large in zip(dry_run(2), dry_run(3), strict=True):
        grown = [i for i, (n, m) in enumerate(zip(small, large, strict=True)) if 3 * n == 2 * m]
        if not grown:
            raise ValueError(f"draws {list(small)} numbers that the examples of a batch share")
        draws.append((math.prod(small) // 2, grown[0]))
    return tuple(draws)
