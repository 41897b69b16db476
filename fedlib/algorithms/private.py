"""Privacy of clients towards the server: differential privacy and secure aggregation.

In both a client sends its term of every weighted sum, u_s (w - w_s), and nothing else.
"""

import itertools
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *
from fedlib.algorithms.local import NoServer

OWN = ("postprocess", "weights", "aggregate", "communication_bytes")  # hooks not taken from ``of``
MASS = "mass"  # in a message: the client's weight
MASSES = "mass.expert"  # in a message: the client's weight in each expert
RING = 2**32  # modulus of sums of masked numbers
KEY, SHARE = 32, 48  # bytes of a public key, and of a peer's encrypted share of a secret


@dataclass(frozen=True)
class Summed(FedAvg):
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
        sums = of.aggregate is FedAvg.aggregate and self.of.communicates
        weighs = of.weights is not FedAvg.weights and of.client_weight is FedAvg.client_weight
        sends_more = isinstance(self.of, NoServer)  # VAEDensity sends whole auto-encoders
        if not sums or weighs or sends_more:
            raise ValueError(f"{kind} hands a server sums, and {of.__name__} needs more than these")
        for field in fields(FedAvg):
            if getattr(self, field.name) != field.default:
                raise ValueError(f"{kind} trains as `of` does: give {field.name} to `of`")

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return 1 / |S| for every client, as messages are already weighted."""
        p = torch.full(
            (len(clients),), 1 / len(clients), dtype=torch.float64, device=clients.device
        )
        return {n: p for n in state.server_params if n in messages}


for hook in ("_optional", *(name for name in vars(Algorithm) if name[0] != "_")):
    if hook not in OWN:
        setattr(Summed, hook, wrapped(hook))


@value
class Private(Summed):
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

    >>> clipped({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]  # of norms 5 and 0.5
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
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
        """Return Gaussian noise of standard deviation z C in the shapes of ``like``."""
        draw, size = torch.Generator().manual_seed(seed), self.noise * self.clip
        by_name = sorted(like.items())  # the draw must not depend on the order of parameters
        return {n: size * torch.randn(t.shape, generator=draw).to(t) for n, t in by_name}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state after a step along the noisy sum, over a fixed denominator."""
        total = {n: t.sum(0) for n, t in messages.items()}
        if self.at == "server":
            drawn = self._drawn(total, torch_seed(state.seed, "server", state.round))
            total = {n: t + drawn[n] for n, t in total.items()}
        one = torch.ones(len(clients), device=clients.device)
        masses = {n: u.sum(0) for n, u in self.client_weight(one, total).items()}
        return self.of.server_update(fed, state, divided(total, masses))


