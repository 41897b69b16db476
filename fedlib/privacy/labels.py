"""Label shares p(y|s) of clients, reconstructed from a round's messages (000, App. C).

What FedMix's phi tells of them is a result of ours: 000 has nothing of it. A row phi[c] is moved by
examples of label c only, so that the rows of a message that are not zero name the labels of its
client. For one full-batch step of SGD, with a_ck the mean over the client's examples of label c of
log p(y|x, z=k) p(z=k|x, s), eq. 6 gives

    before - after = - rate p(c|s) q(k|c) ( a_ck - sum_j q(j|c) a_cj ),

a share times a factor that the server knows in part: q(k|c).
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedlib.algorithms import FedAvg, Private, SecureSum
from fedlib.engine import Report, State
from fedlib.federation import Federation

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RESOLUTION = 1e-12  # of numbers in [0, 1] that were computed in float64
SENT = 1e-6  # q(z|s) is sent in float32: what is smaller in it is rounding
WEIGHT = 1e4  # of what must be kept against a distance, and how exactly it then is
KEPT = 1e-9
PATIENCE = 50


def audit(
    fed: Federation, algorithm: FedAvg, state: State, report: Report, round: int = 0
) -> dict[str, Floats]:
    """Return the cohort's label shares p(y|s), and what can be inferred of them, ``[S, classes]``.

    ``label_share`` is the truth. ``labels_from_bias`` needs the output layer's bias to be sent,
    ``labels_from_weights`` its weights (features behind a ReLU are not negative, so that a row's
    sum moves as its bias does), and ``labels_from_q`` q(z|s) and phi, FedMix's.

    phi alone tells more (ours, not in 000): ``label_set_from_phi``, 1 for each label whose row
    moved and 0 for others, ``labels_from_phi``, from how far, and ``labels_from_phi_cohort``, with
    what as many clients as labels say of one another. ``state`` is where the round started from.
    ``round`` is the one that was played. Methods that do not apply are left out: of masked
    messages (``SecureSum``) all, and of ``Private`` ones, which have no q(z|s), that from q.
    """
    clients, sent = np.asarray(report.clients), algorithm
    found = {"label_share": _numbers(fed.shares("label"))[clients]}
    if isinstance(algorithm, SecureSum):
        return found
    if isinstance(algorithm, Private):
        algorithm = algorithm.of  # whose clients train
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
    """Return what the rows of phi's update say; nothing where clients leave phi alone.

    Weight decay moves every row, so that none tells by being zero.
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
    """Return the update of an output leaf, ``[S, classes, ...]``, summed over experts."""
    if param in messages:
        return _numbers(messages[param])
    experts = messages.get(f"experts.{param}")
    return None if experts is None else _numbers(experts).sum(1)


def _numbers(t: Tensor) -> Floats:
    return t.detach().cpu().double().numpy()


def from_step(difference: Floats, rate: float) -> Floats:
    """Return p(y|s) from what one full-batch step of SGD did to the output bias.

    ``difference`` is bias before - after, ``[..., classes]``, and ``rate`` the client's. The
    cross-entropy's gradient is the mean softmax output minus p(y|s); with uniform outputs, as of a
    fresh model, p(y|s) = 1 / C - difference / rate exactly (eq. 15, sign corrected:
    docs/READINGS.md, A13).
    """
    return 1 / difference.shape[-1] - difference / rate


def from_update(difference: Floats) -> Floats:
    """Return label shares read off any update of something per class, ``[..., classes]``.

    The negative difference, shifted so that its smallest entry is 0 and divided by its sum: what
    the paper does after several steps. Uniform where nothing has moved.
    """
    moved = -difference
    return _normalised(moved - moved.min(-1, keepdims=True))


def from_marginal(q_s: Floats, q_y: Floats, resolution: float = RESOLUTION) -> Floats:
    """Return the p(y|s) that best explains q(z|s) = sum_y p(y|s) q(z|y), ``[classes]``.

    ``q_s`` ``[K]`` and ``q_y`` ``[classes, K]``. Least squares under p >= 0 and sum p = 1; where
    several p explain q(z|s) equally well, as with more classes than experts, the one nearest to
    uniform. Parts of q(z|s) smaller than ``resolution`` are taken for rounding and explain nothing.
    """
    # As sum p = 1, what is left unexplained is sum_y p(y) (q(z|y) - q(z|s)): what all labels have
    # in common is gone, however nearly equal they are.
    _, sizes, directions = np.linalg.svd((q_y - q_s).T, full_matrices=False)
    seen = sizes > resolution
    sizes, directions = sizes[seen], directions[seen]
    if not len(sizes):
        return _flattest(directions, np.full(len(q_y), 1 / len(q_y)))
    return _flattest(directions, _smallest(sizes[:, None] * directions / sizes[0]))


