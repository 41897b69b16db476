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

    def assign_models(self, fed: Federation, state: State, *, for_selection: bool = False) -> State:
        """Return the state, with the average in place of the last client's model for judging."""
        return _averaged(state) if for_selection else state

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which both models are the same."""
        initial = FedAvg.init(self, fed, seed, first)
        average = add_prefix(initial.shared, AVERAGE)
        return replace(initial, memory={n: t.clone() for n, t in average.items()})

    def payload(self, state: State, row: int) -> State:
        """Return the average alone."""
        return State({}, {}, memory=state.memory)

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the average, from which every client trains."""
        return FedAvg.start(self, fed, _averaged(state), rows)

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Return the last client's model, with the next average in the server's memory."""
        before = _averaged(state)
        after = FedAvg.aggregate(self, fed, before, rows, messages)
        last = {n: t - messages[n][-1] for n, t in before.shared.items()}
        return replace(after, shared=last, memory=add_prefix(after.shared, AVERAGE))


def _averaged(state: State) -> State:
    """Return the state as FedAvg has it."""
    return replace(state, shared=select_prefix(state.memory, AVERAGE), memory={})
