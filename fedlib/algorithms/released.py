"""What released code does and its paper does not say, where it moves published numbers."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Params, named, part
from fedlib.values import value

AVERAGE = "average."


@value
class LastClient(FedAvg):
    """FedAvg that hands out the model of the client that trained last, as 001's released code does.

    Rounds go on from the average, and the average is what validation examples judge. But what is
    tested, and handed to a later stage, is the model, before averaging, of the last client of that
    round's cohort (A21).
    """

    def assign_models(self, fed: Federation, state: State, *, judging: bool = False) -> State:
        """Return the state, with the average in place of the last client's model for judging."""
        return _averaged(state) if judging else state

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which both models are the same."""
        begun = FedAvg.init(self, fed, seed, first)
        average = {AVERAGE + n: t.clone() for n, t in begun.shared.items()}
        return replace(begun, memory=average)

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the average, from which every client trains."""
        return FedAvg.start(self, fed, _averaged(state), rows)

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Return the last client's model, with the next average in the server's memory."""
        before = _averaged(state)
        after = FedAvg.aggregate(self, fed, before, rows, messages)
        last = {n: t - messages[n][-1] for n, t in before.shared.items()}
        return replace(after, shared=last, memory=named(after.shared, AVERAGE))


def _averaged(state: State) -> State:
    """Return the state as FedAvg has it."""
    return replace(state, shared=part(state.memory, AVERAGE), memory={})
