"""Model families, as values: what a task names and a ``FunctionalModel`` builds. No federated word
in here.

And an auto-encoder, whose density says how well a client knows an example.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.values import ALLOWED, READING, NonNegativeInt, PositiveInt, value

Params = dict[str, Tensor]
# Several dense nets of at most so many parameters fit into a CPU core's own cache together.
SMALL = 2**18


@dataclass(frozen=True)
class Architecture:
    """A kind of network, as a value that prints as code; the base of them all.

    A family of one's own is a subclass made a value with ``@value`` that has a ``base``.

    >>> from dataclasses import replace
    >>> from torch import nn
    >>> @value
    ... class Flat(Architecture):
    ...     "Softmax regression: the examples themselves are the features."
    ...     def base(self, shape):
    ...         return nn.Flatten(), int(np.prod(shape))
    >>> replace(tiny.task, model=Flat()).build(seed=0).net.width
    256
    """

    reads_tokens: ClassVar[bool | None] = None
    """Whether it reads token ids, and no numbers; None: if it has an ``nn.Embedding``."""

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the feature extractor for examples of ``shape`` and its output's width D.

        Images, and other numbers of three axes, are ``(height, width, channels)`` and arrive as
        ``[B, channels, height, width]``, texts are ``(tokens,)`` and arrive as int64
        ``[B, tokens]``. Numbers of another number of axes arrive as they were given, channels last:
        a series ``(time, channels)``, which ``nn.Conv1d`` takes as ``x.movedim(-1, 1)``, or a
        volume ``(depth, height, width, channels)``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what its base is")


@value
class LeNet(Architecture):
    """Convolutions with max-pooling, then fully connected layers (LeCun et al., 1998).

    ``channels`` and ``hidden`` are the widths of the convolutional and of the hidden layers. The
    defaults are the classic LeNet-5 (62,006 parameters on 32x32 colour images and 10 classes);
    ``fedmix_lenet5`` is the variant whose widths explain the FedMix paper. ``response_norm`` is the
    window of the local response normalisation after the first pooling and before every later one,
    as in IFCA's network for Rotated CIFAR-10; 0 is none. In training ``dropout`` is the share of
    the units of every hidden layer that is dropped, or with ``dropout_in`` "first" of the first one
    alone (001's released code); ``channel_dropout`` is that of the channels after the last
    convolution (003, Table 1 and its gate). ``output`` "softmax" is a mistake of 001's
    released code: what is trained, mixed and judged as log p is p itself, so that the loss is
    -p(y). ``FedAvg``, ``Local``, ``Mixture`` and ``IFCA``'s models read it, others do not.

    ``kernel`` is the side of all convolutions.

    >>> module, width = LeNet().base((32, 32, 3))
    >>> width, sum(p.numel() for p in module.parameters()) + 10 * (width + 1)
    (84, 62006)
    """

    channels: tuple[PositiveInt, ...] = (6, 16)
    hidden: tuple[PositiveInt, ...] = (120, 84)
    kernel: PositiveInt = 5
    response_norm: NonNegativeInt = 0
    dropout: Annotated[float, "[0, 1)"] = 0.0
    channel_dropout: Annotated[float, "[0, 1)"] = 0.0
    output: Annotated[str, ("log-softmax", "softmax")] = "log-softmax"
    dropout_in: Annotated[str, ("every", "first")] = "every"

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return convolutions, pooling and hidden layers; see ``Architecture``."""
        height, width, depth = shaped(self, shape, 3, "images")
        layers: list[nn.Module] = []
        for i, out in enumerate(self.channels):
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
            if min(height, width) < 1:
                raise ValueError(f"{self} does not fit images of {shape[0]}x{shape[1]} pixels")
            layers.append(nn.Conv2d(depth, out, self.kernel))
            if self.response_norm and i:
                layers += [nn.ReLU(), nn.LocalResponseNorm(self.response_norm), MaxPool2d(2)]
            else:  # the same as pooling what ReLU lets through, of a quarter of the numbers
                layers += [MaxPool2d(2), nn.ReLU()]
                layers += [nn.LocalResponseNorm(self.response_norm)] if self.response_norm else []
            depth = out
        if self.channel_dropout:
            layers.append(nn.Dropout2d(self.channel_dropout))
        hidden = dense(height * width * depth, self.hidden, self.dropout)
        if self.dropout_in == "first":  # each hidden layer is Linear, ReLU and Dropout
            hidden = [m for i, m in enumerate(hidden) if i < 3 or not isinstance(m, nn.Dropout)]
        return nn.Sequential(*layers, nn.Flatten(), *hidden), self.hidden[-1]


def fedmix_lenet5(width: int = 32) -> LeNet:
    """Return the LeNet-5 of the FedMix paper (000, sec. 4.1): two 5x5 convolutions and FC 512.

    The paper gives only the widths of its wide FedAvg variants, 61 channels for two experts and
    113 for four; ``width=32`` is the simplest LeNet whose nearest integers these are: 443,306,
    884,164 (x 1.994) and 1,779,968 (x 4.015) parameters.
    """
    return LeNet(channels=(width, width), hidden=(512,))


@value
class MLP(Architecture):
    """A multi-layer perceptron on flattened images; (200, 200) is the one of FedMix, App. F.

    ``hidden`` are the widths of the hidden layers.

    >>> sum(p.numel() for p in MLP((200, 200)).base((28, 28, 1))[0].parameters())
    197200
    """

    hidden: tuple[PositiveInt, ...] = (200, 200)

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Architecture``."""
        widths = (math.prod(shape), *self.hidden)
        small = sum(i * o + o for i, o in itertools.pairwise(widths)) <= SMALL
        layers = dense(widths[0], self.hidden, layer=Stackable if small else nn.Linear)
        return nn.Sequential(nn.Flatten(), *layers), self.hidden[-1]


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU,
    "selu": nn.SELU, "silu": nn.SiLU, "mish": nn.Mish,
}  # fmt: skip


# PyTorch's own initialisation of a layer is uniform.
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda w: w,
    "normal": lambda w: nn.init.normal_(w, std=w.shape[1] ** -0.5),
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "spectral": lambda w: w / torch.linalg.matrix_norm(w, 2),  # the largest singular value is 1
}


@value
class GateNet(Architecture):
    """Dense layers of ``hidden`` units with an ``activation``, below an output per expert.

    Weights begin as ``init`` says. 004 has four layers, LeakyReLU and orthogonal weights; its
    released code also has dropout and a ReLU after the first layer.
    """

    hidden: tuple[int, ...] = (128, 256, 128)
    activation: Annotated[str, tuple(ACTIVATIONS)] = "leaky_relu"
    init: Annotated[str, tuple(INITS)] = "orthogonal"

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Architecture``."""
        kind = ACTIVATIONS[self.activation]
        layers = dense(math.prod(shape), self.hidden, activation=kind)
        return nn.Sequential(nn.Flatten(), *layers), (math.prod(shape), *self.hidden)[-1]

    def init_weights(self, leaves: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return fresh leaves with weights as ``init`` says, drawn from ``seed``."""
        with seeded(seed), torch.no_grad():
            return {
                n: INITS[self.init](t.clone()) if n.endswith("weight") and t.ndim == 2 else t
                for n, t in leaves.items()
            }


@value(kind="Module")
class FromFunction(Architecture):
    """Any ``torch.nn.Module``: what a function, "package:function", returns for some arguments.

    It maps examples to features ``[B, D]``. ``head`` names the output layer of a whole classifier,
    which is taken out; the output layer here has the task's labels. Parameters that do not require
    gradients stand still, and so do those whose names begin with one of ``frozen`` ("" is all):
    they are no leaves, and belong to the function as its code does. The function is called when a
    task is built, never when a value is read; ValueError there for what cannot be called so. A spec
    that comes as text may name only functions of modules that are allowed (``values.ALLOWED``:
    torchvision.models, what ``--import`` names, and what one's own Python has named): ValueError.

    >>> FromFunction("torchvision.models:resnet18", (("num_classes", 10),), head="fc").head
    'fc'
    """

    function: str
    arguments: tuple[tuple[str, int | float | str | bool | None], ...] = ()
    head: str = ""
    frozen: tuple[str, ...] = ()

    def check(self) -> None:
        package, _, name = self.function.partition(":")
        if not READING.get():
            ALLOWED.update((package, self.function))
        elif self.function not in ALLOWED:
            home = package
            if package in ALLOWED:  # and so may be imported; what it has from elsewhere may not
                with suppress(Exception):
                    home = getattr(import_module(package), name).__module__
            known = any(f"{home}.".startswith(f"{allowed}.") for allowed in ALLOWED)
            if package not in ALLOWED or not known:
                way = f"as that could run anything: --import {home} allows what {home} defines"
                raise ValueError(f"a spec may not name {self.function!r}, {way}")

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the module without its head; see ``Architecture``."""
        try:
            module = self._made()
            with torch.no_grad():
                h = module.eval()(some(shape, 2, reads_tokens(self, module)))
            if h.ndim != 2 or len(h) != 2:
                raise ValueError(f"makes {list(h.shape)} of two examples, not features [2, D]")
        except Exception as error:  # whatever somebody's function raises
            where = f"for examples {list(shape)}, which arrive as {arriving(shape)}"
            raise ValueError(f"{self}, {where}: {error}") from error
        return module.train(), h.shape[1]

    def _made(self) -> nn.Module:
        package, _, name = self.function.partition(":")
        module: nn.Module = getattr(import_module(package), name)(**dict(self.arguments))
        if self.head:
            module.get_submodule(self.head)  # an error if there is none
            owner, _, name = self.head.rpartition(".")
            setattr(module.get_submodule(owner), name, nn.Identity())
        fixed = [p for n, p in module.named_parameters() if n.startswith(self.frozen)]
        if self.frozen and not fixed:
            raise ValueError("freezes nothing: there is no such parameter")
        for parameter in fixed:
            parameter.requires_grad_(False)
        return module


def reads_tokens(family: Any, module: nn.Module) -> bool:
    """Return whether a family's module takes token ids: as it says, or if it embeds something."""
    embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
    told = getattr(family, "reads_tokens", None)
    return embeds if told is None else told


def some(shape: tuple[int, ...], count: int, tokens: bool, padding: int = 0) -> Tensor:
    """Return some examples as a module takes them: token ids, else images or numbers.

    Of texts one word is all that there is, and every one is shorter than the one before.
    """
    if tokens:
        beyond = torch.arange(shape[-1]) >= (shape[-1] - torch.arange(count)[:, None]).clamp(min=1)
        ids = torch.where(beyond, padding, int(padding != 1))
        return ids.view(count, *[1] * (len(shape) - 1), -1).expand(count, *shape)
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    return x.movedim(-1, 1) if len(shape) == 3 else x


def arriving(shape: tuple[int, ...]) -> str:
    """Return the axes of a batch of examples as a module takes them, as text."""
    axes = [*shape[-1:], *shape[:-1]] if len(shape) == 3 else shape
    return f"[{', '.join(map(str, ('B', *axes)))}]"


@value
class ResNet(Architecture):
    """The residual network for small images (He et al., 2016, sec. 4.2) with GroupNorm.

    ``blocks`` basic blocks of two 3x3 convolutions in each stage, of the widths ``widths``; the
    first block of every later stage halves the image. The defaults are ResNet-20: 278,324
    parameters with 100 classes. ``groups`` per normalisation, and a 1x1 convolution where
    widths change (000, A02).

    >>> module, width = ResNet().base((32, 32, 3))
    >>> width, sum(p.numel() for p in module.parameters()) + 100 * (width + 1)
    (64, 278324)
    """

    blocks: PositiveInt = 3
    widths: tuple[PositiveInt, ...] = (16, 32, 64)
    groups: PositiveInt = 2

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the network up to its global average pooling; see ``Architecture``."""
        depth, first = shaped(self, shape, 3, "images")[2], self.widths[0]
        layers: list[nn.Module] = [*_normed(depth, first, 3, 1, self.groups), nn.ReLU()]
        depth = first
        for stage, width in enumerate(self.widths):
            for i in range(self.blocks):
                stride = 2 if stage and not i else 1
                layers.append(_Block(depth, width, stride, self.groups))
                depth = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), depth


class _Block(nn.Module):
    """Two convolutions around which the input passes by."""

    def __init__(self, depth: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_normed(depth, width, 3, stride, groups), nn.ReLU())
        self.second = nn.Sequential(*_normed(width, width, 3, 1, groups))
        same, self.stride = depth == width and stride == 1, stride
        self.project = None if same else nn.Sequential(*_normed(depth, width, 1, 1, groups))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output ``[B, width, H / stride, W / stride]``.

        The 1x1 convolution is dense on the pixels that its stride would visit: the same numbers,
        and never the strided one that oneDNN writes out of bounds (``functional.FEW``).
        """
        past = x
        if self.project is not None:
            past = self.project(x[:, :, :: self.stride, :: self.stride])
        return functional.relu(self.second(self.first(x)) + past)


def _normed(depth: int, width: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    convolution = nn.Conv2d(depth, width, kernel, stride, kernel // 2, bias=False)
    return [convolution, nn.GroupNorm(groups, width)]


class MaxPool2d(nn.MaxPool2d):
    """Max-pooling by two, the same numbers ten times as fast where no gradient is asked for.

    torch's also notes where every maximum was, which takes longest with few channels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest of every four neighbours, ``[B, C, H / 2, W / 2]``."""
        if torch.is_grad_enabled() or x.shape[-1] % 2 or x.shape[-2] % 2:
            return super().forward(x)
        rows = x.permute(0, 2, 3, 1).unflatten(1, (-1, 2))
        columns = torch.maximum(rows[:, :, 0], rows[:, :, 1]).unflatten(2, (-1, 2))
        return torch.maximum(columns[:, :, :, 0], columns[:, :, :, 1]).permute(0, 3, 1, 2)


class Stackable(nn.Linear):
    """A linear layer for small nets, several of which are vmapped: its weight comes first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        return (self.weight @ x.mT).mT + self.bias


def dense(
    features: int,
    hidden: tuple[int, ...],
    dropout: float = 0.0,
    layer: type[nn.Linear] = nn.Linear,
    activation: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Return hidden layers on ``features`` inputs, each with its activation and its dropout."""
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise((features, *hidden)):
        layers += [layer(n, out), activation(), *([nn.Dropout(dropout)] if dropout else [])]
    return layers


def shaped(family: Architecture, shape: tuple[int, ...], axes: int, kind: str) -> tuple[int, ...]:
    """Return the shape of an example; ValueError unless it has so many axes as its kind."""
    if len(shape) != axes:
        like = {1: "(tokens,)", 3: "(height, width, channels)"}[axes]
        raise ValueError(f"{family} is for {kind} {like}, and an example here is of shape {shape}")
    return shape


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have what torch draws be drawn from ``seed``, and its own generator stay as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def params_of(layers: Mapping[str, nn.Module]) -> Params:
    """Return the parameters of named modules, "name.parameter"."""
    return {f"{n}.{k}": p.detach() for n, m in layers.items() for k, p in m.named_parameters()}


def auto_encoder(inputs: int, hidden: tuple[int, ...], latent: int, seed: int) -> Params:
    """Return fresh leaves of a dense VAE on values in [0, 1] (Kingma and Welling, 2014).

    ``hidden`` are the encoder's widths, mirrored by the decoder; ``latent`` is the length of the
    code. 784 ``inputs``, (512, 256) and 32 have 549,696 + 542,224 parameters (000, App. F). Leaves
    are ``encoder.<layer>.weight`` ``[out, in]`` and so on, initialised as PyTorch does by default.
    """
    halves = {"encoder": (inputs, *hidden, 2 * latent), "decoder": (latent, *hidden[::-1], inputs)}
    layers: dict[str, nn.Module] = {}
    with seeded(seed):
        for half, widths in halves.items():
            pairs = enumerate(itertools.pairwise(widths))
            layers |= {f"{half}.{i}": nn.Linear(n, out) for i, (n, out) in pairs}
    return params_of(layers)


def evidence_bound(leaves: Params, pixels: Tensor, noise: Tensor) -> Tensor:
    """Return an auto-encoder's evidence lower bound of log p(x) in nats, ``[B]``.

    ``pixels`` ``[B, inputs]`` are read as Bernoulli means; ``noise`` is standard normal,
    ``[B, latent]``: zeros give the bound at the posterior mean.
    """
    mean, log_variance = _through(leaves, "encoder", pixels).chunk(2, -1)
    code = mean + (log_variance / 2).exp() * noise
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
    return _log_likelihood(leaves, code, pixels) - divergence


def evidence(leaves: Params, pixels: Tensor, noise: Tensor) -> Tensor:
    """Return the importance-weighted estimate of log p(x), ``[B]`` (Burda et al., 2016).

    ``noise`` is standard normal, ``[samples, latent]``, the same for all examples. With one
    sample it is an unbiased estimate of the bound, with more it rises towards log p(x).
    """
    mean, log_variance = _through(leaves, "encoder", pixels).chunk(2, -1)
    each = []
    for normal in noise:
        code = mean + (log_variance / 2).exp() * normal
        prior = -0.5 * code.square().sum(-1)
        posterior = -0.5 * (normal.square().sum() + log_variance.sum(-1))
        each.append(prior - posterior + _log_likelihood(leaves, code, pixels))
    return torch.stack(each).logsumexp(0) - math.log(len(noise))


def _log_likelihood(leaves: Params, code: Tensor, pixels: Tensor) -> Tensor:
    """Return log p(x|code), ``[B]``."""
    logits = _through(leaves, "decoder", code)
    loss = functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
    return -loss.sum(-1)


def _through(leaves: Params, half: str, x: Tensor) -> Tensor:
    """Return the output of an auto-encoder's encoder or decoder."""
    last = max(int(n.split(".")[1]) for n in leaves if n.startswith(half))
    for i in range(last + 1):
        x = functional.linear(x, leaves[f"{half}.{i}.weight"], leaves[f"{half}.{i}.bias"])
        x = x.relu() if i < last else x
    return x
