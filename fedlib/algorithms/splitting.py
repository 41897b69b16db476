"""Models in two parts, one of them private: what nine methods of 004 have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import Prediction
from fedlib.federation import Known
from fedlib.models import Net, Params, named, part


class Opened(NamedTuple):
    """A prediction before its private part has spoken.

    ``entry`` ``[B, ...]`` is what the private part is given, ``rest`` ``[B, classes]`` the logits
    without it.
    """

    entry: Tensor
    rest: Tensor


@dataclass(frozen=True)
class Split(FedAvg):
    """logits = rest(x) + joined(private(entry(x))): each method says what these four are.

    ``joined`` is linear, so that a mixture of private parts is a mixture of what they add to the
    logits. The private part is made of the local leaves whose names begin with ``experts``.
    """

    @property
    def experts(self) -> str:
        """How the names of the private part's leaves begin."""
        raise NotImplementedError(f"{type(self).__name__} does not say which leaves are private")

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return what the private part is given, and the logits without it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its private part sees")

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return what the private part makes of its entry, ``[B, ...]``: by default a head's."""
        return net.logits(named(part(params, self.experts), "head."), entry)

    def joined(self, net: Net, params: Params, out: Tensor) -> Tensor:
        """Return what that adds to the logits, ``[B, classes]``: by default itself."""
        return out

    def logits(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the client's logits ``[B, classes]``."""
        entry, rest = self.opened(net, params, ctx, code)
        return rest + self.joined(net, params, self.private(net, params, entry))

    def known(self, net: Net, frozen: Params, ctx: Params, batch: Params) -> Known:
        """Return the features where the base stands still, and of the examples nothing else.

        Where a model drops units, features differ from step to step.
        """
        if net.noise or not net.has_base(frozen):
            return Known({}, {})
        return Known({}, {"h": net.features(frozen, batch["x"])})

    def features(self, net: Net, params: Params, batch: Params) -> Tensor:
        """Return the features of a mini-batch, ``[B, D]``: looked up, or computed."""
        if "h" in batch:
            return batch["h"]
        return net.features(params, batch["x"], batch.get("noise"))

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features of the shared base."""
        return {"h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(self.logits(net, params, ctx, code).log_softmax(-1))

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's logits."""
        return {"logits": self.logits(net, params, ctx, code)}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return the prediction of the mean logits."""
        return votes["logits"].log_softmax(-1)
