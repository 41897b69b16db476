"""An honest but curious server: everything that a round's messages say about labels."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedlib.algorithms import FedAvg
from fedlib.engine import Report, State
from fedlib.federation import Federation
from fedlib.privacy.labels import Floats, from_marginal, from_step, from_update
from fedlib.privacy.phi import from_rows, from_rows_together, set_from_rows

BIAS, WEIGHT = "head.bias", "head.weight"
SENT = 1e-6  # q(z|s) is sent in float32: what is smaller in it is rounding


def audit(
    fed: Federation, algorithm: FedAvg, state: State, report: Report
) -> dict[str, Floats]:  # fmt: skip
    """Return the cohort's label shares p(y|s), and what can be inferred of them, ``[S, classes]``.

    ``label_share`` is the truth. ``labels_from_bias`` needs the output layer's bias to be sent,
    ``labels_from_weights`` its weights (features behind a ReLU are not negative, so that a row's
    sum moves as its bias does), and ``labels_from_q`` q(z|s) and phi, FedMix's.

    phi alone tells more (ours, not in 000): ``label_set_from_phi``, 1 for each label whose row
    moved and 0 for others, ``labels_from_phi``, from how far, and ``labels_from_phi_cohort``, with
    what as many clients as labels say of one another. ``state`` is where the round started from.
    Methods that do not apply are left out.
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
        found["labels_from_q"] = np.stack([from_marginal(*pair, resolution=SENT) for pair in pairs])
        found |= _rows(algorithm, state, report)
    return found


def _rows(algorithm: FedAvg, state: State, report: Report) -> dict[str, Floats]:
    """Return what the rows of phi's update say; nothing where clients leave phi alone.

    Weight decay moves every row, so that none tells by being zero.
    """
    if algorithm.client.rate("phi") == 0:
        return {}
    moved = _numbers(report.messages["phi"])
    q_y = _numbers(state.shared["phi"].double().softmax(-1))
    found = {"labels_from_phi": from_rows(moved, q_y)}
    if len(moved) >= moved.shape[1]:
        found["labels_from_phi_cohort"] = from_rows_together(moved, q_y)
    if algorithm.client.weight_decay == 0:
        found["label_set_from_phi"] = set_from_rows(moved).astype(np.float64)
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
