"""Reconstructions of a client's label shares p(y|s) from single messages (000, App. C)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESOLUTION = 1e-12  # of numbers in [0, 1] that were computed in float64
WEIGHT = 1e4  # of what must be kept beside a distance, and how exactly that is in the end
KEPT = 1e-9
PATIENCE = 50


def from_step(difference: Floats, rate: float) -> Floats:
    """Return p(y|s) from what one full-batch step of SGD did to the output bias.

    ``difference`` is bias before - after, ``[..., classes]``, and ``rate`` the client's. The
    cross-entropy's gradient is the mean softmax output minus p(y|s); with uniform outputs, as of a
    fresh model, p(y|s) = 1 / C - difference / rate exactly (eq. 15, sign corrected:
    docs/READINGS.md, A13). ValueError for a rate that is not positive.
    """
    if rate <= 0:
        raise ValueError(f"rate must be > 0, got {rate}")
    d = np.asarray(difference, dtype=np.float64)
    return 1 / d.shape[-1] - d / rate


def from_update(difference: Floats) -> Floats:
    """Return label shares read off any update of something per class, ``[..., classes]``.

    The negative difference, shifted so that its smallest entry is 0 and divided by its sum: what
    the paper does after several steps. Uniform where nothing has moved.
    """
    moved = -np.asarray(difference, dtype=np.float64)
    moved = moved - moved.min(-1, keepdims=True)
    total = moved.sum(-1, keepdims=True)
    uniform = np.full_like(moved, 1 / moved.shape[-1])
    return np.divide(moved, total, out=uniform, where=total > 0)


def from_marginal(
    q_s: Floats, q_y: Floats, prior: Floats | None = None, resolution: float = RESOLUTION
) -> Floats:
    """Return the p(y|s) that best explains q(z|s) = sum_y p(y|s) q(z|y), ``[classes]``.

    ``q_s`` ``[K]`` and ``q_y`` ``[classes, K]``. Least squares under p >= 0 and sum p = 1; where
    several p explain q(z|s) equally well, as with more classes than experts, the one nearest to
    ``prior`` (uniform by default). Parts of q(z|s) smaller than ``resolution`` are taken for
    rounding and explain nothing. ValueError if shapes do not match or resolution is not positive.
    """
    q_s, q_y = np.asarray(q_s, dtype=np.float64), np.asarray(q_y, dtype=np.float64)
    if q_y.ndim != 2 or q_s.shape != (q_y.shape[1],):
        raise ValueError(f"q_s must be [K] and q_y [classes, K], got {q_s.shape} and {q_y.shape}")
    if resolution <= 0:
        raise ValueError(f"resolution must be > 0, got {resolution}")
    classes = len(q_y)
    nearest = np.full(classes, 1 / classes) if prior is None else np.asarray(prior, dtype=float)
    # As sum p = 1, what is left unexplained is sum_y p(y) (q(z|y) - q(z|s)): what all labels have
    # in common is gone, however nearly equal they are.
    _, sizes, directions = np.linalg.svd((q_y - q_s).T, full_matrices=False)
    seen = sizes > resolution
    if not seen.any():
        return _nearest(nearest, np.zeros((0, classes)), np.full(classes, 1 / classes))
    sizes, directions = sizes[seen], directions[seen]
    best = _smallest(sizes[:, None] * directions / sizes[0])
    return _nearest(nearest, directions, best)


def _smallest(rows: Floats) -> Floats:
    """Return the p >= 0, sum p = 1, for which ``rows @ p`` is smallest.

    |rows u|^2 + (sum u - 1)^2 under u >= 0: at every direction of u its best length makes it grow
    with |rows p|, so that u / sum u is the answer and no weight has to be chosen.
    """
    last = np.append(np.zeros(len(rows)), 1.0)
    u = _nnls(np.vstack([rows, np.ones(rows.shape[1])]), last)
    return u / u.sum()


def _nearest(point: Floats, directions: Floats, p: Floats) -> Floats:
    """Return the distribution nearest to ``point`` that is ``p`` along orthonormal ``directions``.

    A penalty alone would leave it off by the multipliers over ``WEIGHT``^2, so that its target is
    moved by what is still missing, until nothing is (method of multipliers: Hestenes, 1969).
    """
    _, sizes, rows = np.linalg.svd(np.vstack([directions, np.ones((1, len(p)))]))
    kept = rows[: int((sizes > 1e-12 * sizes[0]).sum())]
    if len(kept) == len(p):
        return p  # nothing is left open
    asked = target = kept @ p
    stacked = np.vstack([WEIGHT * kept, np.eye(len(p))])
    for _ in range(PATIENCE):
        found = _nnls(stacked, np.concatenate([WEIGHT * target, point]))
        missing = asked - kept @ found
        some = found > 0  # rounding ends the approach: what is missing is shared out among these
        found[some] += np.linalg.lstsq(kept[:, some], missing)[0]
        if np.abs(asked - kept @ found).max() < KEPT and found.min() >= 0:
            return found / found.sum()
        target = target + missing
    return p


def _nnls(rows: Floats, target: Floats) -> Floats:
    from scipy import optimize  # slow to import, and only audits ask for it

    solution, _ = optimize.nnls(rows, target, maxiter=100 * rows.shape[1])
    return np.asarray(solution, dtype=np.float64)


def total_variation(p: Floats, q: Floats) -> Floats:
    """Return half the absolute difference of distributions ``[..., classes]``: 0 if the same."""
    difference = np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64)
    return np.asarray(0.5 * np.abs(difference).sum(-1))
