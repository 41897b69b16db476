"""Network architectures, as values from which a ``FunctionalModel`` builds networks.

This module also has a variational auto-encoder, whose density measures how familiar an example is
to a client.
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

from fedlib.models.batch import Params
from fedlib.values import ALLOWED, READING, NonNegativeInt, PositiveInt, value

# Several dense networks of at most this many parameters fit into the cache of a CPU core together.
SMALL = 2**18


@dataclass(frozen=True)
class Architecture:
    """Base class of network architectures, which are values that print as code.

    A subclass decorated with ``@value`` that defines ``base`` is a new architecture. The output
    layer, a linear one, is added by ``FunctionalModel``.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> from fedrun import tiny
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
    """Whether inputs are token ids, not numbers. Default: None, which means that it is so if the
    module has an embedding."""

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the feature extractor and the number D of its features.

        Args:
            shape: shape of an example. Images, and other numbers with three axes, are
                ``(height, width, channels)``, and the module is called with batches
                ``[B, channels, height, width]``. Texts are ``(tokens,)``; batches are int64
                ``[B, tokens]``. Numbers with another number of axes are not transposed, so channels
                are last: a series ``(time, channels)``, which ``nn.Conv1d`` needs as
                ``x.movedim(-1, 1)``, or a volume ``(depth, height, width, channels)``.

        Returns:
            a module that maps a batch to features ``[B, D]``, and D.
        """
        raise NotImplementedError(f"{type(self).__name__} must define base")


@value
class LeNet(Architecture):
    """Convolutions with max-pooling, followed by fully connected layers.

    The defaults are the classic LeNet-5: 62,006 parameters on 32x32 colour images with 10 classes.
    ``fedmix_lenet5`` is the variant of the FedMix paper.

    Args:
        channels: numbers of channels of the convolutions. Default: (6, 16).
        hidden: widths of the hidden layers. Default: (120, 84).
        kernel: kernel size of all convolutions. Default: 5.
        response_norm: window of the local response normalisation, after the first pooling and
            before every later one, as in IFCA's network for Rotated CIFAR-10; 0 for none.
            Default: 0.
        dropout: dropout probability of the units of hidden layers. Default: 0.
        channel_dropout: dropout probability of the channels after the last convolution, as for
            the gate in Table 1 of Isaksson et al. (2022). Default: 0.
        output: "softmax" reproduces a mistake in the released code of Listo Zec et al. (2021),
            which uses p in place of log p, so that the loss is -p(y). It is meant for ``FedAvg``,
            ``Local``, ``Mixture`` and ``IFCA``, whose predictions use it too; other algorithms
            read it only as far as they call ``FedAvg.loss``. Default: "log-softmax".
        dropout_in: whether ``dropout`` is applied to "every" hidden layer or only to the "first"
            (the released code of Listo Zec et al., 2021). Default: "every".

    Reference: LeCun et al., Gradient-based learning applied to document recognition, 1998.

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
            else:  # the same numbers as ReLU before pooling, with a quarter of the operations
                layers += [MaxPool2d(2), nn.ReLU()]
                layers += [nn.LocalResponseNorm(self.response_norm)] if self.response_norm else []
            depth = out
        if self.channel_dropout:
            layers.append(nn.Dropout2d(self.channel_dropout))
        hidden = dense(height * width * depth, self.hidden, self.dropout)
        if self.dropout_in == "first":  # each hidden layer is Linear, ReLU, Dropout
            hidden = [m for i, m in enumerate(hidden) if i < 3 or not isinstance(m, nn.Dropout)]
        return nn.Sequential(*layers, nn.Flatten(), *hidden), self.hidden[-1]


def fedmix_lenet5(width: int = 32) -> LeNet:
    """Return the LeNet-5 of Reisser et al. (2021, sec. 4.1): two 5x5 convolutions and FC 512.

    The paper gives only the widths of its wide FedAvg variants, 61 channels for two experts and
    113 for four. ``width=32`` is the simplest LeNet for which these are the nearest integers:
    443,306, 884,164 (x 1.994) and 1,779,968 (x 4.015) parameters.

    Args:
        width: number of channels of both convolutions. Default: 32.
    """
    return LeNet(channels=(width, width), hidden=(512,))


