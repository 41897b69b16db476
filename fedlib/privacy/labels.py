"""Reconstructions of a client's label shares p(y|s) from single messages (000, App. C)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Floats = NDArray[np.float64]


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


def from_marginal(q_s: Floats, q_y: Floats, prior: Floats | None = None) -> Floats:
    """Return the p(y|s) that best explains q(z|s) = sum_y p(y|s) q(z|y), ``[classes]``.

    ``q_s`` ``[K]`` and ``q_y`` ``[classes, K]``. Least squares under p >= 0 and sum p = 1; where
    several p explain q(z|s) equally well, as with more classes than experts, the one nearest to
    ``prior`` (uniform by default). ValueError if shapes do not match.
    """
    q_s, q_y = np.asarray(q_s, dtype=np.float64), np.asarray(q_y, dtype=np.float64)
    if q_y.ndim != 2 or q_s.shape != (q_y.shape[1],):
        raise ValueError(f"q_s must be [K] and q_y [classes, K], got {q_s.shape} and {q_y.shape}")
    classes = len(q_y)
    nearest = np.full(classes, 1 / classes) if prior is None else np.asarray(prior, dtype=float)
    # One problem of non-negative least squares: the sum weighs most, the prior least.
    rows = np.vstack([q_y.T, 1e3 * np.ones((1, classes)), 1e-3 * np.eye(classes)])
    p, _ = optimize.nnls(rows, np.concatenate([q_s, [1e3], 1e-3 * nearest]))
    return p / p.sum()


def total_variation(p: Floats, q: Floats) -> Floats:
    """Return half the absolute difference of distributions ``[..., classes]``: 0 if the same."""
    difference = np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64)
    return np.asarray(0.5 * np.abs(difference).sum(-1))
