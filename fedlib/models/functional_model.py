"""A model as pure functions of its parameters: what the algorithms see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.lazy import LazyModuleMixin

from fedlib.models.architectures import (
    SMALL,
    Architecture,
    Params,
    arriving,
    reads_tokens,
    seeded,
    some,
)
from fedlib.models.batch import Batch, Statistics
from fedlib.models.interception import FEW, BatchNorm, Interceptor, blamed, drawn_by, is_statistic
from fedlib.values import short_repr

Slot = tuple[str, dict[str, Any], str]
# Lets a module be built although a program is being vmapped: a resumed run asks for a net there
# first, and drawing its (unused) numbers is refused by vmap.
OutsideVmap = torch._C._DisableFuncTorch


class Classifier(nn.Module):
    """A feature extractor ``base`` followed by a linear output layer ``head``."""

    def __init__(self, base: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[B, classes]`` of a batch ``[B, ...]``."""
        return self.head(self.base(x))


class DryRun(NamedTuple):
    """What a dry run finds: what a network draws in training, and if clients can share a program.

    ``draws`` are pairs of how many numbers an example takes and which axis is the batch.
    ``unbatchable`` says which module it is that ``vmap`` refuses, and why; "" if none.
    """

    draws: tuple[tuple[int, int], ...]
    unbatchable: str


# What torch makes of some of these at rest are no calls that vmap knows.
WATCHED = nn.MultiheadAttention | nn.modules.dropout._DropoutNd | nn.GroupNorm | BatchNorm


