"""One network of which a part is personal: the output bias, the head, or the first layers."""

from __future__ import annotations

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, mean_cross_entropy
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import Phase, Prediction, State
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.values import value


@value
class Personal(Split):
    """FedAvg in which the leaves whose names begin with one of ``local`` stay with their client.

    The default, the output layer's bias, is biased FedAvg (000, sec. 4.1). A newcomer gets the mean
    of the clients' logits: for the output layer that is the mean of its local parameters. What
    others can borrow of a client is its head, or its base where the head is not personal.
    ValueError, when a run starts, for a name that no leaf of the model begins with.
    """

    local: tuple[str, ...] = ("head.bias",)

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is personal."""
        return name.startswith(self.local)

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of FedAvg."""
        leaves = FedAvg.leaves(self, fed, seed)
        for prefix in self.local:
            if not any(name.startswith(prefix) for name in leaves):
                raise ValueError(f"no leaf begins with {prefix!r}; there are {', '.join(leaves)}")
        return leaves

    @property
    def experts(self) -> str:
        """How the names of the private part's leaves begin; ValueError for less than a part."""
        for name in ("head.", "base."):
            if name in self.local:
                return name
        raise ValueError(f"{self} has neither a head nor a base that others could borrow")

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features and nothing else, or the batch and the shared head's bias."""
        if self.experts == "base.":
            x = code["x"]
            return Opened(x, params["head.bias"].expand(len(x), -1))
        h = code["h"] if "h" in code else net.features(params, code["x"])
        return Opened(h, h.new_zeros(len(h), net.classes))

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the logits of a head, or the features of a base."""
        if self.experts == "base.":
            return net.features(params, entry)
        return Split.private(self, net, params, entry)

    def joined(self, net: Net, params: Params, out: Tensor) -> Tensor:
        """Return what features add to the logits; a head's logits as they are."""
        return out @ params["head.weight"].mT if self.experts == "base." else out

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        said = net.logits(params, self.features(net, params, batch))
        return mean_cross_entropy(said, batch["y"], batch["weight"])

    @property
    def reads_examples(self) -> bool:
        """Return whether the base is personal."""
        return not self._base_shared

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features, or the batch itself if they are personal."""
        return {"h": net.features(shared, x)} if self._base_shared else {"x": x}

    def logits(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the logits of the client's network."""
        return net.logits(params, code["h"]) if "h" in code else net(params, code["x"])

    @property
    def _base_shared(self) -> bool:
        return all(prefix.startswith("head.") for prefix in self.local)


@value
class FedPer(Personal):
    """A shared base below personal heads, trained together (Arivazhagan et al., 2019)."""

    local: tuple[str, ...] = ("head.",)


@value
class LGFedAvg(Personal):
    """Personal bases below a shared head, trained together (Liang et al., 2020).

    004's reading of it; ``LocalGlobal`` keeps fewer layers personal.
    """

    local: tuple[str, ...] = ("base.",)


@value
class FedRep(Personal):
    """FedPer in turns: the head for ``head_epochs``, then the base (Collins et al., 2021).

    The paper has about ten epochs of the head, PFLlib one.
    """

    local: tuple[str, ...] = ("head.",)
    head_epochs: int = 10

    def check(self) -> None:
        if self.head_epochs < 1:
            raise ValueError(f"FedRep.head_epochs must be >= 1, got {self.head_epochs}")
        Personal.check(self)

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase of the head and one of the base."""
        turns = (("head.", self.head_epochs), ("base.", self.epochs))
        return tuple(Phase(self.client, n, self.batch_size, train=(p,)) for p, n in turns)


@value
class FedBABU(Personal):
    """FedPer whose heads never move: only the base is federated (Oh et al., 2022).

    Every head is the common initial one until ``Local`` after this fine-tunes it, with the base.
    """

    local: tuple[str, ...] = ("head.",)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase of the base."""
        return (Phase(self.client, self.epochs, self.batch_size, train=("base.",)),)


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

    @property
    def reads_examples(self) -> bool:
        """Return true: the first layers are personal."""
        return True

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the batch itself: the first layers are personal."""
        return {"x": x}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(net(params, code["x"]).log_softmax(-1))

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's representation."""
        return {"r": net.below(params, code["x"], self.cut)}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return what the global layers make of the mean representation."""
        return net.above(shared, votes["r"], self.cut).log_softmax(-1)
