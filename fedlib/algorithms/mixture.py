"""A gate per client over a federation's experts and the client's own (001, 003)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedlib.algorithms.arithmetic import at_label, entropy, mean
from fedlib.algorithms.fedavg import broadcast_to_clients, own_params
from fedlib.algorithms.ifca import CLUSTERS, FIT, count, log_probs, used
from fedlib.algorithms.local import NoServer
from fedlib.engine import Algorithm, EarlyStop, Phase, Prediction, State, tabulate, uses_precomputed
from fedlib.federation import NOTHING, OPTED_IN, Federation, Precomputed
from fedlib.models import Architecture, Batch, FunctionalModel, Params, add_prefix, select_prefix
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import value

GLOBAL, COPY, OWN, GATE = "global.", "copy.", "own.", "gate."


def pooled(log_p: Tensor, gate: Tensor, pool: str = "probabilities") -> Tensor:
    """Return log p of experts that give log p ``[..., K]`` under a log gate ``[..., K]``.

    "probabilities" is log (sum h p); "log" is sum (h log p), which is not normalised (A19).

    >>> log_p, gate = torch.tensor([0.1, 0.9]).log(), torch.tensor([0.25, 0.75]).log()
    >>> pooled(log_p, gate).exp()
    tensor(0.7000)
    """
    return (gate.exp() * log_p).sum(-1) if pool == "log" else (gate + log_p).logsumexp(-1)


@value
class Mixture(NoServer):
    """A gate h_k of each client k mixes its own specialist f_s with the federation's generalists.

        p(y|x) = h_k(x) f_s^k(x) + (1 - h_k(x)) f_g(x)                       (001, eq. 3 and 6)
        p(y|x) = g_s^k(x) f_s^k(x) + sum_j g_j^k(x) f_j(x)                   (003, J clusters)
        loss   = -log p(y|x)     over specialist and gate; f_g, f_j stand still

    A last stage. ``Experiment.first_stage`` is the federation, whose model is the one generalist
    f_g, or ``IFCA``, whose J clusters' models are f_j; or ``Local`` after FedAvg, whose models are
    where the specialists start, fine-tuned (001). Where a ``Local`` stage stands in
    ``local_stage``, they start from its models, trained from scratch (002, 003) or fine-tuned from
    clusters. Two experts have a sigmoid gate, more a softmax. Play one round with every client
    (cohort 1.0).

    ``pool`` "probabilities" is the above; "log" mixes log-probabilities, as released for 001, whose
    loss is h CE_s + (1 - h) CE_g, an upper bound (A19). "mean" needs no gate and trains nothing:
    the ensemble of all experts, whose probabilities count the same.

    What experts that do not move say of training examples is computed once: the generalists, or
    with ``frozen`` all of them, where only the gate is trained (A28).
    ``train_global`` also trains a copy of the generalists for each client, on the examples that
    have not opted out (002, eq. 7), without dropout and with the statistics of BatchNorm as they
    are; otherwise they stay as they are. ``expert`` and ``gate`` are the networks of f_s and h, the
    task's model where None; a specialist starts fresh where the first stage has none of that
    architecture. ``used_only``, after IFCA, leaves out clusters that are nobody's best, as released
    (A29). Early stopping watches the loss.

    Reference: Listo Zec et al., Specialized federated learning using a mixture of experts (001) and
    its first version (002); Isaksson et al., Adaptive expert models for federated learning (003).
    Deviation: probabilities are mixed and all clusters used, as in the papers, not as released.
    """

    predicts_from_inputs = True
    local = (COPY, OWN, GATE)
    epochs: int = 500
    batch_size: int | None = 10
    client: Optimizer = adam(1e-5)
    stop: EarlyStop | None = EarlyStop(every=5, patience=10, min_delta=0.01)
    pool: Annotated[str, ("probabilities", "log", "mean")] = "probabilities"
    train_global: bool = False
    expert: Architecture | None = None
    gate: Architecture | None = None
    frozen: bool = False
    used_only: bool = False

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return generalists, specialists and fresh gates, equal ones for all clients.

        ValueError without a first stage that federated this task's model, and for ``used_only``
        where it has no clusters.
        """
        names = fed.net.init(torch_seed(seed, "model", 0)).keys()
        if first is None or {n.removeprefix(CLUSTERS) for n in first.server_params} != names:
            which = "FedAvg, IFCA or Local after FedAvg"
            own = "models of Local after IFCA are for `local_stage`"
            raise ValueError(f"Mixture follows {which}: give its experiment as `after`; {own}")
        if self.used_only and FIT not in first.server_memory:
            raise ValueError("used_only leaves out clusters: it is for a Mixture after IFCA")
        shared = used(first) if self.used_only else first.server_params
        mine = self._specialists(fed, seed, first)
        if self.pool != "mean":
            outputs = count(shared) + 1 if count(shared) > 1 else 1
            gate = fed.net.like(self.gate, outputs).init(torch_seed(seed, "model", 1))
            mine |= broadcast_to_clients(add_prefix(gate, GATE), fed)
        if self.train_global:
            mine |= broadcast_to_clients(add_prefix(shared, COPY), fed)
        return State(add_prefix(shared, GLOBAL), mine)

    def _specialists(self, fed: Federation, seed: int, first: State) -> Params:
        fresh = fed.net.like(self.expert).init(torch_seed(seed, "model", 2))
        shapes = {n: t.shape for n, t in fresh.items()}
        if {n: t.shape[1:] for n, t in first.client_params.items()} == shapes:
            return {n: t.clone() for n, t in add_prefix(own_params(first, fed), OWN).items()}
        like = {n: t.shape for n, t in first.server_params.items()} == shapes
        return broadcast_to_clients(add_prefix(first.server_params if like else fresh, OWN), fed)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over what is local, or the gate only; none for an ensemble."""
        if self.pool == "mean":
            return ()
        moving = (GATE,) if self.frozen else ("",)
        noise = tuple((f"dropout:{k}", f) for k, f in enumerate((self.expert, self.gate)) if f)
        phase = self.phase(
            train=moving, stop=self.stop, monitor="loss", scope="local", random_inputs=noise
        )
        return (phase,)

    def precompute(
        self, net: FunctionalModel, frozen: Params, ctx: Params, batch: Batch
    ) -> Precomputed:
        """Return what experts that stay say of an example's label."""
        if self.train_global:
            return NOTHING
        code = self.shared_forward(net, frozen, batch.x)
        logp = self.expert_log_probs(net, frozen, code) if self.frozen else code["logp"]
        return Precomputed({"log_p": at_label(logp, batch.y)}, {})

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the loss of the mixture on one client's mini-batch."""
        x, y, log_p = batch.x, batch.y, batch.precomputed.get("log_p")
        if log_p is None:
            log_p = at_label(
                self.expert_log_probs(net, params, self.shared_forward(net, params, x), batch), y
            )
        elif not self.frozen:
            mine = at_label(self._own_log_probs(net, params, x, batch), y)
            log_p = torch.cat([log_p, mine.unsqueeze(-1)], -1)
        mixed = pooled(log_p, self._gate(net, params, x, batch), self.pool)
        return -mean(mixed, batch.weight)

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return the batch, and what the generalists say of it, log p ``[B, J, classes]``."""
        if self.train_global:
            return {"x": x}
        return {"x": x, "logp": log_probs(net, select_prefix(shared, GLOBAL), x)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the mixture's log-probabilities and gate: generalists, specialist ``[B, J+1]``."""
        log_p = self.expert_log_probs(net, params, code).mT
        if self.pool == "mean":
            gate = torch.full_like(log_p[:, 0], -math.log(log_p.shape[-1]))
        else:
            gate = self._gate(net, params, code["x"])
        mixed = pooled(log_p, gate.unsqueeze(-2), self.pool)
        return Prediction(mixed.log_softmax(-1) if self.pool == "log" else mixed, gate.exp())

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return what each expert is worth to each client on its tests, and whom its gate trusts.

        "expert_accuracy" and "gate_share" ``[clients, experts]``, "gate_entropy" ``[clients, 1]``
        (nats, the mean over the client's tests). NaN for a client without tests.
        """
        return expert_diagnostics(on_tests(fed, self, state, self._test_outputs))

    def _test_outputs(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Tensor:
        """Return the label that each expert would give, then the gate, ``[B, 2 (J + 1)]``."""
        labels = self.expert_log_probs(net, params, code).argmax(-1)
        gate = self.predict(net, params, ctx, code).gate
        return torch.cat([labels.to(gate.dtype), gate], -1)

    def expert_log_probs(
        self, net: FunctionalModel, params: Params, code: Params, batch: Batch | None = None
    ) -> Tensor:
        """Return log p of generalists and specialist, ``[B, J + 1, classes]``.

        Examples of a ``batch`` in training that have not opted in do not train the generalists, and
        its noise drops units of the specialist.
        """
        theirs = code.get("logp")
        if theirs is None:
            theirs = log_probs(net, select_prefix(params, COPY), code["x"])
            if batch is not None and OPTED_IN in batch.side:
                inside = batch.side[OPTED_IN].bool()[:, None, None]
                theirs = torch.where(inside, theirs, theirs.detach())
        mine = self._own_log_probs(net, params, code["x"], batch)
        return torch.cat([theirs, mine.unsqueeze(-2)], -2)

    def _own_log_probs(
        self, net: FunctionalModel, params: Params, x: Tensor, batch: Batch | None
    ) -> Tensor:
        own = net.like(self.expert)
        if batch is not None and batch.noise is not None:  # the gate's are the last
            batch = replace(batch, noise=batch.noise[..., : own.noise])
        return own.logp(select_prefix(params, OWN), x, batch)

    def _gate(
        self, net: FunctionalModel, params: Params, x: Tensor, batch: Batch | None = None
    ) -> Tensor:
        """Return the log gate, ``[B, J + 1]``: log (1 - h) and log h for two experts."""
        own = select_prefix(params, GATE)
        outputs = own["head.bias"].shape[-1]
        a = net.like(self.gate, outputs)(own, x, batch)
        if outputs > 1:
            return a.log_softmax(-1)
        return torch.cat([logsigmoid(-a), logsigmoid(a)], -1)


def on_tests(
    fed: Federation, algorithm: Algorithm, state: State, asked: Callable[..., Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Return which experts are right and what the gate opens, for every test of every client.

    A pair per client, in the order of their ids, float64 ``[tests, M]`` each. ``asked`` says the
    labels that the experts alone would give, then the gate, ``[B, 2 M]``.
    """
    asked_of = tabulate(fed, algorithm, state, fed.test, asked)
    labels, gate = asked_of.split(asked_of.shape[-1] // 2, -1)
    right = labels == fed.test.y[fed.test.indices].unsqueeze(-1)
    each = (t.double().split(fed.test.sizes.tolist()) for t in (right, gate))
    pairs = [*zip(*each, strict=True)]
    return [pairs[i] for i in fed.by_id.tolist()]


def expert_diagnostics(tests: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return "expert_accuracy" and "gate_share" ``[clients, M]``, "gate_entropy" ``[clients, 1]``.

    Means over a client's tests, NaN for one without; the entropy is in nats.
    """
    return {
        "expert_accuracy": torch.stack([right.mean(0) for right, _ in tests]),
        "gate_share": torch.stack([gate.mean(0) for _, gate in tests]),
        "gate_entropy": torch.stack([entropy(gate).mean() for _, gate in tests]).unsqueeze(1),
    }
