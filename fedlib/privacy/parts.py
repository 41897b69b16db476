"""Labels of clients, reconstructed from the private parts that PM-MoE sends to all clients.

This attack is not in Feng et al. (PM-MoE, 2025), who say that parameters reveal nothing private
(A.4). All clients start with the same head W_0, b_0. A step of SGD on the cross-entropy changes the
row of label c by

    - eta mean_i (p(c|x_i) - [y_i = c]) (h_i, 1)

where the features h_i come from a ReLU and are not negative. The row of a label that the client
does not hold can therefore only decrease, and so can its sum. The sum over all rows does not
change, so that a label whose row increased is held by the client.
"""

import torch
from torch import Tensor

from fedlib.algorithms import PMMoE
from fedlib.algorithms.pmmoe import POOL
from fedlib.engine import Phase, State, tabulate
from fedlib.federation import Federation
from fedlib.models import Params, add_prefix, map_experts, select_prefix
from fedlib.values import value

FRESH = "fresh_logits"


@value
class PartsAudit(PMMoE):
    """PM-MoE that trains no gate, and reconstructs labels of clients from their private parts.

    Every client uses its own part only, so that it predicts as ``of`` does. Train for one round
    with all clients (``rounds=1, cohort=1.0``), after a first stage of ``of``. It logs, each
    ``[clients, classes]``:

        held_labels        1 for a label of the client's training examples, else 0
        labels_from_parts  change of the logits of an input of ones: the row sums of W - W_0 plus
                           b - b_0 for a head, W v for a vector v; not logged for bases

    and "asked_labels" ``[clients, 1]``: a client guesses that another one holds a label if the
    other's part predicts it for any of the client's own training examples. The number is the
    fraction of correct guesses over all other clients and labels.

    Args:
        own_expert_bias: a bias of the gate that is large enough to select the own part. Default:
            1e4.
        others: as in ``PMMoE``.

    Reference: the attack is new; Feng et al., PM-MoE, 2025, algorithm 1, line 2, send private parts
    to all clients.
    """

    own_expert_bias: float = 1e4

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return PM-MoE's state, with the logits of an input of ones under the initial part."""
        state = PMMoE.init(self, fed, seed, first)
        if self.of.experts != "base.":
            fresh = select_prefix(self.of.init_params(fed, seed), self.of.experts)
            one = {n: t.unsqueeze(0) for n, t in fresh.items()}
            state.server_memory[FRESH] = self._of_ones(fed, state, one)
        return state

    def phases(self) -> tuple[Phase, ...]:
        """Return no phase."""
        return ()

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return the labels of clients and their reconstructions; see the class."""
        held = fed.train.counts(fed.classes) > 0
        found = {"held_labels": held.double(), "asked_labels": self._asking(fed, state, held)}
        if FRESH in state.server_memory:
            moved = self._of_ones(fed, state, select_prefix(state.server_params, POOL))
            found["labels_from_parts"] = moved - state.server_memory[FRESH]
        return {name: t[fed.by_id] for name, t in found.items()}

    def _of_ones(self, fed: Federation, state: State, parts: Params) -> Tensor:
        """Return the logits that parts ``[M, ...]`` give an input of ones, ``[M, classes]``."""
        entry = torch.ones(1, fed.net.width, device=fed.device)
        each = map_experts(
            lambda part: {"out": self.of.private(fed.net, {**state.server_params, **part}, entry)},
            add_prefix(parts, self.of.experts),
        )
        return self.of.joined(fed.net, state.server_params, each["out"])[0]

    def _asking(self, fed: Federation, state: State, held: Tensor) -> Tensor:
        """Return each client's fraction of correct guesses about others, ``[clients, 1]``."""
        labels = tabulate(fed, self, state, fed.train, self._asked)[:, : fed.num_clients]
        classes, told = torch.arange(fed.classes, device=fed.device), []
        for asker, answers in enumerate(labels.split(fed.train.sizes.tolist())):
            right = (answers.unsqueeze(-1) == classes).any(0) == held
            others = torch.arange(fed.num_clients, device=fed.device) != asker
            told.append(right[others].double().mean())
        return torch.stack(told).unsqueeze(1)
