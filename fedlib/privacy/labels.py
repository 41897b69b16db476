"""Label shares p(y|s) of clients, reconstructed from the messages of a round.

The attacks are those of Reisser et al. (2021, App. C), except the one on FedMix's phi, which is
new. The gradient of row phi[c] depends on examples of label c only, so that the nonzero rows of a
message reveal the labels of its client. For one full-batch step of SGD, eq. 6 gives, with a_ck the
mean of log p(y|x, z=k) p(z=k|x, s) over the client's examples of label c,

    before - after = - rate p(c|s) q(k|c) ( a_ck - sum_j q(j|c) a_cj ),

a label share times a factor of which the server knows q(k|c).
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedlib.algorithms import FedAvg, Private
from fedlib.engine import Report, State
from fedlib.federation import Federation

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# The names of what `audit` returns.
OF_LABELS = (
    "label_share", "label_set_from_phi",
    *(f"labels_from_{part}" for part in ("bias", "weights", "q", "phi", "phi_cohort")),
)  # fmt: skip
RESOLUTION = 1e-12  # of numbers in [0, 1] in float64
SENT = 1e-6  # of q(z|s), which is sent in float32
WEIGHT = 1e4  # of the constraints relative to the distance
KEPT = 1e-9  # violation of the constraints that is accepted
PATIENCE = 50  # iterations of the method of multipliers


def audit(
    fed: Federation, algorithm: FedAvg, state: State, report: Report, round: int = 0
) -> dict[str, Floats]:
    """Return the label shares p(y|s) of a cohort and their reconstructions, ``[S, classes]``.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state before the round.
        report: the report of the round, with its messages.
        round: the number of the round. Default: 0.

    Returns:
        By name: ``label_share``, the truth, and those of the following that apply.

        - ``labels_from_bias``: from updates of the output bias.
        - ``labels_from_weights``: from updates of the output weights. Features behind a ReLU are
          not negative, so that the sum of a row moves in the direction of its bias.
        - ``labels_from_q``: from q(z|s) and phi of FedMix.
        - ``label_set_from_phi``: 1 for each label whose row of phi changed, else 0.
        - ``labels_from_phi``: from the size of the change of each row of phi.
        - ``labels_from_phi_cohort``: the same for all clients together, if there are at least as
          many clients as classes.

        The messages of ``Private`` have no q(z|s).
    """
    clients, sent = np.asarray(report.clients), algorithm
    found = {"label_share": _numbers(fed.shares("label"))[clients]}
    if isinstance(algorithm, Private):
        algorithm = algorithm.of  # the algorithm that clients train with
    client = algorithm.client.at(round)
    bias = _of_output(report.messages, "head.bias")
    if bias is not None:
        experts = "" if "head.bias" in report.messages else "experts."
        rate = client.rate(f"{experts}head.bias")
        more = client.weight_decay or client.clip or client.nesterov or client.options
        plain = client.name == "sgd" and not more and rate > 0 and sent is algorithm
        once = plain and algorithm.batch_size is None
        one_step = once and all((p.steps or p.epochs) == 1 for p in algorithm.phases())
        found["labels_from_bias"] = from_step(bias, rate) if one_step else from_update(bias)
    weight = _of_output(report.messages, "head.weight")
    if weight is not None:
        found["labels_from_weights"] = from_update(weight.sum(-1))
    if "phi" in report.messages and getattr(algorithm, "condition", "") == "label":
        if sent is algorithm:
            phi = _numbers((state.server_params["phi"] - report.messages["phi"]).softmax(-1))
            q = _numbers(report.messages["q_raw" if "q_raw" in report.messages else "q_s"])
            pairs = [*zip(q, phi, strict=True)]
            found["labels_from_q"] = np.stack([from_marginal(*p, resolution=SENT) for p in pairs])
        found |= _rows(algorithm, state, report)
    return found


def _rows(algorithm: FedAvg, state: State, report: Report) -> dict[str, Floats]:
    """Return the reconstructions from updates of phi; none if clients do not train phi.

    With weight decay all rows change, so that zero rows reveal nothing.
    """
    if algorithm.client.rate("phi") == 0:
        return {}
    moved = _numbers(report.messages["phi"])
    q_y = _numbers(state.server_params["phi"].double().softmax(-1))
    found = {"labels_from_phi": from_rows(moved, q_y)}
    if len(moved) >= moved.shape[1]:
        found["labels_from_phi_cohort"] = from_rows_together(moved, q_y)
    if algorithm.client.weight_decay == 0:
        found["label_set_from_phi"] = set_from_rows(moved).astype(np.float64)
    return found


def _of_output(messages: dict[str, Tensor], param: str) -> Floats | None:
    """Return the update of an output parameter, ``[S, classes, ...]``, summed over experts."""
    if param in messages:
        return _numbers(messages[param])
    experts = messages.get(f"experts.{param}")
    return None if experts is None else _numbers(experts).sum(1)


def _numbers(t: Tensor) -> Floats:
    return t.detach().cpu().double().numpy()


def from_step(difference: Floats, rate: float) -> Floats:
    """Return p(y|s) from the change of the output bias by one full-batch step of SGD.

        p(y|s) = 1 / C - difference / rate

    The gradient of the cross-entropy is the mean softmax output minus p(y|s). The equation is exact
    if the outputs are uniform, as those of a new model (eq. 15, with its sign corrected).

    Args:
        difference: bias before - after, ``[..., classes]``.
        rate: the client's learning rate.
    """
    return 1 / difference.shape[-1] - difference / rate


def from_update(difference: Floats) -> Floats:
    """Return label shares from any update of a quantity per class.

    The negative difference is shifted so that its smallest entry is 0, and normalised, as the paper
    does after several steps. Uniform if nothing changed.

    Args:
        difference: before - after, ``[..., classes]``.
    """
    moved = -difference
    return _normalised(moved - moved.min(-1, keepdims=True))


def from_marginal(q_s: Floats, q_y: Floats, resolution: float = RESOLUTION) -> Floats:
    """Return the p(y|s) ``[classes]`` that best explains q(z|s) = sum_y p(y|s) q(z|y).

    Least squares subject to p >= 0 and sum p = 1. If several p are equally good, as with more
    classes than experts, the one closest to uniform is returned.

    Args:
        q_s: q(z|s), ``[K]``.
        q_y: q(z|y), ``[classes, K]``.
        resolution: smaller components of q(z|s) are taken for rounding errors. Default: 1e-12.
    """
    # As sum p = 1, the residual is sum_y p(y) (q(z|y) - q(z|s)). Subtracting q(z|s) removes what
    # all labels have in common, which matters if the q(z|y) are nearly equal.
    _, sizes, directions = np.linalg.svd((q_y - q_s).T, full_matrices=False)
    seen = sizes > resolution
    sizes, directions = sizes[seen], directions[seen]
    if not len(sizes):
        return _flattest(directions, np.full(len(q_y), 1 / len(q_y)))
    return _flattest(directions, _smallest(sizes[:, None] * directions / sizes[0]))


def _smallest(rows: Floats) -> Floats:
    """Return the p >= 0 with sum p = 1 that minimises the norm of ``rows @ p``.

    The minimiser u >= 0 of |rows u|^2 + (sum u - 1)^2 is proportional to p, because for every
    direction of u the minimum over its length grows with |rows p|. No weight has to be chosen.
    """
    last = np.append(np.zeros(len(rows)), 1.0)
    u = _nnls(np.vstack([rows, np.ones(rows.shape[1])]), last)
    return u / u.sum()


def _flattest(directions: Floats, p: Floats) -> Floats:
    """Return the most uniform distribution that agrees with ``p`` along orthonormal directions.

    A penalty alone would violate the constraints by the multipliers divided by ``WEIGHT``^2. The
    target is therefore shifted by the remaining violation until there is none (method of
    multipliers: Hestenes, 1969).
    """
    _, sizes, rows = np.linalg.svd(np.vstack([directions, np.ones((1, len(p)))]))
    kept = rows[: int((sizes > 1e-12 * sizes[0]).sum())]
    if len(kept) == len(p):
        return p  # p is determined
    asked = target = kept @ p
    uniform = np.full(len(p), 1 / len(p))
    stacked = np.vstack([WEIGHT * kept, np.eye(len(p))])
    for _ in range(PATIENCE):
        found = _nnls(stacked, np.concatenate([WEIGHT * target, uniform]))
        missing = asked - kept @ found
        some = found > 0  # rounding stops the convergence: distribute the rest over these
        found[some] += np.linalg.lstsq(kept[:, some], missing)[0]
        if np.abs(asked - kept @ found).max() < KEPT and found.min() >= 0:
            return found / found.sum()
        target = target + missing
    return p


def _nnls(matrix: Floats, target: Floats) -> Floats:
    """Return the u >= 0 with the least |matrix u - target|."""
    from scipy import optimize  # slow to import, and only audits ask for it

    solution, _ = optimize.nnls(matrix, target, maxiter=100 * matrix.shape[1])
    return np.asarray(solution, dtype=np.float64)


def set_from_rows(difference: Floats) -> Flags:
    """Return which rows of phi changed, bool ``[..., classes]``.

    A row that changed belongs to a label of the client, if there is no weight decay. A row that did
    not change may still belong to one if K = 1, if q(z|c) is one-hot in floating point (its
    gradient is then exactly zero), or if the step is smaller than the rounding of phi.

    Args:
        difference: phi before - after, ``[..., classes, K]``.
    """
    return np.asarray((difference != 0).any(-1))


def from_rows(difference: Floats, q_y: Floats) -> Floats:
    """Return label shares from the sizes of the changes of phi's rows, ``[..., classes]``.

    The mean of |difference| / q(z|y) over experts is p(y|s) times the disagreement of experts about
    a label, which is assumed to be equal for all labels. Uniform if nothing changed.

    Args:
        difference: phi before - after, ``[..., classes, K]``.
        q_y: the q(z|y) that the server sent, ``[classes, K]``.
    """
    return _normalised(_moved(difference, q_y))


def from_rows_together(difference: Floats, q_y: Floats) -> Floats:
    """Return label shares from the changes of phi's rows of a whole cohort, ``[S, classes]``.

    As ``from_rows``, but the factor of each label is estimated by non-negative least squares: it is
    equal for all clients, and the shares of each client sum to 1. Fewer clients than classes do not
    determine the factors.

    Args:
        difference: phi before - after, ``[S, classes, K]``.
        q_y: the q(z|y) that the server sent, ``[classes, K]``.
    """
    moved = _moved(difference, q_y)
    scale = moved.sum(-1).mean()
    if scale == 0:
        return _normalised(moved)
    shares = moved * _nnls(moved / scale, np.ones(len(moved)))
    some = shares.sum(-1, keepdims=True) > 0
    return _normalised(np.where(some, shares, moved))


def _moved(difference: Floats, q_y: Floats) -> Floats:
    """Return the mean over experts of |difference| / q(z|y), where 0 / 0 is 0."""
    size = np.abs(difference)
    q = np.broadcast_to(q_y, size.shape)
    return np.asarray(np.divide(size, q, out=np.zeros_like(size), where=q > 0).mean(-1))


def _normalised(moved: Floats) -> Floats:
    total = moved.sum(-1, keepdims=True)
    uniform = np.full_like(moved, 1 / moved.shape[-1])
    return np.asarray(np.divide(moved, total, out=uniform, where=total > 0))


def total_variation(p: Floats, q: Floats) -> Floats:
    """Return half the sum of absolute differences of two distributions, 0 if they are equal.

    Args:
        p, q: distributions, ``[..., classes]``.
    """
    return np.asarray(0.5 * np.abs(p - q).sum(-1))
