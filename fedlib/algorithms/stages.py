"""Second stages: something is trained on top of a finished federation, which stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.local import AtHome
from fedlib.engine import Prediction, State
from fedlib.federation import Federation
from fedlib.models import Leaves, Net


@dataclass(frozen=True)
class Stage(AtHome):
    """A stage over ``of``, whose experiment is ``Experiment.after``: predicts as it does.

    A stage of its own overrides ``init`` and ``phases``.
    """

    of: FedAvg = FedAvg()  # noqa: RUF009, a value

    def is_local(self, name: str) -> bool:
        """Return whether ``of`` keeps a leaf at its client."""
        return self.of.is_local(name)

    def alike(self, fed: Federation, state: State, rows: Tensor) -> Tensor:
        """Return who can share a program, as ``of`` has it."""
        return self.of.alike(fed, state, rows)

    def start(self, fed: Federation, state: State, rows: Tensor) -> Leaves:
        """Return what ``of`` sends, with all that the clients have kept."""
        own = {n: t[rows] for n, t in state.local.items()}
        return {**self.of.start(fed, state, rows), **own}

    def context(self, fed: Federation, state: State, rows: Tensor) -> Leaves:
        """Return what ``of`` tells its clients."""
        return self.of.context(fed, state, rows)

    def common(self, fed: Federation, state: State) -> Leaves:
        """Return what ``of`` tells all clients."""
        return self.of.common(fed, state)

    def settle(self, fed: Federation, state: State) -> State:
        """Return the state in which clients of ``of`` know what they predict with."""
        return self.of.settle(fed, state)

    def encode(self, net: Net, shared: Leaves, x: Tensor) -> Leaves:
        """Return what the shared leaves of ``of`` say."""
        return self.of.encode(net, shared, x)

    def predict(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Prediction:
        """Return the prediction of ``of``."""
        return self.of.predict(net, params, ctx, code)

    def vote(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Leaves:
        """Return the vote of ``of``."""
        return self.of.vote(net, params, ctx, code)

    def tally(self, net: Net, shared: Leaves, code: Leaves, votes: Leaves) -> Tensor:
        """Return what ``of`` makes of votes."""
        return self.of.tally(net, shared, code, votes)
