"""Similarity between the features of private bases and of a centrally trained model."""

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *
from fedlib.algorithms.pmmoe import PMMoE
from fedlib.algorithms.splitting import LGFedAvg, SplitModel

CENTRAL = "central."
AT_ONCE = 500  # examples whose features are computed together


@value
class FeaturesAudit(PMMoE):
    """PM-MoE over bases that trains no gate, and compares their features with a central model's.

    The central model is trained on the data of all clients together. Every client uses its own base
    only, so that it predicts as ``of`` does. Train for one round with all clients
    (``rounds=1, cohort=1.0``), after a first stage of ``of``. It logs, each ``[clients, M]``,

        feature_similarity  ``linear_cka`` of the features of base l and of the central model, on
                            the test examples of each client
        label_overlap       sum_y min(p(y|s), p(y|l)) of the training examples of two clients

    and, for the two clients with the largest overlap (those of the lowest indices among equals),
    "distance_own", "distance_borrowed" and "distance_central" ``[n, n]``: the distances of the
    features of n test examples of the first client with its own base, the base of the second one
    and the central model. "example_label" ``[n, 1]`` has the labels of these examples.

    Args:
        of: a method with private bases. Default: ``LGFedAvg()``.
        central: how the central model is trained, in one round of its epochs. Default:
            ``FedAvg(epochs=40)``.
        examples: the largest number n of examples of which distances are logged. Default: 100.
        own_expert_bias: a bias of the gate that is large enough to select the own base. Default:
            1e4.
        others: as in ``PMMoE``.

    Reference: Feng et al., PM-MoE, 2025, Fig. 1A. Deviation: similarities are measured for all
    clients and bases; the paper shows one client, without naming method, data set or client.
    """

    of: SplitModel = LGFedAvg()
    central: FedAvg = FedAvg(epochs=40)
    examples: PositiveInt = 100
    own_expert_bias: float = 1e4

    def check(self) -> None:
        """Raise ValueError unless the private parts are bases."""
        if self.of.experts != "base.":
            raise ValueError(f"FeaturesAudit compares bases, but {self.of} has none")

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return PM-MoE's state, with the base of the central model in the server's memory."""
        state = PMMoE.init(self, fed, seed, first)
        together = fed.pooled()
        begun = self.central.init(together, seed)
        ended, _ = play_round(self.central, together, begun, round=0, seed=seed, cohort=1.0)
        base = add_prefix(select_prefix(ended.server_params, "base."), f"{CENTRAL}base.")
        return replace(state, server_memory={**state.server_memory, **base})

    def phases(self) -> tuple[Phase, ...]:
        """Return no phase."""
        return ()

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return the similarities, overlaps and distances; see the class."""
        base, sizes = select_prefix(state.server_memory, CENTRAL), fed.test.sizes.tolist()
        x = fed.test.inputs(fed.test.indices).split(AT_ONCE)
        central = torch.cat([fed.net.features(base, some) for some in x]).split(sizes)
        each = tabulate(fed, self, state, fed.test, self._features).split(sizes)
        pairs = zip(each, central, strict=True)
        similar = torch.stack([linear_cka(h.transpose(0, 1), c) for h, c in pairs])
        shares = fed.shares("label")
        overlap = torch.minimum(shares.unsqueeze(1), shares).sum(-1)
        one, other = divmod(int(overlap.clone().fill_diagonal_(-1).argmax()), len(shares))
        shown = {"own": each[one][:, one], "borrowed": each[one][:, other], "central": central[one]}
        few = {n: h[: self.examples] for n, h in shown.items()}
        labels = fed.test.y[fed.test.indices].split(sizes)[one][: self.examples]
        return {
            "feature_similarity": similar[fed.by_id],
            "label_overlap": overlap[fed.by_id],
            "example_label": labels.double().unsqueeze(1),
            **{f"distance_{n}": torch.cdist(h, h) for n, h in few.items()},
        }

    def _features(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the features of all bases, ``[B, M, width]``."""
        return self._outputs(net, params, ctx, code)


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Return the linear centred kernel alignment of two models' features of the same examples.

        |X' Y|^2 / (|X' X| |Y' Y|)  with centred columns and Frobenius norms

    It does not change if features are rotated, scaled or shifted: 1 if they are then the same, 0 if
    no feature of one is correlated with one of the other.

    Args:
        x: ``[..., n, width]``.
        y: ``[n, other width]``.

    Returns:
        ``[...]``, between 0 and 1; NaN if all features of a model are constant.

    Reference: Kornblith et al., Similarity of neural network representations revisited, ICML 2019.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> [round(float(linear_cka(x, y)), 3) for y in (3 * x.flip(1) + 1, x[:, :1])]
    [1.0, 0.791]
    """
    x, y = (t.double() - t.double().mean(-2, keepdim=True) for t in (x, y))
    products = (a.mT @ b for a, b in ((x, y), (x, x), (y, y)))
    cross, own, other = (torch.linalg.matrix_norm(t) for t in products)
    return cross**2 / (own * other)
