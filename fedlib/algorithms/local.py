"""No federation at all, or a personal copy of a federated model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlib.algorithms.cluster_models import FIT, settled
from fedlib.algorithms.fedavg import FedAvg, placed
from fedlib.engine import EarlyStop, Phase, Prediction, State
from fedlib.federation import Federation
from fedlib.models import Family, Net, Params
from fedlib.randomness import torch_seed
from fedlib.values import value


@dataclass(frozen=True)
class LocalTraining(FedAvg):
    """What clients train by themselves: nothing is sent, and what opted out is no secret."""

    federates = False

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return no bytes: what a first stage shared was there when this one began."""
        none = torch.zeros(len(rows), dtype=torch.int64)
        return none, none


@value
class Local(LocalTraining):
    """Every leaf stays with its client.

    From fresh weights this is the baseline "local"; after a first stage (``Experiment.after``)
    every client starts from that stage's global model, which is "fine-tuned", or after ``IFCA``
    from the model of its cluster. ``stop`` ends a client's training on its own validation loss and
    keeps its best weights. ``model`` is the network, the task's where None.
    """

    stop: EarlyStop | None = None
    model: Family | None = None

    def is_local(self, name: str) -> bool:
        """Return true: nothing is shared."""
        return True

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of one client."""
        return placed(fed.net.like(self.model).init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return every client's leaves, beside what a ``first`` stage shared."""
        if first is None:
            return FedAvg.init(self, fed, seed)
        if FIT in first.memory:
            first = State({}, {n: t.clone() for n, t in settled(first).items()})
        return State(first.shared, FedAvg.init(self, fed, seed, first).local)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all leaves, with early stopping if asked for."""
        noise = (("dropout", self.model.noise),) if self.model else ()
        return (Phase(self.client, self.epochs, self.batch_size, stop=self.stop, noise=noise),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        return FedAvg.loss(self, net.like(self.model), params, ctx, batch)

    @property
    def reads_examples(self) -> bool:
        """Return true: no part of the model is shared."""
        return True

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the batch itself: no part of the model is shared."""
        return {"x": x}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the client's own model's prediction."""
        return Prediction.single(net.like(self.model).logp(params, code["x"]))
