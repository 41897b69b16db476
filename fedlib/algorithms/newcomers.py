"""New clients with labels: fit only what is personal, below frozen shared leaves (000, sec. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.stages import SecondStage
from fedlib.engine import EarlyStop, Phase, State
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.values import one_of, value


@value
class Newcomers(SecondStage):
    """Clients that join when ``of`` has been trained: they receive what is shared and send nothing.

    A second stage (``Experiment.after`` is the federation that trained). Each newcomer trains the
    leaves that ``of`` keeps local, on its own labelled data with the objective of ``of``, from
    where ``begin`` says: "fresh" leaves, or the "mean" over the clients that took part, each
    counting the same. For FedMix these are the gate's; FedAvg has none, and newcomers use the
    global model as it is. ``stop`` watches their validation examples.
    """

    drops = False
    begin: str = "fresh"
    stop: EarlyStop | None = None

    def check(self) -> None:
        FedAvg.check(self)
        one_of("begin", self.begin, ("fresh", "mean"))

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the shared leaves of the first stage, and local ones for each newcomer."""
        if first is None or not first.shared:
            raise ValueError("Newcomers join a federation: give its experiment as `after`")
        fresh = self.of.init(fed, seed).local
        if self.begin == "mean":
            fresh = {n: _mean(first.local[n]).expand_as(t).clone() for n, t in fresh.items()}
        return State(first.shared, fresh)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the leaves that are local, with the noise that ``of`` asks for."""
        noise, noisy = (
            max((getattr(phase, name) for phase in self.of.phases()), default=0)
            for name in ("noise", "noisy")
        )
        return (
            Phase(
                self.client,
                self.epochs,
                self.batch_size,
                stop=self.stop,
                noise=noise,
                noisy=noisy,
                side="local",
            ),
        )

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the bytes: what is shared comes down, nothing goes up."""
        return FedAvg.communication_bytes(self, state, rows, messages)

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Params:
        """Return what ``of`` knows of examples once what is shared stands still."""
        return self.of.known(net, frozen, ctx, batch)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the loss of ``of``."""
        return self.of.loss(net, params, ctx, batch)


def _mean(rows: Tensor) -> Tensor:
    return rows.to(torch.float64).mean(0).to(rows.dtype)
