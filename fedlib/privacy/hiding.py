"""FedMix with noise on what it sends of phi, whose rows name the labels of a client."""

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms import FedMix
from fedlib.engine import State, Update
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeFloat, value

DRAW = "noise/phi"  # in the server's memory: the seed and number of a round


@value
class NoisyFedMix(FedMix):
    """FedMix whose clients add Gaussian noise to what they send of phi, and to nothing else.

    ``noise`` is its standard deviation in units of the root mean square of the client's own update
    of phi. A client's draw depends on seed, round and its id.
    """

    noise: NonNegativeFloat = 1.0

    def before_round(self, fed: Federation, state: State, rows: Tensor) -> State:
        """Return the state with what the clients' draws of this round depend on."""
        draw = {DRAW: torch.tensor([state.seed, state.round])}
        return replace(state, memory={**state.memory, **draw})

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return p(y|s), and each client's standard normal numbers of the round."""
        context = FedMix.client_context(self, fed, state, rows)
        if DRAW not in state.memory:
            return context
        seed, round = state.memory[DRAW].tolist()
        seeds = [torch_seed(seed, "server", round, int(fed.ids[row])) for row in rows.tolist()]
        draws = [torch.Generator().manual_seed(each) for each in seeds]
        phi = state.shared["phi"]
        drawn = torch.stack([torch.randn(phi.shape, generator=draw) for draw in draws])
        return {**context, "drawn": drawn.to(phi)}

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return FedMix's message with noise on phi."""
        own, message = FedMix.client_update(self, net, before, after, ctx)
        if "phi" in message:
            size = message["phi"].square().mean().sqrt()
            message["phi"] = message["phi"] + self.noise * size * ctx["drawn"]
        return own, message
