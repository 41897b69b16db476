"""A gate per client over the global experts and a local one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedlib.algorithms.ifca import CLUSTERS, FIT, log_probs, num_clusters, used_clusters
from fedlib.algorithms.interface import *
from fedlib.algorithms.local import NoServer

GLOBAL, COPY, OWN, GATE = "global.", "copy.", "own.", "gate."


def pooled(log_p: Tensor, gate: Tensor, pool: str = "probabilities") -> Tensor:
    """Return the mixture's log p ``[...]``.

    Args:
        log_p: log-probabilities of the experts, ``[..., K]``.
        gate: logarithms of the gate's probabilities, ``[..., K]``.
        pool: "probabilities" for log (sum h p), or "log" for sum (h log p), which is not
            normalised. Default: "probabilities".

    >>> log_p, gate = torch.tensor([0.1, 0.9]).log(), torch.tensor([0.25, 0.75]).log()
    >>> pooled(log_p, gate).exp()
    tensor(0.7000)
    """
    return (gate.exp() * log_p).sum(-1) if pool == "log" else (gate + log_p).logsumexp(-1)


@value
class Mixture(NoServer):
    """A gate h_k of each client k mixes its local specialist f_s with global generalists.

        p(y|x) = h_k(x) f_s^k(x) + (1 - h_k(x)) f_g(x)                 (Listo Zec et al., 2021)
        p(y|x) = g_s^k(x) f_s^k(x) + sum_j g_j^k(x) f_j(x)             (Isaksson et al., 2022)
        loss   = -log p(y|x)     over specialist and gate; f_g, f_j are frozen

    This is the last stage of an experiment. Its ``first_stage`` is FedAvg, whose model is the one
    generalist f_g; or ``IFCA``, whose J cluster models are the f_j; or ``Local`` after FedAvg,
    whose fine-tuned models are the initial specialists. With a ``Local`` stage as
    ``local_stage``, the specialists start from its models, trained from scratch or
    fine-tuned from clusters. Without either they start from the first stage's model if ``expert``
    has its architecture, and else from fresh weights. The gate is a sigmoid for two experts and a
    softmax for more. Train for one round with all clients (``rounds=1, cohort=1.0``).

    Args:
        epochs: most local epochs of specialist and gate. Default: 500.
        batch_size: examples per mini-batch. Default: 10.
        client: optimiser of specialist and gate. Default: Adam with rate 0.00001.
        stop: early stopping on the loss of the client's validation examples, or None.
            Default: every 5 epochs, patience 10, min_delta 0.01.
        pool: "probabilities", as above; "log" mixes log-probabilities as in the released code of
            Listo Zec et al., with loss h CE_s + (1 - h) CE_g, an upper bound; "mean" is the
            ensemble of all experts with equal weights, and trains nothing. Default:
            "probabilities".
        train_global: whether each client also trains a copy of the generalists, on its examples
            that have not opted out (Listo Zec et al., 2020, eq. 7), without dropout and with the
            statistics of BatchNorm fixed. Default: False.
        expert: network of f_s; None is the task's model. Default: None.
        gate: network of h; None is the task's model. Default: None.
        frozen: whether only the gate is trained. Default: False.
        used_only: whether, after IFCA, clusters that are no client's best are left out, as in the
            released code of Isaksson et al. Default: False.
        server, steps: as in ``FedAvg``; there is no server step.

    Reference: Listo Zec et al., Specialized federated learning using a mixture of experts, 2021,
    eq. 3 and 6, and its first version, 2020; Isaksson et al., Adaptive expert models for federated
    learning, 2022. Deviation: none from the papers; the released code mixes log-probabilities and
    leaves out clusters.

    >>> from fedrun import Experiment, run, tiny
    >>> first = Experiment(tiny.task, FedAvg(epochs=5, client=sgd(0.2)), rounds=20, cohort=6)
    >>> mixed = Mixture(epochs=20, client=adam(0.01))
    >>> result = run(Experiment(tiny.task, mixed, 1, 1.0, first_stage=first), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

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
        """Return generalists, specialists and fresh gates, which are equal for all clients.

        Raises:
            ValueError: without a first stage that has this task's model at the server, or for
                ``used_only`` after a first stage without clusters.
        """
        names = fed.net.init(torch_seed(seed, "model", 0)).keys()
        if first is None or {n.removeprefix(CLUSTERS) for n in first.server_params} != names:
            which, stage = "FedAvg, IFCA or Local after FedAvg", "`first_stage`"
            own = "models of Local after IFCA are for `local_stage`"
            raise ValueError(f"Mixture follows {which}: give that experiment as {stage}; {own}")
        if self.used_only and FIT not in first.server_memory:
            raise ValueError("used_only leaves out clusters: it is for a Mixture after IFCA")
        shared = used_clusters(first) if self.used_only else first.server_params
        fresh = fed.net.like(self.expert).init(torch_seed(seed, "model", 2))
        shapes = {n: t.shape for n, t in fresh.items()}
        if {n: t.shape[1:] for n, t in first.client_params.items()} == shapes:
            mine = {n: t.clone() for n, t in add_prefix(own_params(first, fed), OWN).items()}
        else:
            like = {n: t.shape for n, t in first.server_params.items()} == shapes
            fresh = first.server_params if like else fresh
            mine = broadcast_to_clients(add_prefix(fresh, OWN), fed)
        if self.pool != "mean":
            outputs = clusters + 1 if (clusters := num_clusters(shared)) > 1 else 1
            gate = fed.net.like(self.gate, outputs).init(torch_seed(seed, "model", 1))
            mine |= broadcast_to_clients(add_prefix(gate, GATE), fed)
        if self.train_global:
            mine |= broadcast_to_clients(add_prefix(shared, COPY), fed)
        return State(add_prefix(shared, GLOBAL), mine)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over specialist and gate, or the gate alone; none for an ensemble."""
        if self.pool == "mean":
            return ()
        moving = (GATE,) if self.frozen else ("",)
        noise = tuple((f"dropout:{k}", f) for k, f in enumerate((self.expert, self.gate)) if f)
        how = {"stop": self.stop, "monitor": "loss", "scope": "local", "random_inputs": noise}
        return (self.phase(train=moving, **how),)

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return log p of each example's label under the frozen experts."""
        if self.train_global:
            return NOTHING
        code = self.shared_forward(net, frozen, batch.x)
        logp = self.expert_log_probs(net, frozen, code) if self.frozen else code["logp"]
        return Precomputed({"log_p": at_label(logp, batch.y)}, {})

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the loss of the mixture on one client's mini-batch."""
        x, y, log_p = batch.x, batch.y, batch.precomputed.get("log_p")
        if log_p is None:
            code = self.shared_forward(net, params, x)
            log_p = at_label(self.expert_log_probs(net, params, code, batch), y)
        elif not self.frozen:
            mine = at_label(self._own_log_probs(net, params, x, batch), y)
            log_p = torch.cat([log_p, mine.unsqueeze(-1)], -1)
        mixed = pooled(log_p, self._gate(net, params, x, batch), self.pool)
        return -mean(mixed, batch.weight)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return the examples, and their log p under the generalists, ``[B, J, classes]``."""
        if self.train_global:
            return {"x": x}
        return {"x": x, "logp": log_probs(net, select_prefix(shared, GLOBAL), x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the mixture's prediction and gate ``[B, J + 1]``, the specialist last."""
        log_p = self.expert_log_probs(net, params, code).mT
        if self.pool == "mean":
            gate = torch.full_like(log_p[:, 0], -math.log(log_p.shape[-1]))
        else:
            gate = self._gate(net, params, code["x"])
        mixed = pooled(log_p, gate.unsqueeze(-2), self.pool)
        return Prediction(mixed.log_softmax(-1) if self.pool == "log" else mixed, gate.exp())

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return the experts' accuracies and the gate's probabilities on each client's test set.

        "expert_accuracy" and "gate_share" are ``[clients, experts]``; "gate_entropy", in nats, is
        ``[clients, 1]``. They are means over a client's test examples, NaN without any.
        """
        return expert_diagnostics(on_tests(fed, self, state, self._test_outputs))

    def _test_outputs(self, net: Net, params: Params, ctx: Params, code: Params) -> Tensor:
        """Return the label predicted by each expert, then the gate, ``[B, 2 (J + 1)]``."""
        labels = self.expert_log_probs(net, params, code).argmax(-1)
        gate = self.predict(net, params, ctx, code).gate
        return torch.cat([labels.to(gate.dtype), gate], -1)

    def expert_log_probs(
        self, net: Net, params: Params, code: Params, batch: Batch | None = None
    ) -> Tensor:
        """Return log p under generalists and specialist, ``[B, J + 1, classes]``.

        With a training ``batch``, its dropout noise is applied to the specialist, and examples
        that have opted out give no gradient to the generalists.
        """
        theirs = code.get("logp")
        if theirs is None:
            theirs = log_probs(net, select_prefix(params, COPY), code["x"])
            if batch is not None and OPTED_IN in batch.side:
                inside = batch.side[OPTED_IN].bool()[:, None, None]
                theirs = torch.where(inside, theirs, theirs.detach())
        mine = self._own_log_probs(net, params, code["x"], batch)
        return torch.cat([theirs, mine.unsqueeze(-2)], -2)

    def _own_log_probs(self, net: Net, params: Params, x: Tensor, batch: Batch | None) -> Tensor:
        own = net.like(self.expert)
        if batch is not None and batch.noise is not None:  # the rest is the gate's noise
            batch = replace(batch, noise=batch.noise[..., : own.noise])
        return own.logp(select_prefix(params, OWN), x, batch)

    def _gate(self, net: Net, params: Params, x: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the log gate, ``[B, J + 1]``: log (1 - h) and log h for two experts."""
        own = select_prefix(params, GATE)
        outputs = own["head.bias"].shape[-1]
        a = net.like(self.gate, outputs)(own, x, batch)
        if outputs > 1:
            return a.log_softmax(-1)
        return torch.cat([logsigmoid(-a), logsigmoid(a)], -1)


def on_tests(
    fed: Federation, algorithm: Algorithm, state: State, outputs: Callable[..., Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Return which experts are right, and the gate, for every test example of every client.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: its state.
        outputs: a function ``(net, params, ctx, code)`` that returns the labels predicted by the
            single experts, then the gate, ``[B, 2 M]``.

    Returns:
        A pair per client, in the order of client ids, float64 ``[tests, M]`` each; none if no
        client has test examples.
    """
    if not len(fed.test.indices):
        return []
    found = tabulate(fed, algorithm, state, fed.test, outputs)
    labels, gate = found.split(found.shape[-1] // 2, -1)
    right = labels == fed.test.y[fed.test.indices].unsqueeze(-1)
    each = (t.double().split(fed.test.sizes.tolist()) for t in (right, gate))
    pairs = [*zip(*each, strict=True)]
    return [pairs[i] for i in fed.by_id.tolist()]


def expert_diagnostics(tests: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return "expert_accuracy" and "gate_share" ``[clients, M]``, "gate_entropy" ``[clients, 1]``.

    They are means over a client's test examples (of the result of ``on_tests``), NaN without any;
    none of them if no client has tests. The entropy is in nats.
    """
    if not tests:
        return {}
    return {
        "expert_accuracy": torch.stack([right.mean(0) for right, _ in tests]),
        "gate_share": torch.stack([gate.mean(0) for _, gate in tests]),
        "gate_entropy": torch.stack([entropy(gate).mean() for _, gate in tests]).unsqueeze(1),
    }
