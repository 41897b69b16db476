"""FedRoD: one base, a generic and a personal head (Chen and Chao, 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg, mean_cross_entropy
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Net, Params, named, part
from fedlib.values import value

OWN = "own."
LOG_COUNTS = "log_counts"


@value
class FedRoD(Split):
    """The sum of a generic head's logits and a personal head's, on the same features.

    Base and generic head are shared and minimise the balanced softmax, which adds log n_c to the
    logit of a label that the client holds n_c times. The personal head, which begins as a copy of
    the generic one, minimises the cross-entropy of the sum and moves nothing else. A newcomer gets
    the generic model. The paper's hypernetwork head is left out, as in PFLlib and 004.
    """

    @property
    def experts(self) -> str:
        """How the names of a personal head's leaves begin."""
        return OWN

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model and a second head."""
        model = FedAvg.leaves(self, fed, seed)
        return {**model, **named(part(model, "head."), OWN)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of a personal head."""
        return name.startswith(OWN)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the logarithm of how often a client holds each label, ``[clients, classes]``."""
        return {LOG_COUNTS: fed.train.counts(fed.classes)[rows].to(torch.float32).log()}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the balanced loss of base and generic head, and that of the personal head."""
        y, weight = batch["y"], batch["weight"]
        h = self.features(net, params, batch)
        generic = net.logits(params, h)
        balanced = generic + ctx[LOG_COUNTS]
        both = generic.detach() + self.private(net, params, h.detach())
        return mean_cross_entropy(balanced, y, weight) + mean_cross_entropy(both, y, weight)

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features, and the generic head's logits."""
        return Opened(code["h"], net.logits(params, code["h"]))

    def client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the generic logits: those of a client for a newcomer."""
        return {"logits": net.logits(params, code["h"])}
