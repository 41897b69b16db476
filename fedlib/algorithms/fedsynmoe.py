"""Fed-Syn-MoE: a global and a local base below one head, mixed by a gate from the start (004)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, mean_cross_entropy, placed
from fedlib.engine import Prediction
from fedlib.federation import Federation
from fedlib.models import GateNet, Net, Params, named, part
from fedlib.randomness import torch_seed
from fedlib.values import value

OWN, GATE = "own.", "gate."


@value
class FedSynMoE(FedAvg):
    """logits = head(g(x) f_g(x) + (1 - g(x)) f_l(x)), all trained together in every round.

    The global base f_g and the head are shared, the local base f_l and the gate stay at home; the
    gate sees what PM-MoE's does below bases. A newcomer gets the global base and the head.

    004 compares PM-MoE, whose gate comes after a finished federation, with this (Table 4). Its
    released code makes fresh gates in every round and predicts with the global base only, so that
    what it reports is not the method that it describes, which is this one.
    """

    drops = False
    gate: GateNet = GateNet()

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the shared model, a local base like its own, and a gate."""
        model = FedAvg.leaves(self, fed, seed)
        own = named(part(model, "base."), f"{OWN}base.")
        draw = torch_seed(seed, "model", 1)
        gate = self.gate.begun(fed.net.like(self.gate, 2, _seen(fed.net)).init(draw), draw)
        return {**model, **own, **placed(named(gate, GATE), fed)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of the local base or the gate."""
        return name.startswith((OWN, GATE))

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the cross-entropy of the mixture on one mini-batch."""
        said, _ = self._mixed(net, params, batch["x"])
        return mean_cross_entropy(said, batch["y"], batch["weight"])

    @property
    def reads_examples(self) -> bool:
        """Return true: the local base's."""
        return True

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the batch itself, and the features of the global base."""
        return {"x": x, "h": net.features(shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the mixture and the gate, ``[B, 2]``: global, local."""
        said, gate = self._mixed(net, params, code["x"], code["h"])
        return Prediction(said.log_softmax(-1), gate)

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the logits of the global base."""
        return {"logits": net.logits(params, code["h"])}

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return the prediction of the mean logits."""
        return votes["logits"].log_softmax(-1)

    def _mixed(
        self, net: Net, params: Params, x: Tensor, h: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        theirs = net.features(params, x) if h is None else h
        mine = net.features(part(params, OWN), x)
        seen = x if x.is_floating_point() else mine
        gate = net.like(self.gate, 2, _seen(net))(part(params, GATE), seen).softmax(-1)
        both = torch.stack([theirs, mine], -2)
        return net.logits(params, (gate.unsqueeze(-1) * both).sum(-2)), gate


def _seen(net: Net) -> tuple[int, ...]:
    """Return the shape of what the gate sees: an image, or a text's features."""
    return net.shape if len(net.shape) == 3 else (net.width,)
