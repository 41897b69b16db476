"""Secure aggregation, simulated: a server that adds up masked messages learns their sum only.

It wraps any algorithm whose server needs weighted sums only, and computes what that computes, up to
the rounding of fixed-point numbers. ``fedlib.algorithms.private`` has the other wrapper of this
kind, differential privacy.

python examples/secure_sum.py
"""

import itertools
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedlib import FedAvg, value
from fedlib.algorithms.interface import Bytes, Cohort, Federation, Params, State, Update
from fedlib.algorithms.private import WeightedSums, divided, weighted
from fedlib.randomness import torch_seed
from fedlib.values import PositiveInt
from fedrun import simulate, tiny

MASS = "mass"  # in a message: the client's weight
MASSES = "mass.expert"  # in a message: the client's weight in each expert
RING = 2**32  # modulus of sums of masked numbers
KEY, SHARE = 32, 48  # bytes of a public key, and of a peer's encrypted share of a secret


@value
class SecureSum(WeightedSums):
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
        read = (total + RING // 2) % RING - RING // 2
        if not torch.equal(read, total):
            raise ValueError(f"a sum does not fit into 32 bits: reduce SecureSum.bits, {self.bits}")
        return (read.double() / 2**self.bits).to(parts.dtype)

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


def masked_sum(secure: SecureSum, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the messages for ``parts`` ``[clients, ...]``, and the sum that the server reads."""
    sent = secure.masked(parts)
    read = (sent.sum(0) + RING // 2) % RING - RING // 2
    return sent, read.double() / 2**secure.bits


if __name__ == "__main__":
    parts = torch.tensor([[0.5, -0.25], [1.0, 0.0], [-0.75, 0.5]])  # three clients, two numbers
    sent, total = masked_sum(SecureSum(), parts)
    print("sent:", sent.tolist())
    print("sum:", total.tolist())
    secure = replace(tiny, algorithm=SecureSum(of=tiny.algorithm))
    for experiment in (tiny, secure):
        last = [*simulate(experiment)][-1]
        kind = type(experiment.algorithm).__name__
        print(f"{kind}: accuracy {last.metrics['test_accuracy']:.3f}")
