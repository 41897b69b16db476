"""``FunctionalModel``: a classifier as pure functions of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.lazy import LazyModuleMixin

from fedlib.models.architectures import SMALL, Params, arriving, dummy_batch, reads_tokens, seeded
from fedlib.models.batch import Batch, Statistics
from fedlib.models.interception import FEW, BatchNorm, Interceptor, blamed, drawn_by, is_statistic
from fedlib.values import short_repr

Slot = tuple[str, dict[str, Any], str]
# A resumed run may first build a network inside a vmapped program, and vmap does not allow to draw
# the random numbers of its initialisation.
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
    """The result of a dry run of a network.

    Args:
        draws: for each random draw of a training step, the number of values per example and the
            index of its batch axis.
        unbatchable: why ``vmap`` cannot train several clients at once, with the module; "" if it
            can.
    """

    draws: tuple[tuple[int, int], ...]
    unbatchable: str


# Modules of torch with calls that ``Interceptor`` must replace also in eval mode.
WATCHED = nn.MultiheadAttention | nn.modules.dropout._DropoutNd | nn.GroupNorm | BatchNorm


class FunctionalModel:
    """A classifier as pure functions of its parameters: ``net(params, x)`` returns logits.

    Parameters are a dict of tensors by name, ``base.*`` of the feature extractor and ``head.*`` of
    the linear output layer. It contains the parameters that require gradients and BatchNorm's
    running statistics; everything else is a constant of the network. Networks are in eval mode
    unless a method gets the ``batch`` of a training step: then its ``noise`` determines which units
    are dropped, its ``weight`` which examples are padding, and its ``statistics`` record updated
    running statistics.

    Args:
        spec: the architecture, with a method ``base(shape)``; see ``Architecture``.
        shape: shape of an example.
        classes: number of classes.
        device: device of the constants. Default: "cpu".

    Attributes:
        width: number D of the features h(x), the input of the output layer.
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
        """Return a new module with parameters initialised from ``seed``."""
        with seeded(seed):
            match self._spec.base(self.shape):
                case (nn.Module() as base, width) if hasattr(width, "__index__"):
                    if any(isinstance(m, LazyModuleMixin) for m in base.modules()):
                        with torch.no_grad():  # lazy layers get their weights in a forward pass
                            base.eval()(dummy_batch(self.shape, 2, reads_tokens(self._spec, base)))
                        base.train()
                    return Classifier(base, width, self.classes)
                case made:
                    wanted = "a pair: a module, and the width D of its features [B, D]"
                    got = f"got {short_repr(made)}"
                    raise ValueError(f"{self._spec}: base must return {wanted}, {got}")

    def filled(self, params: Params) -> Classifier | None:
        """Return a new module with copies of ``params``; None if names or shapes do not match."""
        module = self.module_of(0).eval().to(self._device)
        for name, owner, key in _slots(module):
            if name not in params or params[name].shape != owner[key].shape:
                return None
            owner[key].detach().copy_(params[name])
        return module

    def init(self, seed: int) -> Params:
        """Return initial parameters (PyTorch's default initialisation) drawn from ``seed``."""
        return {n: owner[key].detach() for n, owner, key in _slots(self.module_of(seed))}

    def like(
        self, family: Any = None, outputs: int | None = None, shape: tuple[int, ...] | None = None
    ) -> FunctionalModel:
        """Return a model with another architecture, number of outputs, or shape of examples.

        Args:
            family: the architecture. Default: None, the same.
            outputs: number of outputs. Default: None, the same.
            shape: shape of an example. Default: None, the same.
        """
        asked = family or self._spec, shape or self.shape, outputs or self.classes
        if asked == (self._spec, self.shape, self.classes):
            return self
        if asked not in self._others:
            with OutsideVmap():
                self._others[asked] = FunctionalModel(*asked, self._device)
        return self._others[asked]

    def batchable(self, device: torch.device) -> bool:
        """Return whether several networks are better run as one vmapped program than in turn.

        On a CPU this is not so for convolutions, which vmap turns into slow grouped ones, and for
        networks that together exceed the cache. Recurrent networks with their many small steps
        always benefit. Networks that vmap does not support never run so.
        """
        large = self.has_convolutions or self.parameters() > SMALL
        large = large and not self.is_recurrent and device.type == "cpu"
        return not large and not self.dry_run.unbatchable

    @cached_property
    def noise(self) -> int:
        """Number of random numbers per example in a training step, for dropout."""
        return sum(units for units, _ in self.dry_run.draws)

    @cached_property
    def dry_run(self) -> DryRun:
        """The result of a dry run on a few examples, which is done once per architecture.

        It is repeated for every model with user-defined modules, whose code can change meanwhile.

        Raises:
            ValueError: if the network cannot be trained here; it names the module.
        """
        origins = {type(m).__module__.partition(".")[0] for m in self.module.modules()}
        run = _remembered_dry_run if origins <= {"torch", "fedlib"} else _dry_run_of
        return run(self._spec, self.shape, self.classes, repr(self.module))

    def features(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the features h(x), ``[B, D]``.

        Args:
            params: parameters; only ``base.*`` are used.
            x: a batch of examples ``[B, ...]``.
            batch: the batch of a training step, in which the network runs in train mode. Default:
                None, eval mode.
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
        """Run the base on a few examples in all modes in which it will be run.

        A base without parameters is never in train mode.
        """
        base, draw = self.module.base, torch.Generator().manual_seed(0)
        draws: tuple[tuple[int, int], ...] = ()
        ways: list[Callable[..., Tensor]] = [lambda w, x, _: self.features(w, x)]
        params, twin = self.init(0), self.module_of(0).eval()
        for name, owner, key in _slots(twin):
            params[name] = params[name] + 0.01 * torch.rand(params[name].shape, generator=draw)
            owner[key].copy_(params[name])
        paddings = (getattr(m, "padding_idx", None) for m in base.modules())
        padding = next((i for i in paddings if i is not None), 0)
        x = dummy_batch(self.shape, 3, self.reads_tokens, padding)
        held = {**params, **dict(base.named_buffers())}
        kept = {n: (t.clone(), t._version) for n, t in held.items() if "batches_tracked" not in n}
        try:
            with blamed(base, lambda: self.features(params, x)):
                h = self.features(params, x)
        except ValueError as error:
            arrive = f"examples {list(self.shape)} arrive as {arriving(self.shape)}"
            raise ValueError(f"{error}; {arrive}") from error
        if h.dtype != self.module.head.weight.dtype:
            heads = f"the output layer is of {self.module.head.weight.dtype}: return h.float()"
            raise ValueError(f"{self._spec} returns features of {h.dtype}, and {heads}")
        if h.shape != (3, self.width):
            wanted = f"not features [3, {self.width}]: flatten them, or return their width"
            raise ValueError(f"{self._spec} returns {list(h.shape)} for three examples, {wanted}")
        with blamed(base, lambda: self._training_pass(params, x)):
            if not torch.allclose(h[:1], self.features(params, x[:1]), 1e-3, 1e-4, True):
                raise ValueError("its output for an example depends on the others in the batch")
            if not torch.allclose(h, twin.base(x), 1e-3, 1e-4, True):
                raise ValueError("it computes with other numbers than its parameters")
            if self._base:
                draws = drawn_by(lambda n: self._training_pass(params, x[:n])[1])
                ways.append(lambda w, x, real: self._training_pass(w, x, real)[0])
            now = {**params, **dict(base.named_buffers())}
            other = {n for n, (t, _) in kept.items() if not t.equal(now[n])}
            if changed := [n for n in params if n in other or now[n]._version != kept[n][1]]:
                way = "leave max_norm out, or project after each step by a phase's `project`"
                where = "in its forward pass, also to predict"
                raise ValueError(f"changes {', '.join(changed)} {where}: {way}")
            if changed := sorted(other):
                way = "which all clients share"
                raise ValueError(f"training changes {', '.join(changed)}, {way}")
        return DryRun(draws, self._apart(ways, params, x))

    def _apart(self, ways: list[Callable[..., Tensor]], params: Params, x: Tensor) -> str:
        """Return why several clients cannot share a vmapped program, "" if they can.

        Features and gradients of two clients are compared with those of each alone. The second
        client has an example less, so that its batch has padding.

        Raises:
            ValueError: if the gradients of a single client are not reproducible.
        """
        base, real = self.module.base, torch.ones(2, len(x))
        real[1, -1] = 0
        with blamed(base, lambda: None):
            alone = [_slopes(ways, params, x[:n], real[0, :n]) for n in (len(x), len(x) - 1)]
            for name, owner, key in _slots(self.module):
                owner[key].copy_(params[name])
            if name := _differing(alone[0], _slopes(ways, params, x, real[0])):
                why = "it draws by itself, or recomputes in the backward pass (checkpointing)"
                raise ValueError(f"the gradient of {name} differs when computed again: {why}")
        try:
            with blamed(base, lambda: None):
                both, xs = stack([params, params]), torch.stack([x, x])
                together = _slopes([*map(vmap, ways)], both, xs, real)
                for i, mine in enumerate(alone):
                    if name := _differing(mine, {n: t[i] for n, t in together.items()}):
                        raise ValueError(f"the gradient of {name} differs in a vmapped program")
        except ValueError as error:
            return str(error).strip().split("\n")[0]
        return ""

    def _training_pass(
        self, params: Params, x: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Return features in train mode, and the shapes of all random draws."""
        noise = torch.full((len(x), 1), 0.5)
        statistics = Statistics({n: t for n, t in params.items() if is_statistic(n)})
        weight = torch.ones(len(x)) if weight is None else weight
        interceptor = Interceptor(noise, None, weight, statistics)
        return self._trained(params, x, interceptor), interceptor.shapes

    def has_base(self, params: Collection[str]) -> bool:
        """Return whether these names include all parameters that ``features`` uses."""
        return all(name in params for name, _, _ in self._base)

    def has_all(self, params: Collection[str]) -> bool:
        """Return whether these names include all parameters of the network."""
        return all(name in params for name, _, _ in (*self._base, *self._head))

    def has_copy(self, params: Params) -> bool:
        """Return whether some parameter has the name and shape of one of the base.

        Prefixes of names and leading axes (of experts) are ignored.
        """
        sizes = {base: tuple(owner[key].shape) for base, owner, key in self._base}
        return any(
            name.endswith(base) and tuple(param.shape)[param.ndim - len(size) :] == size
            for name, param in params.items()
            for base, size in sizes.items()
        )

    @property
    def cuts(self) -> dict[int, str]:
        """The places where the base can be split: the number of modules below, and a description.

        The description names the modules of the layer directly below the cut; modules without
        parameters, such as pooling, belong to the layer before them. The result is empty unless
        the base is an ``nn.Sequential``.
        """
        base = self.module.base
        if not isinstance(base, nn.Sequential):
            return {}
        first = [i for i, module in enumerate(base) if any(True for _ in module.parameters())]
        names = [type(module).__name__ for module in base]
        ends = [*first[1:], len(names)]
        return {end: ", ".join(names[i:end]) for i, end in zip(first, ends, strict=True)}

    def below(self, params: Params, x: Tensor, cut: int) -> Tensor:
        """Return the output of the first ``cut`` modules for a batch, the representation there."""
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
        """Run a module with its parameters replaced by ``params``.

        ``torch.func.functional_call`` does the same but traverses the module at every call, which
        for a small network takes as long as the arithmetic.
        """
        own = [owner[key] for _, owner, key in slots]
        try:
            for name, owner, key in slots:
                owner[key] = params[name]
            for layer in self._flat:  # recurrent layers also keep their weights in a list
                layer._flat_weights = [getattr(layer, n) for n in layer._flat_weights_names]
            with mode or (Interceptor() if self._watched else nullcontext()):
                return module(x)
        finally:
            for (_, owner, key), parameter in zip(slots, own, strict=True):
                owner[key] = parameter

    def __call__(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return logits ``[B, classes]``; arguments are those of ``features``."""
        return self.logits(params, self.features(params, x, batch))

    def logp(self, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return log p(y|x), ``[B, classes]``; arguments are those of ``features``.

        An architecture whose output is "softmax" returns p(y|x) instead; see ``LeNet``.
        """
        return self.log_probs(self(params, x, batch))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-softmax of logits ``[B, classes]``, or their softmax; see ``logp``."""
        return logits.softmax(-1) if self.outputs_probabilities else logits.log_softmax(-1)

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(p.numel() for p in self.module.parameters())


def _dry_run_of(spec: Any, shape: tuple[int, ...], classes: int, printed: str) -> DryRun:
    """Return the result of a dry run; ``printed`` tells modules of equal specs apart."""
    with OutsideVmap(), torch.no_grad():  # on a CPU, where all draws are seen
        return FunctionalModel(spec, shape, classes)._dry_run()


_remembered_dry_run = cache(_dry_run_of)


def _slopes(
    ways: Sequence[Callable[..., Tensor]], params: Params, x: Tensor, real: Tensor
) -> Params:
    """Return features ``[..., B, ways, D]`` and the gradients of a random function of them.

    Args:
        ways: functions of parameters, examples and mask that return features ``[..., B, D]``.
        params: the parameters.
        x: the examples.
        real: mask ``[..., B]``, 0 for padding, which does not contribute to gradients.
    """
    with torch.enable_grad():
        own = {n: t.detach().requires_grad_(not is_statistic(n)) for n, t in params.items()}
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
    """Return the name of a tensor that differs by more than rounding, or "".

    The tolerance is relative to the largest gradient. Only the examples in ``one`` are compared.
    """
    most = max((float(t.abs().max()) for n, t in one.items() if n != "features"), default=0.0)
    for name, t in one.items():
        near = 1e-5 * most + 1e-2 * float(t.abs().max())
        if not torch.allclose(t, other[name][: len(t)], 0, near, True):
            return name
    return ""


def _watched(module: nn.Module) -> bool:
    """Return whether a module may make a call that ``Interceptor`` replaces.

    User-defined modules may make any call.
    """
    ours = type(module).__module__.startswith(("torch.nn.modules.", "fedlib."))
    strided = isinstance(module, nn.modules.conv._ConvNd) and {*module.stride} != {1}
    return strided or not ours or isinstance(module, WATCHED)


def _hides_a_crash(script: nn.Module) -> bool:
    """Return whether a TorchScript module may call a convolution that must be replaced."""
    weights = [p for p in script._parameters.values() if p is not None and p.ndim == 4]
    dense = {*getattr(script, "stride", (2,))} == {1}  # traced modules have no attribute stride
    return not dense and any({*w.shape[2:]} == {1} and w.shape[1] < FEW for w in weights)


def _slots(module: nn.Module) -> list[Slot]:
    """Return the places of a module's parameters: (full name, dictionary, key).

    A parameter that is shared by several layers has its first name in all places. Running
    statistics of frozen layers are not included.
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
            for key, param in owner.items():
                name = f"{path}.{key}"
                if param is not None and (param.requires_grad or is_statistic(name)):
                    if param.dtype not in (torch.float32, torch.float64):
                        cast = f"compute in {param.dtype} by torch.autocast"
                        view = "take torch.view_as_complex of one, which ends with an axis of two"
                        way = view if param.is_complex() else cast
                        need = "parameters must be torch.float32 or torch.float64"
                        raise ValueError(f"{name} is {param.dtype}, and {need}: {way}")
                    slots.append((names.setdefault(id(param), name), owner, key))
    return slots


def select_prefix(params: Params, prefix: str) -> Params:
    """Return the parameters whose names start with ``prefix``, with the prefix removed."""
    return {n[len(prefix) :]: t for n, t in params.items() if n.startswith(prefix)}


def add_prefix(params: Params, prefix: str) -> Params:
    """Return parameters with ``prefix`` added to all names; the inverse of ``select_prefix``."""
    return {prefix + n: t for n, t in params.items()}


def stack(rows: list[Params], axis: int = 0) -> Params:
    """Return tensors of the same names stacked along a new axis.

    Args:
        rows: parameters with the same names and shapes.
        axis: index of the new axis. Default: 0.
    """
    return {n: torch.stack([row[n] for row in rows], axis) for n in rows[0]}


def map_experts(
    fn: Callable[..., Params], params: Params, *shared: Any, together: bool | None = None
) -> Params:
    """Return ``fn(expert, *shared)`` for every expert, stacked along axis 1: ``[B, experts, ...]``.

    Args:
        fn: a function of the parameters of one expert and of ``shared``, which returns a dict of
            tensors ``[B, ...]``.
        params: parameters of all experts, with the expert as first axis.
        shared: further arguments of ``fn``, the same for all experts.
        together: whether to run all experts in one vmapped program. Default: None, which means on a
            GPU, where launching kernels is expensive, but not on a CPU, where vmap turns
            convolutions into slow grouped ones.
    """
    first = next(iter(params.values()))
    if first.is_cuda if together is None else together:
        return vmap(fn, in_dims=(0, *[None] * len(shared)), out_dims=1)(params, *shared)
    split = {n: t.unbind(0) for n, t in params.items()}
    rows = ({n: t[k] for n, t in split.items()} for k in range(len(first)))
    return stack([fn(row, *shared) for row in rows], 1)
