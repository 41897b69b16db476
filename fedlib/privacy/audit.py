"""An honest but curious server: everything that a round's messages say about labels."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedlib.algorithms import FedAvg
from fedlib.engine import Report, State
from fedlib.federation import Federation
from fedlib.privacy.labels import Floats, from_marginal, from_step, from_update

BIAS, WEIGHT = "head.bias", "head.weight"


def audit(
    fed: Federation, algorithm: FedAvg, state: State, report: Report
) -> dict[str, Floats]:  # fmt: skip
    """Return the cohort's label shares p(y|s), and what can be inferred of them, ``[S, classes]``.

    ``label_share`` is the truth. ``labels_from_bias`` needs the output layer's bias to be sent,
    ``labels_from_weights`` its weights (features behind a ReLU are not negative, so that a row's
    sum moves as its bias does), and ``labels_from_q`` q(z|s) and phi, FedMix's. ``state`` is where
    the round started from. Methods that do not apply are left out.
    """
    rows = np.asarray(report.rows)
    found = {"label_share": _numbers(fed.shares("label"))[rows]}
    bias = _of_output(report.messages, BIAS)
    if bias is not None:
        rate = algorithm.client.rate(BIAS if BIAS in report.messages else f"experts.{BIAS}")
        exact = _one_step(algorithm) and rate > 0
        found["labels_from_bias"] = from_step(bias, rate) if exact else from_update(bias)
    weight = _of_output(report.messages, WEIGHT)
    if weight is not None:
        found["labels_from_weights"] = from_update(weight.sum(-1))
    if "phi" in report.messages and getattr(algorithm, "condition", "") == "label":
        phi = _numbers((state.shared["phi"] - report.messages["phi"]).softmax(-1))
        q = _numbers(report.messages.get("q_raw", report.messages["q_s"]))
        pairs = zip(q, phi, strict=True)
        found["labels_from_q"] = np.stack([from_marginal(*pair) for pair in pairs])
    return found


def _one_step(algorithm: FedAvg) -> bool:
    """Return whether clients take one full-batch step of SGD."""
    plain = algorithm.client.name == "sgd" and algorithm.client.weight_decay == 0
    return plain and algorithm.batch_size is None and algorithm.epochs == 1


def _of_output(messages: dict[str, Tensor], leaf: str) -> Floats | None:
    """Return the update of an output leaf, ``[S, classes, ...]``, summed over experts."""
    if leaf in messages:
        return _numbers(messages[leaf])
    experts = messages.get(f"experts.{leaf}")
    return None if experts is None else _numbers(experts).sum(1)


def _numbers(t: Tensor) -> Floats:
    return t.detach().cpu().double().numpy()
