"""Second stages: something is trained on top of a finished federation, which stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.local import LocalTraining
from fedlib.engine import Prediction, State
from fedlib.federation import Federation
from fedlib.models import Net, Params


@dataclass(frozen=True)
class SecondStage(LocalTraining):
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

    def start(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return what ``of`` sends, with all that the clients have kept."""
        own = {n: t[rows] for n, t in state.local.items()}
        return {**self.of.start(fed, state, rows), **own}

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return what ``of`` tells its clients."""
        return self.of.client_context(fed, state, rows)

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return what ``of`` tells all clients."""
        return self.of.broadcast(fed, state)

    def assign_models(self, fed: Federation, state: State, *, judging: bool = False) -> State:
        """Return the state in which clients of ``of`` know what they predict with."""
        return self.of.assign_models(fed, state)

    @property
    def reads_examples(self) -> bool:
        """Return what ``of`` says."""
        return self.of.reads_examples

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what the shared leaves of ``of`` say."""
        return self.of.encode(net, shared, x)

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of ``of``."""
        return self.of.predict(net, params, ctx, code)

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the vote of ``of``."""
        return self.of.client_output(net, params, ctx, code)

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return what ``of`` makes of votes."""
        return self.of.ensemble(net, shared, code, votes)
