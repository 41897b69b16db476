"""FedGH: clients send what labels look like to them, the server trains a head on that."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlib.algorithms.fedavg import one_hot
from fedlib.algorithms.personal import LGFedAvg
from fedlib.engine import BLOCK, State, Update, vmap_clients
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.optim import Optimizer, sgd
from fedlib.randomness import torch_seed
from fedlib.values import value

PROTOTYPES, HELD = "prototypes", "held"
DRAW = "server/seed"


@value
class FedGH(LGFedAvg):
    """Personal bases below a head that the server trains (Yi et al., 2023).

    A client trains its base and the head that it has received, then sends the mean features of each
    of its labels and no model. The server takes one pass over all of these (features, label) pairs,
    shuffled, ``pairs`` at a time, with ``head``; every pair counts the same. In PFLlib the server's
    head is client 0's by mistake (A39), here it is its own.
    """

    head: Optimizer = sgd(1.0)
    pairs: int = 10

    def check(self) -> None:
        LGFedAvg.check(self)
        if self.pairs < 1:
            raise ValueError(f"FedGH.pairs must be >= 1, got {self.pairs}")

    def before_round(
        self, fed: Federation, state: State, rows: Tensor, *, round: int, seed: int
    ) -> State:
        """Return the state with this round's seed of the server's shuffling."""
        draw = torch.tensor(torch_seed(seed, "server", round))
        return replace(state, memory={**state.memory, DRAW: draw})

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return nothing: no leaf is sent back."""
        return {}, {}

    def client_statistics(
        self, fed: Federation, rows: Tensor, after: Params, context: Params
    ) -> Params:
        """Return the mean features ``[clients, classes, D]`` of every label that a client holds."""
        total = torch.zeros(len(rows), fed.classes, fed.net.width, device=fed.device)
        count = torch.zeros(len(rows), fed.classes, device=fed.device)
        features = vmap_clients(fed.net.features, len(rows))
        for batch in fed.train.blocks(rows, BLOCK):
            labels = one_hot(batch["y"], fed.classes) * batch["weight"].unsqueeze(-1)
            total += labels.mT @ features(after, batch["x"])
            count += labels.sum(1)
        held = (count > 0).to(total.dtype)
        return {PROTOTYPES: total / count.clamp(min=1).unsqueeze(-1), HELD: held}

    def aggregate(self, fed: Federation, state: State, rows: Tensor, messages: Params) -> State:
        """Train the head for one pass over the prototypes."""
        held = messages[HELD] > 0
        x, y = messages[PROTOTYPES][held], held.nonzero()[:, 1]
        draw = torch.Generator().manual_seed(int(state.memory[DRAW]))
        order = torch.randperm(len(y), generator=draw).to(y.device)
        head = {n: t.clone().requires_grad_() for n, t in state.shared.items()}
        optimizer = self.head.build(head)
        for some in order.split(self.pairs):
            with torch.enable_grad():
                loss = cross_entropy(fed.net.logits(head, x[some]), y[some])
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        return replace(state, shared={n: t.detach() for n, t in head.items()})

    def communication_bytes(
        self, state: State, rows: Tensor, messages: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the bytes: the head down, the prototypes of the labels that are held up."""
        down, _ = LGFedAvg.communication_bytes(self, state, rows, {})
        each = messages[PROTOTYPES].shape[-1] * messages[PROTOTYPES].element_size()
        label = 8
        return down, (messages[HELD].sum(1).cpu().to(torch.int64)) * (each + label)
