"""A variational auto-encoder as pure functions of its parameters: log p(x), from below."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib.models.net import Params, drawn


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
        mean, log_variance = _dense(leaves, "encoder", pixels).chunk(2, -1)
        code = mean + (log_variance / 2).exp() * noise
        logits = _dense(leaves, "decoder", code)
        said = functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
        apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return -said.sum(-1) - apart

    def evidence(self, leaves: Params, pixels: Tensor, noise: Tensor) -> Tensor:
        """Return the importance-weighted estimate of log p(x), ``[B]`` (Burda et al., 2016).

        ``noise`` is standard normal, ``[samples, latent]``, the same for all examples. With one
        sample it is an unbiased estimate of the bound, with more it rises towards log p(x).
        """
        mean, log_variance = _dense(leaves, "encoder", pixels).chunk(2, -1)
        spread = (log_variance / 2).exp()
        each = []
        for normal in noise:
            code = mean + spread * normal
            logits = _dense(leaves, "decoder", code)
            said = functional.binary_cross_entropy_with_logits(logits, pixels, reduction="none")
            prior = -0.5 * code.square().sum(-1)
            posterior = -0.5 * (normal.square().sum() + log_variance.sum(-1))
            each.append(prior - posterior - said.sum(-1))
        return torch.stack(each).logsumexp(0) - math.log(len(noise))


def _dense(leaves: Params, half: str, x: Tensor) -> Tensor:
    last = max(int(n.split(".")[1]) for n in leaves if n.startswith(half))
    for i in range(last + 1):
        x = functional.linear(x, leaves[f"{half}.{i}.weight"], leaves[f"{half}.{i}.bias"])
        x = x.relu() if i < last else x
    return x
