"""Models in two parts, one of them private: a head, a base, a vector, or the first layers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.engine import Phase, Prediction, State
from fedlib.federation import Federation
from fedlib.models import Net, Params, named, part
from fedlib.values import value, within

MEAN = "running_mean"  # what a BatchNorm layer's leaves have


class Opened(NamedTuple):
    """A prediction before its private part has spoken.

    ``entry`` ``[B, ...]`` is what the private part is given, ``rest`` ``[B, classes]`` the logits
    without it.
    """

    entry: Tensor
    rest: Tensor


def through_head(self: Any, net: Net, params: Params, out: Tensor) -> Tensor:
    """Return what features of a private part add to the logits, ``[B, classes]``."""
    return out @ params["head.weight"].mT


@dataclass(frozen=True)
class Split(FedAvg):
    """A client's logits are those of shared parts and those of a private one: what 004 mixes.

        logits = rest(x) + joined(private(entry(x)))

    Each method says what these four are. ``joined`` is linear, so that a mixture of private parts
    is a mixture of what they add to the logits. The private part is made of the local leaves whose
    names begin with ``experts``.

    Reference: Feng et al., PM-MoE (004), eq. 4. Deviation: private vectors are added to the
    features, not to the logits (A34).
    """

    experts: ClassVar[str]
    """How the names of the private part's leaves begin."""

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of the private part, or otherwise the client's."""
        return name.startswith((self.experts, *self.keeps))

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return what the private part is given, and the logits without it.

        By default the features, and what the shared head makes of them.
        """
        return Opened(code["h"], net.logits(params, code["h"]))

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

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features of the shared base."""
        return {"h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's network."""
        return Prediction.single(self.logits(net, params, ctx, code).log_softmax(-1))

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's logits."""
        return {"logits": self.logits(net, params, ctx, code)}


@value
class Personal(Split):
    """FedAvg in which the leaves whose names begin with one of ``local`` stay with their client.

    The default, the output layer's bias b_s, is biased FedAvg:

        p(y|x, s) = softmax(W h(x) + b_s)                                   (000, sec. 4.1)

    A newcomer gets the mean of the clients' logits: for the output layer that is the mean of its
    local parameters. What others can borrow of a client is its head, if all of it is personal.
    ValueError, when a run starts, for a name that no leaf of the model begins with.

    Reference: Reisser et al., Federated mixture of experts (000), a baseline.
    """

    experts = "head."
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

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features and nothing else."""
        h = self.features(net, params, code)
        return Opened(h, h.new_zeros(len(h), net.classes))

    @property
    def reads_examples(self) -> bool:
        """Return whether the base is personal."""
        return not all(prefix.startswith("head.") for prefix in self.local)

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the features, or the batch itself if they are personal."""
        return {"x": x} if self.reads_examples else {"h": net.features(shared, x)}


@value
class FedPer(Personal):
    """A shared base f below personal heads h_s, trained together: logits = h_s(f(x)).

    Reference: Arivazhagan et al., Federated learning with personalization layers, 2019. A method
    of 004, whose experts are the heads.
    """

    local: tuple[str, ...] = ("head.",)


@value
class LGFedAvg(Personal):
    """Personal bases f_s below a shared head h, trained together: logits = h(f_s(x)).

    Reference: Liang et al., Think locally, act globally, 2020, as 004 reads it, whose experts are
    the bases; ``LocalGlobal`` keeps fewer layers personal.
    """

    experts = "base."
    local: tuple[str, ...] = ("base.",)

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the examples, and the shared head's bias."""
        return Opened(code["x"], params["head.bias"].expand(len(code["x"]), -1))

    def private(self, net: Net, params: Params, entry: Tensor) -> Tensor:
        """Return the features of a base."""
        return net.features(params, entry)

    joined = through_head


@value
class FedRep(Personal):
    """FedPer in turns: the head for ``head_epochs``, then the base for ``epochs``.

        h_s <- h_s - eta grad CE(h_s(f(x))),  then  f <- f - eta grad CE(h_s(f(x)))

    Reference: Collins et al., Exploiting shared representations for personalized federated
    learning, ICML 2021. A method of 004. Deviation: about ten epochs of the head, as the paper has;
    PFLlib and 004 have one.
    """

    local: tuple[str, ...] = ("head.",)
    limits = within(head_epochs=">= 1")
    head_epochs: int = 10

    def phases(self) -> tuple[Phase, ...]:
        """Return a phase of the head and one of the base."""
        return (
            self.phase(train=("head.",), epochs=self.head_epochs),
            self.phase(train=("base.",)),
        )


@value
class FedBABU(Personal):
    """FedPer whose heads never move: only the base f is federated, logits = h_0(f(x)).

    Every head is the common initial one h_0 until ``Local`` after this fine-tunes it, with the
    base.

    Reference: Oh et al., FedBABU: toward enhanced representation for federated image
    classification, ICLR 2022. A method of 004. Deviation: fine-tuning begins at what the server
    sends, as in the paper; 004's released code begins at a client's own last base.
    """

    trains = ("base.",)
    local: tuple[str, ...] = ("head.",)


@value
class FedBN(FedAvg):
    """FedAvg in which BatchNorm layers stay with their client: weights, biases and statistics.

    So clients whose features are shifted against each other normalise them alike. Without such
    layers it is FedAvg. A newcomer gets the mean of the clients' predictions.

    Reference: Li et al., FedBN: federated learning on non-IID features via local batch
    normalization, ICLR 2021.
    """

    reads_examples = True

    def stays(self, leaves: Iterable[str]) -> set[str]:
        """Return the leaves of the layers that keep running statistics."""
        names = [*leaves]
        layers = tuple(n.removesuffix(MEAN) for n in names if n.endswith(MEAN))
        return {n for n in names if n.startswith(layers)}


@value
class LocalGlobal(FedAvg):
    """Personal first layers l_s below one global network g: logits = g(l_s(x)).

    ``cut`` is the number of the base's modules that are l_s: 3 is the input layer of a LeNet
    (convolution, ReLU, pooling), 4 a ResNet up to its first block; ``Net.cuts`` lists the legal
    ones. ValueError, when a run starts, for a cut that the model has not. A newcomer gets

        log p(y|x) = log softmax g( sum_s p(s) l_s(x) )                     (000, App. F)

    Reference: Liang et al., Think locally, act globally, 2020; 000, sec. 4.1, a baseline. As in 000
    nothing is pre-trained by FedAvg (``Experiment.after`` would).
    """

    reads_examples = True
    limits = within(cut=">= 1")
    cut: int = 3

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

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's representation."""
        return {"r": net.below(params, code["x"], self.cut)}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return what the global layers make of the mean representation."""
        return net.above(shared, votes["r"], self.cut).log_softmax(-1)
