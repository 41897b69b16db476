"""New clients with labels: fit only what is personal, below frozen shared leaves (000, sec. 2)."""

from __future__ import annotations

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.stages import SecondStage
from fedlib.engine import EarlyStop, Phase, State
from fedlib.federation import Federation, Known
from fedlib.models import Net, Params
from fedlib.values import value


@value
class Newcomers(SecondStage):
    """Clients that join when ``of`` has been trained: they receive what is shared and send nothing.

    A second stage (``Experiment.after`` is the federation that trained). Each newcomer trains the
    leaves that ``of`` keeps local, on its own labelled data with the objective of ``of``, from
    fresh ones. For FedMix these are the gate's; FedAvg has none, and newcomers use the
    global model as it is. ``stop`` watches their validation examples.
    """

    drops = False
    stop: EarlyStop | None = None

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the shared leaves of the first stage, and local ones for each newcomer."""
        if first is None or not first.shared:
            raise ValueError("Newcomers join a federation: give its experiment as `after`")
        return State(first.shared, self.of.init(fed, seed).local)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the leaves that are local, with the noise that ``of`` asks for."""
        noise = {name: count for phase in self.of.phases() for name, count in phase.noise}
        return (
            Phase(
                self.client,
                self.epochs,
                self.batch_size,
                stop=self.stop,
                noise=tuple(noise.items()),
                side="local",
            ),
        )

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the bytes: what is shared comes down, nothing goes up."""
        return FedAvg.communication_bytes(self, state, rows, messages)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return what ``of`` knows of examples once what is shared stands still."""
        return self.of.known(net, frozen, ctx, batch)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the loss of ``of``."""
        return self.of.loss(net, params, ctx, batch)
