"""One network of which a part is personal: the output bias, the head, or the first layers."""

from __future__ import annotations

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import Prediction, State
from fedlib.federation import Federation
from fedlib.models import Leaves, Net
from fedlib.values import value


@value
class Personal(FedAvg):
    """FedAvg in which the leaves whose names begin with one of ``local`` stay with their client.

    The default, the output layer's bias, is biased FedAvg (000, sec. 4.1). A newcomer gets the mean
    of the clients' logits: for the output layer that is the mean of its local parameters.
    ValueError, when a run starts, for a name that no leaf of the model begins with.
    """

    local: tuple[str, ...] = ("head.bias",)

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is personal."""
        return name.startswith(self.local)

    def leaves(self, fed: Federation, seed: int) -> Leaves:
        """Return the fresh leaves of FedAvg."""
        leaves = FedAvg.leaves(self, fed, seed)
        for prefix in self.local:
            if not any(name.startswith(prefix) for name in leaves):
                raise ValueError(f"no leaf begins with {prefix!r}; there are {', '.join(leaves)}")
        return leaves

    def encode(self, net: Net, shared: Leaves, x: Tensor) -> Leaves:
        """Return the features, or the batch itself if they are personal."""
        return {"h": net.features(shared, x)} if self._base_shared else {"x": x}

    def predict(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(self._logits(net, params, code).log_softmax(-1))

    def vote(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Leaves:
        """Return the client's logits."""
        return {"logits": self._logits(net, params, code)}

    def tally(self, net: Net, shared: Leaves, code: Leaves, votes: Leaves) -> Tensor:
        """Return the prediction of the mean logits."""
        return votes["logits"].log_softmax(-1)

    @property
    def _base_shared(self) -> bool:
        return all(prefix.startswith("head.") for prefix in self.local)

    def _logits(self, net: Net, params: Leaves, code: Leaves) -> Tensor:
        return net.logits(params, code["h"]) if "h" in code else net(params, code["x"])


@value
class LocalGlobal(FedAvg):
    """Personal first layers below one global network (Liang et al., 2020; 000, sec. 4.1).

    ``cut`` is the number of the base's modules that are personal: 3 is the input layer of a LeNet
    (convolution, ReLU, pooling), 4 a ResNet up to its first block; ``Net.cuts`` lists the legal
    ones. As in 000 nothing is pre-trained by FedAvg (``Experiment.after`` would). A newcomer gets
    the global part on the mean of the clients' representations (000, App. F). ValueError, when a
    run starts, for a cut that the model has not.
    """

    cut: int = 3

    def check(self) -> None:
        FedAvg.check(self)
        if self.cut < 1:
            raise ValueError(f"LocalGlobal.cut must be >= 1, got {self.cut}")

    def is_local(self, name: str) -> bool:
        """Return whether a leaf belongs to the first ``cut`` modules of the base."""
        part, _, rest = name.partition(".")
        return part == "base" and int(rest.partition(".")[0]) < self.cut

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, with the same fresh first layers for every client."""
        cuts = fed.net.cuts
        if self.cut not in cuts:
            legal = "; ".join(f"{cut} (after {names})" for cut, names in cuts.items())
            raise ValueError(f"this model has no cut {self.cut}; legal: {legal or 'none'}")
        return FedAvg.init(self, fed, seed, first)

    def encode(self, net: Net, shared: Leaves, x: Tensor) -> Leaves:
        """Return the batch itself: the first layers are personal."""
        return {"x": x}

    def predict(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(net(params, code["x"]).log_softmax(-1))

    def vote(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Leaves:
        """Return the client's representation."""
        return {"r": net.below(params, code["x"], self.cut)}

    def tally(self, net: Net, shared: Leaves, code: Leaves, votes: Leaves) -> Tensor:
        """Return what the global layers make of the mean representation."""
        return net.above(shared, votes["r"], self.cut).log_softmax(-1)
