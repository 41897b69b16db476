"""FedMix whose clients hide their message of phi behind noise."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.algorithms import FedMix
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Leaves, Net
from fedlib.randomness import torch_seed
from fedlib.values import value

DRAWN = "noise/phi"  # in the server's memory during a round only, [clients, values, K]


@value
class NoisyFedMix(FedMix):
    """FedMix whose clients add Gaussian noise to what they send of phi, and to nothing else.

    ``noise`` is its standard deviation in units of the root mean square of the client's own update
    of phi. A client's draw depends on seed, round and its id.
    """

    noise: float = 1.0

    def check(self) -> None:
        FedMix.check(self)
        if self.noise < 0:
            raise ValueError(f"NoisyFedMix.noise must be >= 0, got {self.noise}")

    def prepare(
        self, fed: Federation, state: State, rows: Tensor, *, round: int, seed: int
    ) -> State:
        """Return the state with every client's standard normal numbers of this round."""
        shape = state.shared["phi"].shape
        every = torch.zeros(fed.clients, *shape)
        for row in rows.tolist():
            draw = torch.Generator().manual_seed(
                torch_seed(seed, "server", round, int(fed.ids[row]))
            )
            every[row] = torch.randn(shape, generator=draw)
        drawn = every.to(state.shared["phi"])
        return State(state.shared, state.local, {**state.server, DRAWN: drawn})

    def context(self, fed: Federation, state: State, rows: Tensor) -> Leaves:
        """Return p(y|s), and the client's draw during a round."""
        drawn = {"drawn": state.server[DRAWN][rows]} if DRAWN in state.server else {}
        return {**FedMix.context(self, fed, state, rows), **drawn}

    def finish(self, net: Net, before: Leaves, after: Leaves, ctx: Leaves) -> Leaves:
        """Return FedMix's message with noise on phi."""
        message = FedMix.finish(self, net, before, after, ctx)
        if "phi" in message:
            size = message["phi"].square().mean().sqrt()
            message["phi"] = message["phi"] + self.noise * size * ctx["drawn"]
        return message

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Leaves) -> State:
        """Take FedMix's step; the draws end with their round."""
        kept = {n: t for n, t in state.server.items() if n != DRAWN}
        return FedMix.aggregate(self, fed, State(state.shared, state.local, kept), rows, messages)