@value
class MLP(Architecture):
    """A multi-layer perceptron with ReLU on flattened examples.

    Args:
        hidden: widths of the hidden layers. Default: (200, 200), as in FedMix, App. F.

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


# "uniform" is the default initialisation of PyTorch.
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
    """The hidden layers of a dense gate network.

    The defaults are those of Feng et al. (PM-MoE, 2025): four layers with the output,
    LeakyReLU and orthogonal weights; their released code also has dropout and a ReLU after the
    first layer.

    Args:
        hidden: widths of the hidden layers. Default: (128, 256, 128).
        activation: activation function, one of ``ACTIVATIONS``. Default: "leaky_relu".
        init: initialisation of weights, one of ``INITS``. Default: "orthogonal".
    """

    hidden: tuple[int, ...] = (128, 256, 128)
    activation: Annotated[str, tuple(ACTIVATIONS)] = "leaky_relu"
    init: Annotated[str, tuple(INITS)] = "orthogonal"

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Architecture``."""
        kind = ACTIVATIONS[self.activation]
        layers = dense(math.prod(shape), self.hidden, activation=kind)
        return nn.Sequential(nn.Flatten(), *layers), (math.prod(shape), *self.hidden)[-1]

    def init_weights(self, params: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return parameters whose weight matrices are reinitialised by ``init`` with ``seed``."""
        with seeded(seed), torch.no_grad():
            return {
                n: INITS[self.init](t.clone()) if n.endswith("weight") and t.ndim == 2 else t
                for n, t in params.items()
            }


@value(kind="Module")
class FromFunction(Architecture):
    """Any ``torch.nn.Module``, as returned by a function; it must compute features ``[B, D]``.

    The function is called when a task is built, which raises ValueError if that fails. A spec read
    from text may only name functions of allowed modules (``values.ALLOWED``: torchvision.models,
    modules given by ``--import``, and those that Python code of this process has named).

    Args:
        function: "package:function", a function or class that returns the module.
        arguments: pairs of name and value of its keyword arguments. Default: ().
        head: name of the output layer of a complete classifier, which is replaced by a new one with
            the task's classes. Default: "", the module has no output layer.
        frozen: prefixes of names of parameters that are not trained ("" for all). Like those that
            do not require gradients, they are constants of the network. Default: ().

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
            if package in ALLOWED:  # it may be imported, but not what it imports from elsewhere
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
                h = module.eval()(dummy_batch(shape, 2, reads_tokens(self, module)))
            if h.ndim != 2 or len(h) != 2:
                raise ValueError(f"makes {list(h.shape)} of two examples, not features [2, D]")
        except Exception as error:  # a user-defined function may raise anything
            where = f"for examples {list(shape)}, which arrive as {arriving(shape)}"
            raise ValueError(f"{self}, {where}: {error}") from error
        return module.train(), h.shape[1]

    def _made(self) -> nn.Module:
        package, _, name = self.function.partition(":")
        module: nn.Module = getattr(import_module(package), name)(**dict(self.arguments))
        if self.head:
            module.get_submodule(self.head)  # raises if there is none
            owner, _, name = self.head.rpartition(".")
            setattr(module.get_submodule(owner), name, nn.Identity())
        fixed = [p for n, p in module.named_parameters() if n.startswith(self.frozen)]
        if self.frozen and not fixed:
            raise ValueError("freezes nothing: no parameter begins so")
        for parameter in fixed:
            parameter.requires_grad_(False)
        return module


def reads_tokens(family: Any, module: nn.Module) -> bool:
    """Return whether a module reads token ids: ``family.reads_tokens``, or if it has embeddings."""
    embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
    told = getattr(family, "reads_tokens", None)
    return embeds if told is None else told


def dummy_batch(shape: tuple[int, ...], count: int, tokens: bool, padding: int = 0) -> Tensor:
    """Return artificial examples for a dry run, in the layout in which modules receive them.

    Args:
        shape: shape of an example.
        count: number of examples.
        tokens: whether examples are token ids. Texts repeat one word, and each is shorter than the
            one before; otherwise values are uniform.
        padding: token id of the padding. Default: 0.
    """
    if tokens:
        beyond = torch.arange(shape[-1]) >= (shape[-1] - torch.arange(count)[:, None]).clamp(min=1)
        ids = torch.where(beyond, padding, int(padding != 1))
        return ids.view(count, *[1] * (len(shape) - 1), -1).expand(count, *shape)
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    return x.movedim(-1, 1) if len(shape) == 3 else x


def arriving(shape: tuple[int, ...]) -> str:
    """Return the shape of a batch as modules receive it, as text."""
    axes = [*shape[-1:], *shape[:-1]] if len(shape) == 3 else shape
    return f"[{', '.join(map(str, ('B', *axes)))}]"


@value
class ResNet(Architecture):
    """The residual network for small images, with GroupNorm instead of BatchNorm.

    A stage consists of basic blocks with two 3x3 convolutions; the first block of every later stage
    halves the resolution, with a 1x1 convolution in the shortcut. The defaults are ResNet-20:
    278,324 parameters with 100 classes.

    Args:
        blocks: number of blocks per stage. Default: 3.
        widths: number of channels of each stage. Default: (16, 32, 64).
        groups: number of groups of GroupNorm. Default: 2.

    Reference: He et al., Deep residual learning for image recognition, CVPR 2016, sec. 4.2.

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
    """A basic block: two convolutions with a shortcut connection."""

    def __init__(self, depth: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_normed(depth, width, 3, stride, groups), nn.ReLU())
        self.second = nn.Sequential(*_normed(width, width, 3, 1, groups))
        same, self.stride = depth == width and stride == 1, stride
        self.project = None if same else nn.Sequential(*_normed(depth, width, 1, 1, groups))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, ``[B, width, H / stride, W / stride]``.

        The input is subsampled before the 1x1 convolution, in place of a stride: the numbers are
        the same, and a bug of oneDNN is avoided (``interception.FEW``).
        """
        past = x
        if self.project is not None:
            past = self.project(x[:, :, :: self.stride, :: self.stride])
        return functional.relu(self.second(self.first(x)) + past)


def _normed(depth: int, width: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    convolution = nn.Conv2d(depth, width, kernel, stride, kernel // 2, bias=False)
    return [convolution, nn.GroupNorm(groups, width)]


class MaxPool2d(nn.MaxPool2d):
    """Max-pooling by two, which is ten times as fast as torch's without gradients.

    torch also computes the index of every maximum, which is slow with few channels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the maximum of every 2x2 window, ``[B, C, H / 2, W / 2]``."""
        if torch.is_grad_enabled() or x.shape[-1] % 2 or x.shape[-2] % 2:
            return super().forward(x)
        rows = x.permute(0, 2, 3, 1).unflatten(1, (-1, 2))
        columns = torch.maximum(rows[:, :, 0], rows[:, :, 1]).unflatten(2, (-1, 2))
        return torch.maximum(columns[:, :, :, 0], columns[:, :, :, 1]).permute(0, 3, 1, 2)


class Stackable(nn.Linear):
    """A linear layer with the weight as left factor, which is faster for vmapped small networks."""

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
    """Return hidden layers: for each width of ``hidden`` a linear layer, activation and dropout."""
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise((features, *hidden)):
        layers += [layer(n, out), activation(), *([nn.Dropout(dropout)] if dropout else [])]
    return layers


def shaped(family: Architecture, shape: tuple[int, ...], axes: int, kind: str) -> tuple[int, ...]:
    """Return ``shape``; raise ValueError unless it has the number of ``axes`` of its ``kind``."""
    if len(shape) != axes:
        like = {1: "(tokens,)", 3: "(height, width, channels)"}[axes]
        raise ValueError(f"{family} is for {kind} {like}, and examples have shape {shape}")
    return shape


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator within the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def params_of(layers: Mapping[str, nn.Module]) -> Params:
    """Return the parameters of named modules by their full names, "name.parameter"."""
    return {f"{n}.{k}": p.detach() for n, m in layers.items() for k, p in m.named_parameters()}


def auto_encoder(inputs: int, hidden: tuple[int, ...], latent: int, seed: int) -> Params:
    """Return freshly initialised parameters of a dense variational auto-encoder.

    With 784 inputs, hidden (512, 256) and latent 32, it has 549,696 + 542,224 parameters
    (Reisser et al., 2021, App. F). Names are ``encoder.<layer>.weight`` ``[out, in]`` and so on.
    Initialisation is PyTorch's default.

    Args:
        inputs: number of inputs, which are in [0, 1].
        hidden: widths of the hidden layers of the encoder, mirrored by the decoder.
        latent: dimension of the latent code.
        seed: seed of the initialisation.

    Reference: Kingma and Welling, Auto-encoding variational Bayes, ICLR 2014.
    """
    halves = {"encoder": (inputs, *hidden, 2 * latent), "decoder": (latent, *hidden[::-1], inputs)}
    layers: dict[str, nn.Module] = {}
    with seeded(seed):
        for half, widths in halves.items():
            pairs = enumerate(itertools.pairwise(widths))
            layers |= {f"{half}.{i}": nn.Linear(n, out) for i, (n, out) in pairs}
    return params_of(layers)


def evidence_bound(params: Params, pixels: Tensor, noise: Tensor) -> Tensor:
    """Return the evidence lower bound (ELBO) of log p(x) in nats, ``[B]``.

    Args:
        params: parameters of the auto-encoder.
        pixels: values in [0, 1], ``[B, inputs]``, taken as means of Bernoulli variables.
        noise: standard normal ``[B, latent]``; zeros evaluate the decoder at the posterior mean.
    """
    mean, log_variance = _through(params, "encoder", pixels).chunk(2, -1)
    code = mean + (log_variance / 2).exp() * noise
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
    return _log_likelihood(params, code, pixels) - divergence


def evidence(params: Params, pixels: Tensor, noise: Tensor) -> Tensor:
    """Return the importance-weighted estimate of log p(x) in nats, ``[B]``.

    With one sample it is an unbiased estimate of the ELBO; with more samples it increases towards
    log p(x).

    Args:
        params: parameters of the auto-encoder.
        pixels: values in [0, 1], ``[B, inputs]``.
        noise: standard normal ``[samples, latent]``, used for all examples.

    Reference: Burda et al., Importance weighted autoencoders, ICLR 2016.
    """
    mean, log_variance = _through(params, "encoder", pixels).chunk(2, -1)
    each = []
    for normal in noise:
        code = mean + (log_variance / 2).exp() * normal
        prior = -0.5 * code.square().sum(-1)
        posterior = -0.5 * (normal.square().sum() + log_variance.sum(-1))
        each.append(prior - posterior + _log_likelihood(params, code, pixels))
    return torch.stack(each).logsumexp(0) - math.log(len(noise))


def _log_likelihood(params: Params, code: Tensor, pixels: Tensor) -> Tensor:
    """Return log p(x|code), ``[B]``."""
    logits = _through(params, "decoder", code)
    loss = functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
    return -loss.sum(-1)


def _through(params: Params, half: str, x: Tensor) -> Tensor:
    """Return the output of the encoder or the decoder (``half``)."""
    last = max(int(n.split(".")[1]) for n in params if n.startswith(half))
    for i in range(last + 1):
        x = functional.linear(x, params[f"{half}.{i}.weight"], params[f"{half}.{i}.bias"])
        x = x.relu() if i < last else x
    return x
