"""Differential privacy of clients, who send their term of a weighted sum and nothing else."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from fedlib.algorithms.drift import SCAFFOLD
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *
from fedlib.algorithms.local import NoServer

OWN = ("postprocess", "weights", "aggregate", "communication_bytes")  # hooks not taken from ``of``


@dataclass(frozen=True)
class WeightedSums(FedAvg):
    """A base class of wrappers whose server only computes sums over clients.

    Args:
        of: the wrapped algorithm, whose server must need weighted sums only. All hooks but those
            in ``OWN`` are taken from it. Default: ``FedAvg()``.
    """

    of: FedAvg = FedAvg()  # noqa: RUF009, a value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of ``of``, such as a loss that its phases name."""
        if name.startswith("_") or name == "of":
            raise AttributeError(name)
        return getattr(self.of, name)

    def check(self) -> None:
        kind, of = type(self).__name__, type(self.of)
        sums = of.aggregate is FedAvg.aggregate and not isinstance(self.of, NoServer)
        weighs = of.weights is not FedAvg.weights and of.client_weight is FedAvg.client_weight
        if not sums or weighs:
            raise ValueError(
                f"the server of {kind} sees only weighted sums, and {of.__name__} needs more"
            )
        for field in fields(FedAvg):
            if getattr(self, field.name) != field.default:
                raise ValueError(f"{kind} trains as `of` does: give {field.name} to `of`")

    weights = SCAFFOLD.weights  # 1 / |S|, as messages are already weighted


for hook in ("_optional", *(name for name in vars(Algorithm) if name[0] != "_")):
    if hook not in OWN:
        setattr(WeightedSums, hook, wrapped(hook))


@value
class Private(WeightedSums):
    """Client-level differential privacy: clipped updates and Gaussian noise.

        d_s   = all u_s (w - w_s) of a client, over every shared parameter
        d_s   <- d_s min(1, C / |d_s|)                                    at the client
        Delta = ( sum_s d_s + N(0, z^2 C^2 I) ) / D                       ``at`` the "server"
        Delta = ( sum_s [ d_s + N(0, z^2 C^2 I) ] ) / D                   ``at`` the "client"
        D     = m, for each of K experts m / K                            for a cohort of m clients
        w     <- a step of ``of.server`` along Delta

    u_s is the weight of a client if all clients count the same: 1, or q(z|s) for an expert of
    FedMix, which is then not sent itself. With noise at the server, the model protects clients from
    anyone who sees it, but the server must be trusted; with noise at the clients it need not be.
    ``privacy.epsilon`` computes epsilon. Label distributions that ``of`` asks clients for
    (``shares_asked``) are not protected: with ``marginal_entropy`` above 0 the server of FedMix
    knows every client's label counts.

    Args:
        of: the wrapped algorithm, whose server must need weighted sums only. Default:
            ``FedAvg()``.
        clip: greatest norm C of a client's update, above 0. Default: 1.0.
        noise: noise multiplier z, at least 0. Default: 1.0.
        at: where the noise is added, "server" or "client". Default: "server".

    Reference: McMahan et al., Learning differentially private recurrent language models, ICLR 2018
    (algorithm 1 with flat clipping and the fixed-denominator estimator); noise at the client is the
    local variant of Geyer et al. Deviation: all clients have the same weight, and cohorts of fixed
    size are drawn without replacement, where the paper samples each client independently.

    >>> from fedlib.privacy import epsilon
    >>> from fedrun import Experiment, run, tiny
    >>> private = Private(of=FedAvg(epochs=5), clip=0.5, noise=2.0)
    >>> result = run(Experiment(tiny.task, private, rounds=2, cohort=2), progress=False)
    >>> 1 < epsilon(private, clients=6, cohort=2, rounds=2, delta=0.1) < 10
    True
    """

    clip: PositiveFloat = 1.0
    noise: NonNegativeFloat = 1.0
    at: Annotated[str, ("server", "client")] = "server"

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what ``of`` keeps, and the client's clipped terms of all sums.

        Raises:
            ValueError: if statistics of BatchNorm would be sent.
        """
        own, message = self.of.postprocess(cohort, after, update)
        one = torch.ones(len(cohort.clients), device=cohort.clients.device)
        parts = clipped(weighted(self.client_weight(one, message), message), self.clip)
        if statistics := ", ".join(filter(is_statistic, parts)):
            way = "of=FedBN(...) keeps them at their client, and nn.GroupNorm has none"
            raise ValueError(f"noise would spoil BatchNorm's statistics, {statistics}: {way}")
        if self.at == "client":
            seed, round = (int(cohort.common[n]) for n in ("seed", "round"))
            ids = cohort.fed.ids[cohort.clients.cpu().numpy()].tolist()
            rows = [{n: t[i] for n, t in parts.items()} for i in range(len(ids))]
            seeds = [torch_seed(seed, "privacy", round, i) for i in ids]
            parts = stack([self._noisy(*row) for row in zip(rows, seeds, strict=True)])
        return own, parts

    def _noisy(self, parts: Params, seed: int) -> Params:
        """Return parameters plus Gaussian noise of standard deviation z C."""
        draw, size = torch.Generator().manual_seed(seed), self.noise * self.clip
        by_name = sorted(parts.items())  # the draw must not depend on the order of parameters
        return {n: t + size * torch.randn(t.shape, generator=draw).to(t) for n, t in by_name}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state after a step along the noisy sum, over a fixed denominator."""
        total = {n: t.sum(0) for n, t in messages.items()}
        if self.at == "server":
            total = self._noisy(total, torch_seed(state.seed, "server", state.round))
        one = torch.ones(len(clients), device=clients.device)
        masses = {n: u.sum(0) for n, u in self.client_weight(one, total).items()}
        return self.of.server_update(fed, state, divided(total, masses))


def weighted(masses: Params, message: Params) -> Params:
    """Return u_s (w - w_s), with ``masses`` u, ``[clients]`` or ``[clients, K]``, by parameter."""
    return {n: beside(u, message[n]) * message[n] for n, u in masses.items()}


def divided(total: Params, masses: Params) -> Params:
    """Return ``total`` divided by ``masses``, scalars or ``[K]``; 0 where the mass is 0."""
    return {n: total[n] / beside(torch.where(u == 0, 1, u), total[n]) for n, u in masses.items()}


def clipped(parts: Params, most: float) -> Params:
    """Return ``parts`` ``[clients, ...]`` with the norm of each client scaled down to ``most``.

    The norm is that of all parameters together; smaller ones do not change.

    >>> clipped({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]  # of norms 5 and 0.5
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    squares = [t.square().unsqueeze(-1).flatten(1).sum(1) for _, t in sorted(parts.items())]
    if not squares:
        return {}
    length = torch.stack(squares).sum(0).sqrt()
    scale = most / length.clamp(min=most)
    return {n: beside(scale, t) * t for n, t in parts.items()}
