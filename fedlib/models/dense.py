"""Dense networks that are no classifiers of images: PM-MoE's gate, and an auto-encoder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, linear

from fedlib.models.families import Family, dense
from fedlib.models.net import Params, drawn
from fedlib.values import value, within

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}


def _normal(weight: Tensor) -> Tensor:
    return nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def _spectral(weight: Tensor) -> Tensor:
    """Return the weight with 1 as its largest singular value."""
    return weight / torch.linalg.matrix_norm(weight, 2)


# PyTorch's own initialisation of a layer is uniform.
INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda w: w,
    "normal": _normal,
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "spectral": _spectral,
}


@value
class GateNet(Family):
    """Dense layers of ``hidden`` units with an ``activation``, below an output per expert.

    Weights begin as ``init`` says. 004 has four layers, LeakyReLU and orthogonal weights; its
    released code also has a ``dropout`` of 0.1 and a ReLU after the first layer.
    """

    limits = within(activation=tuple(ACTIVATIONS), init=tuple(INITS), dropout="[0, 1)")
    hidden: tuple[int, ...] = (128, 256, 128)
    activation: str = "leaky_relu"
    init: str = "orthogonal"
    dropout: float = 0.0

    def check(self) -> None:
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"GateNet.hidden must be >= 1, got {self.hidden}")

    @property
    def noise(self) -> int:
        """How many random numbers per example training asks for: one per unit that may drop."""
        return sum(self.hidden) if self.dropout else 0

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return the hidden layers; see ``Family``."""
        kind = ACTIVATIONS[self.activation]
        layers = dense(math.prod(shape), self.hidden, self.dropout, activation=kind)
        return nn.Sequential(nn.Flatten(), *layers), (math.prod(shape), *self.hidden)[-1]

    def begun(self, leaves: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return fresh leaves with weights as ``init`` says, drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return {
                n: INITS[self.init](t.clone()) if n.endswith("weight") and t.ndim == 2 else t
                for n, t in leaves.items()
            }


class AutoEncoder:
    """A dense VAE on ``inputs`` values in [0, 1] (Kingma and Welling, 2014).

    ``hidden`` are the encoder's widths, mirrored by the decoder; ``latent`` is the length of the
    code. 784 inputs, (512, 256) and 32 have 549,696 + 542,224 parameters (000, App. F). Leaves are
    ``encoder.<layer>.weight`` ``[out, in]`` and so on.
    """

    def __init__(self, inputs: int, hidden: tuple[int, ...], latent: int) -> None:
        self.encoder = (inputs, *hidden, 2 * latent)
        self.decoder = (latent, *reversed(hidden), inputs)

    def init(self, seed: int) -> Params:
        """Return fresh parameters (PyTorch's default initialisation) drawn from ``seed``."""
        halves = {"encoder": self.encoder, "decoder": self.decoder}
        return drawn(
            lambda: {
                f"{half}.{i}": nn.Linear(n, out)
                for half, widths in halves.items()
                for i, (n, out) in enumerate(itertools.pairwise(widths))
            },
            seed,
        )

    def bound(self, leaves: Params, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return the evidence lower bound of log p(x) in nats, ``[B]``.

        ``pixels`` ``[B, inputs]`` are read as Bernoulli means; ``noise`` is standard normal,
        ``[B, latent]``: zeros give the bound at the posterior mean.
        """
        mean, log_variance = self._posterior(leaves, pixels)
        code = mean + (log_variance / 2).exp() * noise
        apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return self._likelihood(leaves, code, pixels) - apart

    def evidence(self, leaves: Params, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return the importance-weighted estimate of log p(x), ``[B]`` (Burda et al., 2016).

        ``noise`` is standard normal, ``[samples, latent]``, the same for all examples. With one
        sample it is an unbiased estimate of the bound, with more it rises towards log p(x).
        """
        mean, log_variance = self._posterior(leaves, pixels)
        each = []
        for normal in noise:
            code = mean + (log_variance / 2).exp() * normal
            prior = -0.5 * code.square().sum(-1)
            posterior = -0.5 * (normal.square().sum() + log_variance.sum(-1))
            each.append(prior - posterior + self._likelihood(leaves, code, pixels))
        return torch.stack(each).logsumexp(0) - math.log(len(noise))

    def _posterior(self, leaves: Params, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return mean and log-variance of the code, ``[B, latent]`` each."""
        return _through(leaves, "encoder", pixels).chunk(2, -1)

    def _likelihood(self, leaves: Params, code: Tensor, pixels: Tensor) -> Tensor:
        """Return log p(x|code), ``[B]``."""
        logits = _through(leaves, "decoder", code)
        return -binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(-1)


def _through(leaves: Params, half: str, x: Tensor) -> Tensor:
    last = max(int(n.split(".")[1]) for n in leaves if n.startswith(half))
    for i in range(last + 1):
        x = linear(x, leaves[f"{half}.{i}.weight"], leaves[f"{half}.{i}.bias"])
        x = x.relu() if i < last else x
    return x
