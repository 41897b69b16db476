"""Where released code trains something else than its paper says, as an algorithm of its own."""

from dataclasses import replace

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Params, add_prefix, select_prefix
from fedlib.values import value

AVERAGE = "average."  # in LastClient's memory: FedAvg's model


@value
class LastClient(FedAvg):
    """FedAvg that sends the model of the client that trained last, as 001's released code does.

    Rounds go on from the average w, and the average is what validation examples judge. But what is
    tested, and handed to a later stage, is w_s of the last client s of the round's cohort, before
    averaging.

    Reference: released code of Listo Zec et al., Specialized federated learning using a mixture of
    experts (001). The paper has the average: ``FedAvg`` (A21).
    """

    def assign_clusters(
        self, fed: Federation, state: State, *, for_selection: bool = False
    ) -> State:
        """Return the state, with the average in place of the last client's model for judging."""
        return _averaged(state) if for_selection else state

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which both models are the same."""
        initial = FedAvg.init(self, fed, seed, first)
        average = add_prefix(initial.server_params, AVERAGE)
        return replace(initial, server_memory={n: t.clone() for n, t in average.items()})

    def download(self, state: State, row: int) -> State:
        """Return the average alone."""
        return State({}, {}, server_memory=state.server_memory)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the average, from which every client trains."""
        return FedAvg.client_params(self, fed, _averaged(state), clients)

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the last client's model, with the next average in the server's memory."""
        before = _averaged(state)
        after = FedAvg.aggregate(self, fed, before, clients, messages)
        last = {n: t - messages[n][-1] for n, t in before.server_params.items()}
        return replace(
            after, server_params=last, server_memory=add_prefix(after.server_params, AVERAGE)
        )


def _averaged(state: State) -> State:
    """Return the state as FedAvg has it."""
    return replace(
        state, server_params=select_prefix(state.server_memory, AVERAGE), server_memory={}
    )
