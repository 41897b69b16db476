"""A model as pure functions of its parameters: what the algorithms see."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedlib.models.families import SMALL, Dropout, Family, fed_by

Params = dict[str, Tensor]
Slot = tuple[str, dict[str, Any], str]


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

    ``width`` is the length D of the features h(x), the input of the output layer, and ``noise`` how
    many random numbers per example training asks for, to drop units.
    """

    def __init__(self, spec: Any, shape: tuple[int, ...], classes: int) -> None:
        self._spec, self.shape, self.classes = spec, shape, classes
        self._others: dict[tuple[Any, tuple[int, ...], int], Net] = {}
        self.module = self.module_of(0)
        self.width = self.module.head.in_features
        self._base = _slots(self.module.base, "base.")
        self._head = _slots(self.module.head, "head.")
        modules = list(self.module.modules())
        self.noise = sum(m.units for m in modules if isinstance(m, Dropout))
        self.says_p = getattr(spec, "output", "") == "softmax"
        self.has_convolutions = any(isinstance(m, nn.Conv2d) for m in modules)
        self.is_recurrent = any(isinstance(m, nn.RNNBase) for m in modules)

    def module_of(self, seed: int) -> Classifier:
        """Return a module of its own with fresh parameters drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            base, width = self._spec.base(self.shape)
            return Classifier(base, width, self.classes)

    def init(self, seed: int) -> Params:
        """Return fresh parameters (PyTorch's default initialisation) drawn from ``seed``."""
        return {n: p.detach() for n, p in self.module_of(seed).named_parameters()}

    def like(
        self,
        family: Any = None,
        outputs: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Net:
        """Return the net of another family, with other outputs, or for examples of other shape."""
        asked = family or self._spec, shape or self.shape, outputs or self.classes
        if asked == (self._spec, self.shape, self.classes):
            return self
        if asked not in self._others:
            with _outside_vmap():
                self._others[asked] = Net(*asked)
        return self._others[asked]

    def alone(self, device: torch.device) -> bool:
        """Return whether several nets run one by one, and not as one vmapped program.

        On a CPU convolutions do, as vmap makes grouped ones of them, and so do nets that together
        would wait for memory at every step. Not recurrent ones: their many small steps cost more.
        """
        large = self.has_convolutions or self.parameters() > SMALL
        return large and not self.is_recurrent and device.type == "cpu"

    def features(self, params: Params, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return h(x), ``[B, D]``; only the leaves ``base.*`` of ``params`` are read.

        The last of the numbers ``noise`` ``[B, n]`` say which units drop; without it none do.
        """
        if noise is None or not self.noise:
            return self._call(self.module.base, self._base, params, x)
        fed_by(self.module.base, noise[..., -self.noise :])
        try:
            return self._call(self.module.base, self._base, params, x)
        finally:
            fed_by(self.module.base, None)

    def has_base(self, leaves: Collection[str]) -> bool:
        """Return whether leaves of these names are all that ``features`` reads."""
        return all(name in leaves for name, _, _ in self._base)

    @property
    def cuts(self) -> dict[int, str]:
        """Where the features can be cut in two: how many modules lie below, and which the last are.

        Modules without parameters, a pooling for one, belong to the layer before them. Empty if the
        model is no sequence of modules.
        """
        base = self.module.base
        if not isinstance(base, nn.Sequential):
            return {}
        first = [i for i, module in enumerate(base) if any(True for _ in module.parameters())]
        names = [type(module).__name__ for module in base]
        ends = [*first[1:], len(names)]
        return {end: ", ".join(names[i:end]) for i, end in zip(first, ends, strict=True)}

    def below(self, params: Params, x: Tensor, cut: int) -> Tensor:
        """Return what the first ``cut`` modules make of a batch: the representation at a cut."""
        return self._between(params, x, 0, cut)

    def above(self, params: Params, r: Tensor, cut: int) -> Tensor:
        """Return logits ``[B, classes]`` from the representation at a cut."""
        return self.logits(params, self._between(params, r, cut, max(self.cuts)))

    def _between(self, params: Params, x: Tensor, first: int, last: int) -> Tensor:
        slots = [slot for slot in self._base if first <= int(slot[0].split(".")[1]) < last]
        modules: Any = self.module.base
        return self._call(modules[first:last], slots, params, x)

    def logits(self, params: Params, h: Tensor) -> Tensor:
        """Return the output layer's logits ``[B, classes]`` of features ``[B, D]``."""
        return self._call(self.module.head, self._head, params, h)

    def _call(self, module: nn.Module, slots: list[Slot], params: Params, x: Tensor) -> Tensor:
        """Run a module with other parameters in place of its own.

        ``torch.func.functional_call`` does the same and looks the module up anew at every call,
        which for a small net takes as long as its arithmetic.
        """
        own = [owner[key] for _, owner, key in slots]
        try:
            for name, owner, key in slots:
                owner[key] = params[name]
            return module(x)
        finally:
            for (_, owner, key), parameter in zip(slots, own, strict=True):
                owner[key] = parameter

    def __call__(self, params: Params, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return logits ``[B, classes]`` of a batch ``[B, channels, height, width]``.

        With ``noise`` ``[B, n]`` units drop, as in training; see ``features``.
        """
        return self.logits(params, self.features(params, x, noise))

    def logp(self, params: Params, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return log p(y|x), ``[B, classes]``, or what the model gives out for it: p itself."""
        logits = self(params, x, noise)
        return logits.softmax(-1) if self.says_p else logits.log_softmax(-1)

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(p.numel() for p in self.module.parameters())


def _outside_vmap() -> AbstractContextManager[Any]:
    """Return a context in which a module may be built although a program is being vmapped.

    A resumed run asks for a net there first, and drawing its (unused) numbers is refused by vmap.
    """
    disable = getattr(torch._C, "_DisableFuncTorch", None)
    return disable() if disable else nullcontext()


def drawn(layers: Callable[[], dict[str, nn.Module]], seed: int) -> Params:
    """Return the fresh parameters of named modules, "name.parameter", drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {
            f"{name}.{key}": p.detach()
            for name, module in layers().items()
            for key, p in module.named_parameters()
        }


def _slots(module: nn.Module, prefix: str) -> list[Slot]:
    """Return where a module keeps its parameters: (full name, dictionary, key)."""
    return [
        (f"{prefix}{path}.{key}" if path else prefix + key, inner._parameters, key)
        for path, inner in module.named_modules()
        for key, parameter in inner._parameters.items()
        if parameter is not None
    ]


def part(leaves: Params, prefix: str) -> Params:
    """Return the leaves whose name starts with ``prefix``, with the prefix taken off."""
    return {n[len(prefix) :]: t for n, t in leaves.items() if n.startswith(prefix)}


def named(leaves: Params, prefix: str) -> Params:
    """Return ``leaves`` with ``prefix`` put before every name; the inverse of ``part``."""
    return {prefix + n: t for n, t in leaves.items()}


def stack(rows: list[Params]) -> Params:
    """Stack the same leaves of several models along a new first axis."""
    return {n: torch.stack([row[n] for row in rows]) for n in rows[0]}


def each(
    fn: Callable[..., Any], leaves: Params, *shared: Any, together: bool | None = None
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


def widened(model: Family, times: float, shape: tuple[int, ...], classes: int) -> Family:
    """Return ``model`` with wider layers and ``times`` as many parameters, as nearly as possible.

    Of a LeNet its channels grow and its hidden layers stay as they are; of an MLP its hidden layers
    grow. The first one is a whole number and the others keep their ratio to it. For
    ``fedmix_lenet5()`` on CIFAR-10 that is 61 channels for 2 and 113 for 4 (000, sec. 4.1).
    ValueError unless ``times`` is at least 1.
    """
    if times < 1:
        raise ValueError(f"times must be >= 1, got {times}")
    layers = "channels" if hasattr(model, "channels") else "hidden"
    widths = getattr(model, layers)
    wanted = times * Net(model, shape, classes).parameters()
    best, miss = model, float("inf")
    for first in range(widths[0], int(widths[0] * times) + 2):
        wider = tuple(round(n * first / widths[0]) for n in widths)
        wide = replace(model, **{layers: wider})
        off = abs(Net(wide, shape, classes).parameters() - wanted)
        if off < miss:
            best, miss = wide, off
    return best
