"""FedMix whose clients hide their message of phi behind noise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms import FedMix
from fedlib.engine import State, Update
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.randomness import torch_seed
from fedlib.values import value

DRAW = "noise/phi"  # in the server's memory during a round only: its seed and number


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

    def before_round(
        self, fed: Federation, state: State, rows: Tensor, *, round: int, seed: int
    ) -> State:
        """Return the state with what the clients' draws of this round depend on."""
        return replace(state, memory={**state.memory, DRAW: torch.tensor([seed, round])})

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return p(y|s), and during a round each client's standard normal numbers."""
        known = FedMix.client_context(self, fed, state, rows)
        if DRAW not in state.memory:
            return known
        seed, round = state.memory[DRAW].tolist()
        seeds = [torch_seed(seed, "server", round, int(fed.ids[row])) for row in rows.tolist()]
        draws = [torch.Generator().manual_seed(each) for each in seeds]
        phi = state.shared["phi"]
        drawn = torch.stack([torch.randn(phi.shape, generator=draw) for draw in draws])
        return {**known, "drawn": drawn.to(phi)}

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return FedMix's message with noise on phi."""
        own, message = FedMix.client_update(self, net, before, after, ctx)
        if "phi" in message:
            size = message["phi"].square().mean().sqrt()
            message["phi"] = message["phi"] + self.noise * size * ctx["drawn"]
        return own, message

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Take FedMix's step; the draws end with their round."""
        kept = {n: t for n, t in state.memory.items() if n != DRAW}
        return FedMix.aggregate(self, fed, replace(state, memory=kept), rows, messages)
