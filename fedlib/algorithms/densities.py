"""New clients without labels: whom to ask of an example (000, App. F)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import Bytes, alike_bytes, mean, rows_of
from fedlib.algorithms.local import SecondStage
from fedlib.engine import EarlyStop, Phase, State, noise_of
from fedlib.federation import Federation
from fedlib.models import AutoEncoder, Net, Params, named, part
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import value, within

VAE, LATENT = "vae.", "latent"
NOISE = noise_of(LATENT)


@value
class Densities(SecondStage):
    """Every client of a trained federation fits a variational auto-encoder to its own examples.

    A newcomer's example x is then voted on by clients s with p(s|x) in place of p(s).

        p(z|x) = sum_s p_theta_s(z|x, s) p(s|x),     p(s|x) ~ p(x|s) p(s)              (eq. 18)
        log p(x|s) ~ log mean_l p(x|u_l) p(u_l) / r(u_l|x)       over L = ``samples`` draws u_l

    ``hidden`` and ``latent`` are the widths of the auto-encoders (r encodes, p decodes), ``of`` the
    federation's algorithm. A second stage (``Experiment.after`` is the federation that trained), in
    which only the auto-encoders move: all in one program, each until its bound on the client's
    validation examples has not improved for ``stop.patience`` epochs. Seen clients are predicted as
    ``of`` does. Play one round with every client (cohort 1.0).

    Reference: Reisser et al., Federated mixture of experts, App. F (000). Deviation: the estimate
    has noise that all clients and examples share; the default of new clients is p(s) (A17).
    """

    federates = True  # they send their auto-encoders
    drops = False
    trains = (VAE,)
    limits = within(hidden=">= 1", latent=">= 1", samples=">= 1")
    epochs: int = 100
    batch_size: int | None = 10
    client: Optimizer = adam(1e-3)
    hidden: tuple[int, ...] = (512, 256)
    latent: int = 32
    samples: int = 1
    stop: EarlyStop = EarlyStop(every=1, patience=3)

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
        noise = ((LATENT, self.latent),)
        return (self.phase(stop=self.stop, noise=noise, watch="loss"),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the negative bound of log p(x|s) in nats, at the posterior mean without noise."""
        pixels = _pixels(_flat(batch["x"]), ctx)
        if NOISE in batch:
            normal = torch.special.ndtri(batch[NOISE].clamp(1e-7, 1 - 1e-7))
        else:
            normal = pixels.new_zeros(self.latent)
        bound = _encoder(net, self).bound(part(params, VAE), pixels, normal)
        return -mean(bound, batch["weight"])

    def communication_bytes(self, state: State, rows: Tensor, messages: Params) -> Bytes:
        """Return no bytes down, and every client's auto-encoder up."""
        return alike_bytes(rows, {}, {n: t[0] for n, t in part(state.local, VAE).items()})

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what the shared leaves of ``of`` say, and the examples themselves."""
        return {**self.of.encode(net, shared, x), "vae:x": _flat(x)}

    def log_density(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the estimate of log p(x|s), ``[B]``."""
        pixels = _pixels(code["vae:x"], ctx)
        return _encoder(net, self).evidence(part(params, VAE), pixels, ctx["vae:noise"])


_encoder_of = cache(AutoEncoder)


def _encoder(net: Net, of: Densities) -> AutoEncoder:
    return _encoder_of(math.prod(net.shape), of.hidden, of.latent)


def _flat(x: Tensor) -> Tensor:
    """Return images ``[B, channels, height, width]`` as rows, in the order of their memory."""
    return x.movedim(-3, -1).flatten(1)


def _pixels(x: Tensor, ctx: Params) -> Tensor:
    """Return normalised rows as values in [0, 1]."""
    return ((x - ctx["vae:shift"]) / (255 * ctx["vae:scale"])).clamp(0, 1)