@value
class SecureSum(Summed):
    """A simulation of secure aggregation, in which masks hide all messages but their sum.

        v_s   = round( 2^f [ u_s (w - w_s), u_s ] )
        c_s   = v_s + sum_{t > s} m_st - sum_{t < s} m_ts     mod 2^32    all that the server sees
        Delta = sum_s c_s / 2^f,  its first part over its second          masks cancel

    u_s is the weight of a client, N_s / ``most``, for an expert of FedMix times q(z|s); the mask
    m_st is drawn from a key that s and t share. The simulation rounds and adds numbers as the
    protocol does. Its bytes count these numbers, two public keys per client, and the shares of two
    secrets with all other clients. Masks cancel in the sum, so they are drawn in ``masked`` only;
    there is no key agreement and no dropout of clients, and over a network (examples/flower) this
    algorithm raises an error. Label distributions that ``of`` asks clients for (``shares_asked``)
    are not hidden: with ``marginal_entropy`` above 0 the server of FedMix knows every client's
    label counts.

    Args:
        of: the wrapped algorithm, whose server must need weighted sums only. Default:
            ``FedAvg()``.
        bits: fractional bits f of a number, from 1 to 30. Default: 20.
        most: greatest number of training examples of a client. Default: 1000.

    Reference: Bonawitz et al., Practical secure aggregation for privacy-preserving machine
    learning, CCS 2017.
    """

    bits: Annotated[int, "[1, 30]"] = 20
    most: PositiveInt = 1000

    def download(self, state: State, row: int) -> State:
        """Raise ValueError, because messages over a network are not masked."""
        raise ValueError("SecureSum is a simulation: over a network nothing would be masked")

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what ``of`` keeps, and the client's terms of all sums.

        Raises:
            ValueError: if a client has more than ``most`` examples.
        """
        own, message = self.of.postprocess(cohort, after, update)
        n = cohort.fed.sizes[cohort.clients]
        if n.max() > self.most:
            raise ValueError(f"a client has {int(n.max())} examples, SecureSum.most is {self.most}")
        masses = self.client_weight((n / self.most).to(torch.float32), message)
        sent = {(MASSES if u.ndim > 1 else MASS): u for u in masses.values()}
        return own, {**weighted(masses, message), **sent}

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state after a step along the quotients of the sums."""
        total = {n: self.added(t) for n, t in messages.items()}
        one = torch.ones(1, device=clients.device)
        asked = {n: t for n, t in total.items() if n not in (MASS, MASSES)}
        by = self.client_weight(one, asked)
        masses = {n: total[MASSES if u.ndim > 1 else MASS] for n, u in by.items()}
        frozen_rows = {n: u == 0 for n, u in masses.items() if u.ndim}
        return self.of.server_update(fed, state, divided(total, masses), frozen_rows)

    def added(self, parts: Tensor) -> Tensor:
        """Return the sum of ``parts`` ``[clients, ...]`` as the server computes it.

        Raises:
            ValueError: if a sum exceeds 32 bits.
        """
        total = self.whole(parts).sum(0)
        wrapped = (total + RING // 2) % RING - RING // 2
        if not torch.equal(wrapped, total):
            raise ValueError(f"a sum does not fit into 32 bits: reduce SecureSum.bits, {self.bits}")
        return (wrapped.double() / 2**self.bits).to(parts.dtype)

    def whole(self, parts: Tensor) -> Tensor:
        """Return fixed-point numbers as integers, int64."""
        return (parts.double() * 2**self.bits).round().to(torch.int64)

    def masked(self, parts: Tensor) -> Tensor:
        """Return the masked messages for ``parts`` ``[clients, ...]``, int64 below 2^32."""
        sent = self.whole(parts) % RING
        for s, t in itertools.combinations(range(len(parts)), 2):
            draw = torch.Generator().manual_seed(torch_seed(0, "privacy", s, t))
            mask = torch.randint(RING, parts.shape[1:], generator=draw).to(parts.device)
            sent[s], sent[t] = (sent[s] + mask) % RING, (sent[t] - mask) % RING
        return sent

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of messages, public keys and secret shares."""
        down, up = FedAvg.communication_bytes(self.of, state, clients, messages)
        shares = (len(clients) - 1) * 2 * SHARE
        return down + (len(clients) - 1) * 2 * KEY + shares, up + 2 * KEY + shares


def weighted(masses: Params, message: Params) -> Params:
    """Return u_s (w - w_s), with ``masses`` u, ``[clients]`` or ``[clients, K]``, by parameter."""
    return {n: _beside(u, message[n]) * message[n] for n, u in masses.items()}


def divided(total: Params, masses: Params) -> Params:
    """Return ``total`` divided by ``masses``, scalars or ``[K]``; 0 where the mass is 0."""
    return {n: total[n] / _beside(torch.where(u == 0, 1, u), total[n]) for n, u in masses.items()}


def _beside(u: Tensor, t: Tensor) -> Tensor:
    return u.to(t.dtype).view(*u.shape, *[1] * (t.ndim - u.ndim))


def clipped(parts: Params, most: float) -> Params:
    """Return ``parts`` ``[clients, ...]`` with the norm of each client scaled down to ``most``.

    The norm is that of all parameters together; smaller ones do not change.
    """
    squares = [t.square().flatten(1).sum(1) for _, t in sorted(parts.items())]
    if not squares:
        return {}
    length = torch.stack(squares).sum(0).sqrt()
    scale = most / length.clamp(min=most)
    return {n: _beside(scale, t) * t for n, t in parts.items()}
