"""Servers that learn little of single clients: differential privacy, and sums behind masks.

Both hand the server a client's part of every average, u_s (w - w_s), and nothing else of it.
"""

import itertools
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import Bytes, FedAvg
from fedlib.algorithms.local import NoServer
from fedlib.engine import Algorithm, Cohort, State, Update
from fedlib.federation import Federation
from fedlib.models import Params, is_statistic
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeFloat, PositiveFloat, PositiveInt, value, wrapped

OWN = ("postprocess", "weights", "aggregate", "communication_bytes")  # of a server that adds up
MASS = "mass"  # in a message: what a client weighs, all of it, and in each expert
MASSES = "mass.expert"
RING = 2**32  # in which masked numbers are added
KEY, SHARE = 32, 48  # bytes of a public key, and of a peer's encrypted share of a secret


@dataclass(frozen=True)
class Summed(FedAvg):
    """``of`` behind a server that only adds up. All else is as ``of`` has it.

    ValueError for an algorithm whose server needs more than weighted sums.
    """

    of: FedAvg = FedAvg()  # noqa: RUF009, a value

    def __getattr__(self, name: str) -> Any:
        """Return what else ``of`` has: the losses that its phases name."""
        if name.startswith("_") or name == "of":
            raise AttributeError(name)
        return getattr(self.of, name)

    def check(self) -> None:
        kind, of = type(self).__name__, type(self.of)
        sums = of.aggregate is FedAvg.aggregate and self.of.communicates
        if not sums or isinstance(self.of, NoServer):  # VAEDensity send whole auto-encoders
            raise ValueError(f"{kind} hands a server sums, and {of.__name__} needs more than these")
        for field in fields(FedAvg):
            if getattr(self, field.name) != field.default:
                raise ValueError(f"{kind} trains as `of` does: give {field.name} to that")

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return 1 / |S| for every client: what is sent is weighted already."""
        p = torch.full(
            (len(clients),), 1 / len(clients), dtype=torch.float64, device=clients.device
        )
        return {n: p for n in state.server_params if n in messages}


for hook in (
    *vars(Algorithm),
    "optional",
    "predicts_from_inputs",
    "local",
    "init_params",
    "client_weight",
):
    if hook[0] != "_" and hook not in OWN:
        setattr(Summed, hook, wrapped(hook))


@value
class Private(Summed):
    """``of`` with differential privacy of whole clients: clipped differences, Gaussian noise.

    ``clip`` is C, ``noise`` is z; m clients take part. u_s is what a client weighs when all clients
    count alike: 1, for an expert of FedMix q(z|s). So q(z|s) itself is not sent.

        d_s   = all u_s (w - w_s) of a client, of every shared leaf
        d_s   <- d_s min(1, C / |d_s|)                                    at the client
        Delta = ( sum_s d_s + N(0, z^2 C^2 I) ) / D                       ``at`` the "server"
        Delta = ( sum_s [ d_s + N(0, z^2 C^2 I) ] ) / D                   ``at`` the "client"
        D     = m, for each of K experts m / K                            whoever takes part
        w     <- a step of ``of.server`` along Delta

    With noise at the server whoever sees w learns little of a client, and the server is trusted;
    with noise at the client nobody is. What it costs in epsilon: ``privacy.epsilon``.
    What ``of`` asks clients for besides (``shares_asked``) no noise protects: with
    ``marginal_entropy`` the server of FedMix knows every client's label counts, with 0 none.

    Reference: McMahan et al., Learning differentially private recurrent language models, ICLR 2018
    (algorithm 1 with flat clipping and the fixed-denominator estimator); at the client Geyer et
    al.'s setting made local. Deviation: clients count alike and cohorts have a fixed size, drawn
    without replacement, where the paper draws each client by a coin.

    >>> clipped({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]  # of lengths 5 and 0.5
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    clip: PositiveFloat = 1.0
    noise: NonNegativeFloat = 1.0
    at: Annotated[str, ("server", "client")] = "server"

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what ``of`` keeps, and a client's clipped part of every average."""
        own, message = self.of.postprocess(cohort, after, update)
        one = torch.ones(len(cohort.clients), device=cohort.clients.device)
        parts = clipped(weighted(self.client_weight(one, message), message), self.clip)
        if statistics := [n for n in parts if is_statistic(n)]:
            way = "of=FedBN(...) keeps them at their client, and nn.GroupNorm has none"
            what = ", ".join(statistics)
            raise ValueError(f"noise would spoil BatchNorm's statistics, {what}: {way}")
        if self.at == "client":
            seed, round = int(cohort.common["seed"]), int(cohort.common["round"])
            ids = cohort.fed.ids[cohort.clients.cpu().numpy()].tolist()
            seeds = [torch_seed(seed, "privacy", round, i) for i in ids]
            drawn = [self._drawn({n: t[0] for n, t in parts.items()}, s) for s in seeds]
            parts = {n: t + torch.stack([d[n] for d in drawn]) for n, t in parts.items()}
        return own, parts

    def _drawn(self, like: Params, seed: int) -> Params:
        """Return Gaussian noise of standard deviation z C for every number of some leaves."""
        draw, size = torch.Generator().manual_seed(seed), self.noise * self.clip
        by_name = sorted(like.items())  # so that no order of leaves is in the draw
        return {n: size * torch.randn(t.shape, generator=draw).to(t) for n, t in by_name}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Step along the noisy sum over a denominator that does not hang on any client."""
        total = {n: t.sum(0) for n, t in messages.items()}
        if self.at == "server":
            drawn = self._drawn(total, torch_seed(state.seed, "server", state.round))
            total = {n: t + drawn[n] for n, t in total.items()}
        one = torch.ones(len(clients), device=clients.device)
        masses = {n: u.sum(0) for n, u in self.client_weight(one, total).items()}
        return self.of.server_update(fed, state, divided(total, masses))


@value
class SecureSum(Summed):
    """``of`` whose server is sent masked numbers, of which it can read the sum only: a simulation.

    u_s is what a client weighs (N_s / ``most``, for an expert of FedMix times q(z|s)); ``bits`` is
    f, the bits of a number behind the point. m_st is drawn from a key that s and t share.

        v_s   = round( 2^f [ u_s (w - w_s), u_s ] )
        c_s   = v_s + sum_{t > s} m_st - sum_{t < s} m_ts     mod 2^32    all that the server sees
        Delta = sum_s c_s / 2^f,  its first part over its second          masks cancel

    What is simulated: numbers are rounded and added as the server would, and so wrong by as much;
    bytes count the numbers, two public keys of every client and the shares of two secrets with all
    others. The masks, which leave no trace in the sum, are drawn in ``masked`` only; no key is
    agreed on, nobody drops out, and on a real wire (examples/flower) this is an error.
    ``most`` bounds the examples of a client; ValueError for more, and for sums beyond 2^31.
    What ``of`` asks clients for besides (``shares_asked``) no mask hides: with ``marginal_entropy``
    the server of FedMix knows every client's label counts, with 0 none.

    Reference: Bonawitz et al., Practical secure aggregation for privacy-preserving machine
    learning, CCS 2017.
    """

    bits: Annotated[int, "[1, 30]"] = 20
    most: PositiveInt = 1000

    def download(self, state: State, row: int) -> State:
        """Refuse: nothing would be masked."""
        raise ValueError("SecureSum is simulated: on a wire its messages would be open")

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what ``of`` keeps, and a client's part of every sum."""
        own, message = self.of.postprocess(cohort, after, update)
        n = cohort.fed.sizes[cohort.clients]
        if n.max() > self.most:
            raise ValueError(f"a client has {int(n.max())} examples, SecureSum.most is {self.most}")
        masses = self.client_weight((n / self.most).to(torch.float32), message)
        sent = {(MASSES if u.ndim > 1 else MASS): u for u in masses.values()}
        return own, {**weighted(masses, message), **sent}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Step along the quotients of sums."""
        total = {n: self.added(t) for n, t in messages.items()}
        one = torch.ones(1, device=clients.device)
        asked = {n: t for n, t in total.items() if n not in (MASS, MASSES)}
        by = self.client_weight(one, asked)
        masses = {n: total[MASSES if u.ndim > 1 else MASS] for n, u in by.items()}
        frozen_rows = {n: u == 0 for n, u in masses.items() if u.ndim}
        return self.of.server_update(fed, state, divided(total, masses), frozen_rows)

    def added(self, parts: Tensor) -> Tensor:
        """Return the sum of parts ``[clients, ...]`` as the server finds it."""
        total = self.whole(parts).sum(0)
        wrapped = (total + RING // 2) % RING - RING // 2
        if not torch.equal(wrapped, total):
            raise ValueError(f"a sum does not fit into 32 bits: fewer than {self.bits} bits, then")
        return (wrapped.double() / 2**self.bits).to(parts.dtype)

    def whole(self, parts: Tensor) -> Tensor:
        """Return numbers as whole ones, int64."""
        return (parts.double() * 2**self.bits).round().to(torch.int64)

    def masked(self, parts: Tensor) -> Tensor:
        """Return what the server is sent of parts ``[clients, ...]``: numbers below 2^32, int64."""
        sent = self.whole(parts) % RING
        for s, t in itertools.combinations(range(len(parts)), 2):
            draw = torch.Generator().manual_seed(torch_seed(0, "privacy", s, t))
            mask = torch.randint(RING, parts.shape[1:], generator=draw).to(parts.device)
            sent[s], sent[t] = (sent[s] + mask) % RING, (sent[t] - mask) % RING
        return sent

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of the sums' parts, and of keys and shares."""
        down, up = FedAvg.communication_bytes(self.of, state, clients, messages)
        shares = (len(clients) - 1) * 2 * SHARE
        return down + (len(clients) - 1) * 2 * KEY + shares, up + 2 * KEY + shares


def weighted(masses: Params, message: Params) -> Params:
    """Return u_s (w - w_s) of leaves ``[clients, ...]``, u ``[clients]`` or ``[clients, K]``."""
    return {n: _beside(u, message[n]) * message[n] for n, u in masses.items()}


def divided(total: Params, masses: Params) -> Params:
    """Return sums over their masses, a number or ``[K]``; 0 where nobody has any."""
    return {n: total[n] / _beside(torch.where(u == 0, 1, u), total[n]) for n, u in masses.items()}


def _beside(u: Tensor, t: Tensor) -> Tensor:
    return u.to(t.dtype).view(*u.shape, *[1] * (t.ndim - u.ndim))


def clipped(parts: Params, most: float) -> Params:
    """Return parts ``[clients, ...]``, all leaves of a client together of length ``most``."""
    squares = [t.square().flatten(1).sum(1) for _, t in sorted(parts.items())]
    if not squares:
        return {}
    length = torch.stack(squares).sum(0).sqrt()
    scale = most / length.clamp(min=most)
    return {n: _beside(scale, t) * t for n, t in parts.items()}