def _smallest(clients: Floats) -> Floats:
    """Return the p >= 0, sum p = 1, for which ``rows @ p`` is smallest.

    |rows u|^2 + (sum u - 1)^2 under u >= 0: at every direction of u its best length makes it grow
    with |rows p|, so that u / sum u is the answer and no weight has to be chosen.
    """
    last = np.append(np.zeros(len(clients)), 1.0)
    u = _nnls(np.vstack([clients, np.ones(clients.shape[1])]), last)
    return u / u.sum()


def _flattest(directions: Floats, p: Floats) -> Floats:
    """Return the distribution nearest to uniform that is ``p`` along orthonormal ``directions``.

    A penalty alone would leave it off by the multipliers over ``WEIGHT``^2, so that its target is
    moved by what is still missing, until nothing is (method of multipliers: Hestenes, 1969).
    """
    _, sizes, clients = np.linalg.svd(np.vstack([directions, np.ones((1, len(p)))]))
    kept = clients[: int((sizes > 1e-12 * sizes[0]).sum())]
    if len(kept) == len(p):
        return p  # nothing is left open
    asked = target = kept @ p
    uniform = np.full(len(p), 1 / len(p))
    stacked = np.vstack([WEIGHT * kept, np.eye(len(p))])
    for _ in range(PATIENCE):
        found = _nnls(stacked, np.concatenate([WEIGHT * target, uniform]))
        missing = asked - kept @ found
        some = found > 0  # rounding ends the approach: what is missing is shared out among these
        found[some] += np.linalg.lstsq(kept[:, some], missing)[0]
        if np.abs(asked - kept @ found).max() < KEPT and found.min() >= 0:
            return found / found.sum()
        target = target + missing
    return p


def _nnls(clients: Floats, target: Floats) -> Floats:
    from scipy import optimize  # slow to import, and only audits ask for it

    solution, _ = optimize.nnls(clients, target, maxiter=100 * clients.shape[1])
    return np.asarray(solution, dtype=np.float64)


def set_from_rows(difference: Floats) -> Flags:
    """Return which rows of phi's update ``[..., classes, K]`` moved, ``[..., classes]``.

    A row that moved belongs to a label that the client holds, without weight decay always. One
    that did not may belong to a label that it holds if K = 1, if q(z|c) is one-hot in float (its
    gradient is then exactly zero), or if the step was smaller than the rounding of phi itself.
    """
    return np.asarray((difference != 0).any(-1))


def from_rows(difference: Floats, q_y: Floats) -> Floats:
    """Return label shares read off how far each row of phi moved, ``[..., classes]``.

    ``difference`` is phi before - after, ``[..., classes, K]``, ``q_y`` ``[classes, K]`` the
    q(z|y) that the server sent. The mean of |difference| / q(z|y) over experts is p(y|s) times how
    differently the experts judge a label, which is taken to be the same for all labels. Uniform
    where nothing moved.
    """
    return _normalised(_moved(difference, q_y))


def from_rows_together(difference: Floats, q_y: Floats) -> Floats:
    """Return label shares read off the rows of phi of a whole cohort, ``[S, classes]``.

    As `from_rows`, with a factor of every label that is the same for all clients and found by non-
    negative least squares from the cohort's messages: every client's shares must sum to 1.
    Fewer clients than classes do not determine the factors.
    """
    moved = _moved(difference, q_y)
    scale = moved.sum(-1).mean()
    if scale == 0:
        return _normalised(moved)
    shares = moved * _nnls(moved / scale, np.ones(len(moved)))
    some = shares.sum(-1, keepdims=True) > 0
    return _normalised(np.where(some, shares, moved))


def _moved(difference: Floats, q_y: Floats) -> Floats:
    """Return the mean over experts of |difference| / q(z|y); 0 / 0 is 0: nothing moved there."""
    size = np.abs(difference)
    q = np.broadcast_to(q_y, size.shape)
    return np.asarray(np.divide(size, q, out=np.zeros_like(size), where=q > 0).mean(-1))


def _normalised(moved: Floats) -> Floats:
    total = moved.sum(-1, keepdims=True)
    uniform = np.full_like(moved, 1 / moved.shape[-1])
    return np.asarray(np.divide(moved, total, out=uniform, where=total > 0))


def total_variation(p: Floats, q: Floats) -> Floats:
    """Return half the absolute difference of distributions ``[..., classes]``: 0 if the same."""
    return np.asarray(0.5 * np.abs(p - q).sum(-1))
