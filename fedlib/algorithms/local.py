"""No federation at all, or a personal copy of a federated model."""

from __future__ import annotations

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import EarlyStop, Phase, Prediction
from fedlib.models import Leaves, Net
from fedlib.values import value


@value
class Local(FedAvg):
    """Every leaf stays with its client: nothing is ever sent.

    From fresh weights this is the baseline "local"; after a first stage (``Experiment.after``)
    every client starts from that stage's global model, which is "fine-tuned". ``stop`` ends a
    client's training on its own validation loss and keeps its best weights.
    """

    stop: EarlyStop | None = None

    def is_local(self, name: str) -> bool:
        """Return true: nothing is shared."""
        return True

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all leaves, with early stopping if asked for."""
        return (Phase(self.client, self.epochs, self.batch_size, stop=self.stop),)

    def encode(self, net: Net, shared: Leaves, x: Tensor) -> Leaves:
        """Return the batch itself: no part of the model is shared."""
        return {"x": x}

    def predict(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Prediction:
        """Return the client's own model's prediction."""
        return Prediction.single(net(params, code["x"]).log_softmax(-1))
