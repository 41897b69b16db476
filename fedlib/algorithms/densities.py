"""New clients without labels: whom to ask is p(s|x) ~ p(x|s) p(s) (000, App. F)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, mean, rows_of
from fedlib.algorithms.stages import SecondStage
from fedlib.engine import EarlyStop, Phase, State, noise_of
from fedlib.federation import Federation
from fedlib.models import AutoEncoder, Net, Params, named, part
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import value

VAE, LATENT = "vae.", "latent"
NOISE = noise_of(LATENT)


@value
class Densities(SecondStage):
    """Every client of a trained federation fits a variational auto-encoder to its own examples.

    A second stage over ``of`` (``Experiment.after`` is the federation that trained), in which only
    the auto-encoders move: all in one program, each until its bound on the client's validation
    examples has not improved for ``stop.patience`` epochs. A newcomer's example x is then voted on
    with p(s|x) ~ p(x|s) p(s) in place of p(s) (eq. 18). Seen clients are predicted as ``of`` does.

    ``hidden``, ``latent``: widths of the auto-encoders; ``samples``: draws in the
    importance-weighted estimate of log p(x|s). Play one round with every client (cohort 1.0).
    """

    federates = True  # they send their auto-encoders
    drops = False
    epochs: int = 100
    batch_size: int | None = 10
    client: Optimizer = adam(1e-3)
    hidden: tuple[int, ...] = (512, 256)
    latent: int = 32
    samples: int = 1
    stop: EarlyStop = EarlyStop(every=1, patience=3)

    def check(self) -> None:
        if min(*self.hidden, self.latent, self.samples, 1) < 1:
            raise ValueError(f"hidden, latent and samples must be >= 1, got {self}")
        FedAvg.check(self)

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of an auto-encoder, or kept local by ``of``."""
        return name.startswith(VAE) or self.of.is_local(name)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the first stage's leaves and one fresh auto-encoder for every client."""
        if first is None:
            raise ValueError("Densities follow a federation: give its experiment as `after`")
        fresh = named(_encoder(fed.net, self).init(torch_seed(seed, "model", 0)), VAE)
        return replace(first, local={**first.local, **rows_of(fresh, fed)})

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return what ``of`` tells all clients, how to undo the normalisation, and fixed noise."""
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(self.samples, self.latent, generator=draw).to(fed.device)
        look = {"vae:scale": fed.train.scale, "vae:shift": fed.train.shift}
        return {**self.of.broadcast(fed, state), **look, "vae:noise": noise}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the auto-encoders, stopped by their own bound."""
        return (
            Phase(
                self.client,
                self.epochs,
                self.batch_size,
                (VAE,),
                stop=self.stop,
                noise=((LATENT, self.latent),),
                watch="loss",
            ),
        )

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the negative bound of log p(x|s) in nats, at the posterior mean without noise."""
        pixels = _pixels(_flat(batch["x"]), ctx)
        if NOISE in batch:
            normal = torch.special.ndtri(batch[NOISE].clamp(1e-7, 1 - 1e-7))
        else:
            normal = pixels.new_zeros(self.latent)
        bound = _encoder(net, self).bound(part(params, VAE), pixels, normal)
        return -mean(bound, batch["weight"])

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return no bytes down, and every client's auto-encoder up."""
        mine = (t for n, t in state.local.items() if n.startswith(VAE))
        up = sum(t[0].numel() * t.element_size() for t in mine)
        return torch.zeros(len(rows), dtype=torch.int64), torch.full((len(rows),), up)

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what the shared leaves of ``of`` say, and the examples themselves."""
        return {**self.of.encode(net, shared, x), "vae:x": _flat(x)}

    def log_density(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the estimate of log p(x|s), ``[B]``."""
        pixels = _pixels(code["vae:x"], ctx)
        return _encoder(net, self).evidence(part(params, VAE), pixels, ctx["vae:noise"])


@cache
def _encoder_of(inputs: int, hidden: tuple[int, ...], latent: int) -> AutoEncoder:
    return AutoEncoder(inputs, hidden, latent)


def _encoder(net: Net, of: Densities) -> AutoEncoder:
    return _encoder_of(math.prod(net.shape), of.hidden, of.latent)


def _flat(x: Tensor) -> Tensor:
    """Return images ``[B, channels, height, width]`` as rows, in the order of their memory."""
    return x.movedim(-3, -1).flatten(1)


def _pixels(x: Tensor, ctx: Params) -> Tensor:
    """Return normalised rows as values in [0, 1]."""
    return ((x - ctx["vae:shift"]) / (255 * ctx["vae:scale"])).clamp(0, 1)
