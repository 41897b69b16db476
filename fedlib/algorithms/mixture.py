"""A gate per client between the federation's expert and the client's own (001; 002)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedlib.algorithms.fedavg import FedAvg, at_label, mean, rows_of
from fedlib.engine import EarlyStop, Phase, Prediction, State
from fedlib.federation import OPTED_IN, Federation
from fedlib.models import Family, Leaves, Net, named, part
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import one_of, value

GLOBAL, COPY, OWN, GATE = "global.", "copy.", "own.", "gate."


def pooled(said: Tensor, gate: Tensor, pool: str = "probabilities") -> Tensor:
    """Return log p of experts that said log p ``[..., 2]`` under a log gate ``[..., 2]``.

    "probabilities" is log (sum h p); "log" is sum (h log p), which is not normalised (A19).
    """
    return (gate.exp() * said).sum(-1) if pool == "log" else (gate + said).logsumexp(-1)


@value
class Mixture(FedAvg):
    """h(x) f_s(x) + (1 - h(x)) f_g(x): generalist f_g, specialist f_s, gate h (001, eq. 3 and 6).

    A last stage that sends nothing. ``Experiment.after`` is the federation, whose model is f_g;
    or ``Local`` after it, whose models are where the specialists start, fine-tuned (001) or trained
    from scratch (002). Play one round with every client (cohort 1.0).

    ``pool`` "probabilities" mixes what the experts say and minimises -log of the mixture at the
    label, "log" mixes their log-probabilities, as released: h CE_s + (1 - h) CE_g, an upper bound
    (A19). ``train_global`` also trains a copy of f_g for each client, on the examples that have
    not opted out (002, eq. 7); otherwise it stays as it is. ``expert`` and ``gate`` are the
    networks of f_s and h, the task's model where None; a specialist of another architecture
    starts fresh. Early stopping watches the loss.
    """

    epochs: int = 500
    batch_size: int | None = 10
    client: Optimizer = adam(1e-5)
    stop: EarlyStop | None = EarlyStop(every=5, patience=10, min_delta=0.01)
    pool: str = "probabilities"
    train_global: bool = False
    expert: Family | None = None
    gate: Family | None = None

    def check(self) -> None:
        FedAvg.check(self)
        one_of("pool", self.pool, ("probabilities", "log"))

    @property
    def federates(self) -> bool:
        """Whether clients send anything: no, the federation is over."""
        return False

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is a client's: all but those of the federation's model."""
        return not name.startswith(GLOBAL)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return generalist, specialists and fresh gates, equal ones for all clients.

        ValueError without a first stage that federated this task's model.
        """
        theirs = fed.net.init(torch_seed(seed, "model", 0))
        if first is None or first.shared.keys() != theirs.keys():
            raise ValueError(
                "Mixture mixes in the model of a federation: give FedAvg's experiment, "
                "or that of Local after it, as `after`"
            )
        gate = fed.net.like(self.gate, 1).init(torch_seed(seed, "model", 1))
        mine = {**self._specialists(fed, seed, first), **rows_of(named(gate, GATE), fed)}
        if self.train_global:
            mine |= rows_of(named(first.shared, COPY), fed)
        return State(named(first.shared, GLOBAL), mine, {})

    def _specialists(self, fed: Federation, seed: int, first: State) -> Leaves:
        if self.expert is not None:
            fresh = fed.net.like(self.expert).init(torch_seed(seed, "model", 2))
            return rows_of(named(fresh, OWN), fed)
        if first.local:
            return {n: t.clone() for n, t in named(first.local, OWN).items()}
        return rows_of(named(first.shared, OWN), fed)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over what is local, stopped by the loss on validation examples."""
        return (
            Phase(
                self.client,
                self.epochs,
                self.batch_size,
                stop=self.stop,
                watch="loss",
                side="local",
            ),
        )

    def loss(self, net: Net, params: Leaves, ctx: Leaves, batch: Leaves) -> Tensor:
        """Return the loss of the mixture on one client's mini-batch."""
        code = self.encode(net, params, batch["x"])
        said = at_label(self._say(net, params, code, batch.get(OPTED_IN)), batch["y"])
        mixed = pooled(said, self._open(net, params, code), self.pool)
        return -mean(mixed, batch["weight"])

    def finish(self, net: Net, before: Leaves, after: Leaves, ctx: Leaves) -> Leaves:
        """Return nothing: the federation is over."""
        return {}

    def sent(self, state: State, rows: Tensor, messages: Leaves) -> tuple[Tensor, Tensor]:
        """Return no bytes: what the first stage shared was there when this one began."""
        none = torch.zeros(len(rows), dtype=torch.int64)
        return none, none

    def encode(self, net: Net, shared: Leaves, x: Tensor) -> Leaves:
        """Return the batch, and what the federation's model says of it, log p ``[B, classes]``."""
        if self.train_global:
            return {"x": x}
        return {"x": x, "logp": net(part(shared, GLOBAL), x).log_softmax(-1)}

    def predict(self, net: Net, params: Leaves, ctx: Leaves, code: Leaves) -> Prediction:
        """Return the mixture's log-probabilities and gate: generalist, specialist ``[B, 2]``."""
        said, gate = self._say(net, params, code), self._open(net, params, code)
        mixed = pooled(said.mT, gate.unsqueeze(-2), self.pool)
        return Prediction(mixed.log_softmax(-1) if self.pool == "log" else mixed, gate.exp())

    def _say(
        self, net: Net, params: Leaves, code: Leaves, opted_in: Tensor | None = None
    ) -> Tensor:
        """Return log p of generalist and specialist, ``[B, 2, classes]``.

        Examples that are not ``opted_in`` ``[B]`` do not train the generalist.
        """
        theirs = code.get("logp")
        if theirs is None:
            theirs = net(part(params, COPY), code["x"]).log_softmax(-1)
            if opted_in is not None:
                theirs = torch.where(opted_in.bool().unsqueeze(-1), theirs, theirs.detach())
        mine = net.like(self.expert)(part(params, OWN), code["x"]).log_softmax(-1)
        return torch.stack([theirs, mine], -2)

    def _open(self, net: Net, params: Leaves, code: Leaves) -> Tensor:
        """Return log (1 - h) and log h, ``[B, 2]``."""
        a = net.like(self.gate, 1)(part(params, GATE), code["x"])
        return torch.cat([logsigmoid(-a), logsigmoid(a)], -1)