class FunctionalModel:
    """The functions of a classifier, leaves first: ``net(params, x)``.

    Leaves are the parameters that require gradients and BatchNorm's running statistics; anything
    else is a constant of the network. ``width`` is the length D of the features h(x), the input of
    the output layer. Networks are in eval mode, except where they are given the ``batch`` of a
    training step: then its ``noise`` drops units, its ``weight`` says what is padding, and its
    ``statistics`` record what becomes of running statistics that move.
    """

    def __init__(
        self, spec: Any, shape: tuple[int, ...], classes: int, device: Any = "cpu"
    ) -> None:
        self._spec, self.shape, self.classes, self._device = spec, shape, classes, device
        self._others: dict[tuple[Any, tuple[int, ...], int], FunctionalModel] = {}
        self.module = self.module_of(0).eval().to(device)
        self.width = self.module.head.in_features
        self.reads_tokens = reads_tokens(spec, self.module.base)
        slots = _slots(self.module)
        self._base = [slot for slot in slots if slot[0].startswith("base.")]
        self._head = [slot for slot in slots if slot[0].startswith("head.")]
        self.outputs_probabilities = getattr(spec, "output", "") == "softmax"
        modules = list(self.module.modules())
        self.has_convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in modules)
        self.is_recurrent = any(isinstance(m, nn.RNNBase) for m in modules)
        self._watched = any(map(_watched, modules))
        self.remembers = any(is_statistic(name) for name, _, _ in self._base)
        self._flat = [m for m in modules if isinstance(m, nn.RNNBase)]

    def module_of(self, seed: int) -> Classifier:
        """Return a module of its own with fresh parameters drawn from ``seed``."""
        with seeded(seed):
            match self._spec.base(self.shape):
                case (nn.Module() as base, width) if hasattr(width, "__index__"):
                    if any(isinstance(m, LazyModuleMixin) for m in base.modules()):
                        with torch.no_grad():  # lazy layers have no weights before
                            base.eval()(some(self.shape, 2, reads_tokens(self._spec, base)))
                        base.train()
                    return Classifier(base, width, self.classes)
                case made:
                    wanted = "a pair: a module, and the width D of its features [B, D]"
                    got = f"got {short_repr(made)}"
                    raise ValueError(f"{self._spec}: base must return {wanted}, {got}")

    def filled(self, leaves: Params) -> Classifier | None:
        """Return a module of its own with copies of some leaves; None if they are not its own."""
        module = self.module_of(0).eval().to(self._device)
        for name, owner, key in _slots(module):
            if name not in leaves or leaves[name].shape != owner[key].shape:
                return None
            owner[key].detach().copy_(leaves[name])
        return module

    def init(self, seed: int) -> Params:
        """Return fresh leaves (PyTorch's default initialisation) drawn from ``seed``."""
        return {n: owner[key].detach() for n, owner, key in _slots(self.module_of(seed))}

    def like(
        self, family: Any = None, outputs: int | None = None, shape: tuple[int, ...] | None = None
    ) -> FunctionalModel:
        """Return the net of another family, with other outputs, or for examples of other shape."""
        asked = family or self._spec, shape or self.shape, outputs or self.classes
        if asked == (self._spec, self.shape, self.classes):
            return self
        if asked not in self._others:
            with OutsideVmap():
                self._others[asked] = FunctionalModel(*asked, self._device)
        return self._others[asked]

    def batchable(self, device: torch.device) -> bool:
        """Return whether several nets run as one vmapped program, and not one by one.

        On a CPU convolutions do not, as vmap makes grouped ones of them, nor nets that together
        would wait for memory at every step. Recurrent ones do: their many small steps cost more.
        Nowhere those that cannot be vmapped.
        """
        large = self.has_convolutions or self.parameters() > SMALL
        large = large and not self.is_recurrent and device.type == "cpu"
        return not large and not self.dry_run.unbatchable

    @cached_property
    def noise(self) -> int:
        """How many random numbers per example training asks for, to drop units."""
        return sum(units for units, _ in self.dry_run.draws)

    @cached_property
    def dry_run(self) -> DryRun:
        """What a network draws and whether it is batchable, found out once on a few examples.

        ValueError, naming the module, for one that cannot be trained here.
        """
        return _dry_run_of(self._spec, self.shape, self.classes)

    def features(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return h(x), ``[B, D]``; only the leaves ``base.*`` of ``params`` are read.

        With the ``batch`` of a training step as in training.
        """
        noise = statistics = None
        if batch is not None:
            statistics = batch.statistics
            if batch.noise is not None and self.noise:
                noise = batch.noise[..., -self.noise :]
        if statistics is not None:
            statistics.used = True
        if batch is None or (noise is None and (statistics is None or not self.remembers)):
            return self._call(self.module.base, self._base, params, x)
        axes = tuple(axis for _, axis in self.dry_run.draws)
        how = noise, axes, batch.weight, statistics or Statistics({})
        return self._trained(params, x, Interceptor(*how))

    def _trained(self, params: Params, x: Tensor, interceptor: Interceptor) -> Tensor:
        base = self.module.base
        base.train()
        try:
            return self._call(base, self._base, params, x, interceptor)
        finally:
            base.eval()

    def _dry_run(self) -> DryRun:
        """Run the base on a few examples in every way in which it will be run.

        A base without leaves stands still and is never in training.
        """
        base, draw = self.module.base, torch.Generator().manual_seed(0)
        draws: tuple[tuple[int, int], ...] = ()
        ways: list[Callable[..., Tensor]] = [lambda w, x, _: self.features(w, x)]
        leaves, twin = self.init(0), self.module_of(0).eval()
        for name, owner, key in _slots(twin):
            leaves[name] = leaves[name] + 0.01 * torch.rand(leaves[name].shape, generator=draw)
            owner[key].copy_(leaves[name])
        padding = (getattr(m, "padding_idx", None) for m in base.modules())
        x = some(self.shape, 3, self.reads_tokens, next((i for i in padding if i is not None), 0))
        held = {**leaves, **dict(base.named_buffers())}
        kept = {n: (t.clone(), t._version) for n, t in held.items() if "batches_tracked" not in n}
        try:
            with blamed(base, lambda: self.features(leaves, x)):
                h = self.features(leaves, x)
        except ValueError as error:
            arrive = f"examples {list(self.shape)} arrive as {arriving(self.shape)}"
            raise ValueError(f"{error}; {arrive}") from error
        if h.dtype != self.module.head.weight.dtype:
            heads = f"the output layer is of {self.module.head.weight.dtype}: return h.float()"
            raise ValueError(f"{self._spec} makes features of {h.dtype}, and {heads}")
        if h.shape != (3, self.width):
            wanted = f"not features [3, {self.width}]: flatten them, or return their width"
            raise ValueError(f"{self._spec} makes {list(h.shape)} of three examples, {wanted}")
        with blamed(base, lambda: self._training_pass(leaves, x)):
            if not torch.allclose(h[:1], self.features(leaves, x[:1]), 1e-3, 1e-4, True):
                raise ValueError("what it says of an example depends on who shares its batch")
            if not torch.allclose(h, twin.base(x), 1e-3, 1e-4, True):
                raise ValueError("it computes with other numbers than its parameters")
            if self._base:
                draws = drawn_by(lambda n: self._training_pass(leaves, x[:n])[1])
                ways.append(lambda w, x, real: self._training_pass(w, x, real)[0])
            now = {**leaves, **dict(base.named_buffers())}
            other = {n for n, (t, _) in kept.items() if not t.equal(now[n])}
            if changed := [n for n in leaves if n in other or now[n]._version != kept[n][1]]:
                way = "leave max_norm out, or project in a phase's `first_stage`"
                where = "where it is read, also to predict"
                raise ValueError(f"changes {', '.join(changed)} {where}: {way}")
            if changed := sorted(other):
                raise ValueError(f"all clients' training would change {', '.join(changed)}")
        return DryRun(draws, self._apart(ways, leaves, x))

    def _apart(self, ways: list[Callable[..., Tensor]], leaves: Params, x: Tensor) -> str:
        """Return why clients cannot share a program, "" if they can: by features and gradients.

        The second of two has an example less, so that there is padding in its batch. ValueError
        where not even one client's gradients are those of its leaves.
        """
        base, real = self.module.base, torch.ones(2, len(x))
        real[1, -1] = 0
        with blamed(base, lambda: None):
            alone = [_slopes(ways, leaves, x[:n], real[0, :n]) for n in (len(x), len(x) - 1)]
            for name, owner, key in _slots(self.module):
                owner[key].copy_(leaves[name])
            if name := _differing(alone[0], _slopes(ways, leaves, x, real[0])):
                why = "it draws by itself, or computes again in the backward pass (checkpointing)"
                raise ValueError(f"asked again, the gradient of {name} is another: {why}")
        try:
            with blamed(base, lambda: None):
                both, xs = stack([leaves, leaves]), torch.stack([x, x])
                together = _slopes([*map(vmap, ways)], both, xs, real)
                for i, mine in enumerate(alone):
                    if name := _differing(mine, {n: t[i] for n, t in together.items()}):
                        raise ValueError(f"together with others the gradient of {name} is another")
        except ValueError as error:
            return str(error).strip().split("\n")[0]
        return ""

    def _training_pass(
        self, leaves: Params, x: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Return the features of a batch of training, and the shapes of what is drawn there."""
        noise = torch.full((len(x), 1), 0.5)
        statistics = Statistics({n: t for n, t in leaves.items() if is_statistic(n)})
        weight = torch.ones(len(x)) if weight is None else weight
        interceptor = Interceptor(noise, None, weight, statistics)
        return self._trained(leaves, x, interceptor), interceptor.shapes

    def has_base(self, leaves: Collection[str]) -> bool:
        """Return whether leaves of these names are all that ``features`` reads."""
        return all(name in leaves for name, _, _ in self._base)

    def has_copy(self, leaves: Params) -> bool:
        """Return whether some leaves are those of a base, whatever stands before their names."""
        sizes = {base: tuple(owner[key].shape) for base, owner, key in self._base}
        return any(
            name.endswith(base) and tuple(leaf.shape)[leaf.ndim - len(size) :] == size
            for name, leaf in leaves.items()
            for base, size in sizes.items()
        )

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

    def _call(
        self, module: nn.Module, slots: list[Slot], params: Params, x: Tensor, mode: Any = None
    ) -> Tensor:
        """Run a module with other leaves in place of its own.

        ``torch.func.functional_call`` does the same and looks the module up again at every call,
        which for a small net takes as long as its arithmetic.
        """
        own = [owner[key] for _, owner, key in slots]
        try:
            for name, owner, key in slots:
                owner[key] = params[name]
            for layer in self._flat:  # which keeps its weights in a list, too
                layer._flat_weights = [getattr(layer, n) for n in layer._flat_weights_names]
            with mode or (Interceptor() if self._watched else nullcontext()):
                return module(x)
        finally:
            for (_, owner, key), parameter in zip(slots, own, strict=True):
                owner[key] = parameter

    def __call__(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return logits ``[B, classes]`` of a batch ``[B, channels, height, width]``.

        With the ``batch`` of a training step as in training; see ``features``.
        """
        return self.logits(params, self.features(params, x, batch))

    def logp(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return log p(y|x), ``[B, classes]``, or what the model gives out for it: p itself."""
        return self.log_probs(self(params, x, batch))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return what the model gives out for log p: of some logits, ``[B, classes]``."""
        return logits.softmax(-1) if self.outputs_probabilities else logits.log_softmax(-1)

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(p.numel() for p in self.module.parameters())


@cache
def _dry_run_of(spec: Any, shape: tuple[int, ...], classes: int) -> DryRun:
    with OutsideVmap(), torch.no_grad():
        return FunctionalModel(
            spec, shape, classes
        )._dry_run()  # on a CPU, where all draws are seen


def _slopes(
    ways: Sequence[Callable[..., Tensor]], leaves: Params, x: Tensor, real: Tensor
) -> Params:
    """Return the features ``[..., B, ways, D]`` that ways make of examples, and their gradients.

    Examples that are not ``real`` ``[..., B]`` are padding, of which gradients know nothing.
    """
    with torch.enable_grad():
        own = {n: t.detach().requires_grad_(not is_statistic(n)) for n, t in leaves.items()}
        h = torch.stack([way(own, x, real) for way in ways], -2)
        weights = torch.rand(h.shape[-3:], generator=torch.Generator().manual_seed(0))
        asked = {n: t for n, t in own.items() if t.requires_grad and h.requires_grad}
        total, of = (h * weights * real[..., None, None]).sum(), [*asked.values()]
        grads = torch.autograd.grad(total, of, materialize_grads=True) if asked else ()
    slopes = dict(zip(asked, grads, strict=True))
    if sparse := [n for n, g in slopes.items() if g.is_sparse]:
        raise ValueError(f"the gradient of {sparse[0]} is sparse: use the layer with sparse=False")
    return {**slopes, "features": h.detach()}


def _differing(one: Params, other: Params) -> str:
    """Return what differs by more than rounding, which counts by the largest gradient: a name.

    Of features as many examples are compared as there are in ``one``.
    """
    most = max((float(t.abs().max()) for n, t in one.items() if n != "features"), default=0.0)
    for name, t in one.items():
        near = 1e-5 * most + 1e-2 * float(t.abs().max())
        if not torch.allclose(t, other[name][: len(t)], 0, near, True):
            return name
    return ""


def _watched(module: nn.Module) -> bool:
    """Return whether some call of a module may be one that ``functional`` answers.

    A module that is neither torch's nor ours may make any call.
    """
    ours = type(module).__module__.startswith(("torch.nn.modules.", "fedlib."))
    strided = isinstance(module, nn.modules.conv._ConvNd) and {*module.stride} != {1}
    return strided or not ours or isinstance(module, WATCHED)


def _hides_a_crash(script: nn.Module) -> bool:
    """Return whether a script may call a convolution that ``functional`` would make dense."""
    weights = [p for p in script._parameters.values() if p is not None and p.ndim == 4]
    dense = {*getattr(script, "stride", (2,))} == {1}  # what was traced does not say
    return not dense and any({*w.shape[2:]} == {1} and w.shape[1] < FEW for w in weights)


def _slots(module: nn.Module) -> list[Slot]:
    """Return where a module keeps its leaves: (full name, dictionary, key).

    One that is in several places has its first name in all. Statistics of a frozen layer are none.
    """
    names: dict[int, str] = {}
    slots: list[Slot] = []
    for path, inner in module.named_modules():
        owners = [inner._parameters]
        if isinstance(inner, torch.jit.ScriptModule) and _hides_a_crash(inner):
            why = "TorchScript hides a strided 1 x 1 convolution, which may corrupt memory (oneDNN)"
            raise ValueError(f"{path}: {why}: give the module that was scripted or traced")
        if isinstance(inner, BatchNorm) and (inner.weight is None or inner.weight.requires_grad):
            owners.append(inner._buffers)
            if inner.momentum is None:
                raise ValueError(f"{path}: BatchNorm counts batches here: give it a momentum")
        for owner in owners:
            for key, leaf in owner.items():
                name = f"{path}.{key}"
                if leaf is not None and (leaf.requires_grad or is_statistic(name)):
                    if leaf.dtype not in (torch.float32, torch.float64):
                        way = f"compute in {leaf.dtype} by torch.autocast"
                        if leaf.is_complex():
                            way = (
                                "take torch.view_as_complex of one, which ends with an axis of two"
                            )
                        need = "leaves are torch.float32 or torch.float64"
                        raise ValueError(f"{name} is {leaf.dtype}, and {need}: {way}")
                    slots.append((names.setdefault(id(leaf), name), owner, key))
    return slots


def select_prefix(leaves: Params, prefix: str) -> Params:
    """Return the leaves whose name starts with ``prefix``, with the prefix taken off."""
    return {n[len(prefix) :]: t for n, t in leaves.items() if n.startswith(prefix)}


def add_prefix(leaves: Params, prefix: str) -> Params:
    """Return ``leaves`` with ``prefix`` put before every name; the inverse of ``select_prefix``."""
    return {prefix + n: t for n, t in leaves.items()}


def stack(rows: list[Params], axis: int = 0) -> Params:
    """Stack tensors of the same names along a new axis, the first by default."""
    return {n: torch.stack([row[n] for row in rows], axis) for n in rows[0]}


def map_experts(
    fn: Callable[..., Params], leaves: Params, *shared: Any, together: bool | None = None
) -> Params:
    """Return what ``fn(row, *shared)`` returns of every row of some leaves, ``[B, rows, ...]``.

    That is every expert's output on one batch, for example. By default one row after another on a
    CPU, where a vmapped convolution becomes a slow grouped one, and as one vmapped program
    (``together``) elsewhere, where launching kernels is what costs.
    """
    first = next(iter(leaves.values()))
    if first.is_cuda if together is None else together:
        return vmap(fn, in_dims=(0, *[None] * len(shared)), out_dims=1)(leaves, *shared)
    split = {n: t.unbind(0) for n, t in leaves.items()}
    rows = ({n: t[k] for n, t in split.items()} for k in range(len(first)))
    return stack([fn(row, *shared) for row in rows], 1)


def widened(
    model: Architecture, times: float, shape: tuple[int, ...], classes: int
) -> Architecture:
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
    wanted = times * FunctionalModel(model, shape, classes).parameters()
    wider = (
        replace(model, **{layers: tuple(round(n * first / widths[0]) for n in widths)})
        for first in range(widths[0], int(widths[0] * times) + 2)
    )
    return min(wider, key=lambda m: abs(FunctionalModel(m, shape, classes).parameters() - wanted))
