"""What FedMix's phi tells of labels, and what hides it. A result of ours: 000 has nothing of it.

A row phi[c] is moved by examples of label c only, so that the rows of a message that are not zero
name the labels of its client. For one full-batch step of SGD, with a_ck the mean over the client's
examples of label c of log p(y|x, z=k) p(z=k|x, s), eq. 6 gives

    before - after = - rate p(c|s) q(k|c) ( a_ck - sum_j q(j|c) a_cj ),

a share times a factor that the server knows in part: q(k|c).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedlib.privacy.labels import Floats, total_variation

if TYPE_CHECKING:  # tables of studies: who trains needs no pandas
    import pandas as pd

Flags = NDArray[np.bool_]


def set_from_rows(difference: Floats) -> Flags:
    """Return which rows of phi's update ``[..., classes, K]`` moved, ``[..., classes]``.

    A row that moved belongs to a label that the client holds, without weight decay always. One
    that did not may belong to a label that it holds if K = 1, if q(z|c) is one-hot in float (its
    gradient is then exactly zero), or if the step was smaller than the rounding of phi itself.
    """
    return np.asarray((np.asarray(difference) != 0).any(-1))


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
    ValueError with fewer clients than classes, which do not determine the factors.
    """
    moved = _moved(difference, q_y)
    if moved.ndim != 2 or moved.shape[0] < moved.shape[1]:
        raise ValueError(f"needs at least as many clients as classes, got {moved.shape}")
    scale = moved.sum(-1).mean()
    if scale == 0:
        return _normalised(moved)
    from scipy import optimize

    factor, _ = optimize.nnls(moved / scale, np.ones(len(moved)), maxiter=100 * moved.shape[1])
    shares = moved * factor
    some = shares.sum(-1, keepdims=True) > 0
    return _normalised(np.where(some, shares, moved))


def summed(difference: Floats, share: Floats) -> Floats:
    """Return all that secure aggregation shows of phi's updates: their weighted mean.

    ``difference`` ``[S, classes, K]`` and p(s) over the cohort ``[S]`` make ``[classes, K]``.
    """
    weights = np.asarray(share, dtype=np.float64)
    return np.tensordot(weights / weights.sum(), np.asarray(difference, dtype=np.float64), 1)


def noisy(difference: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Return phi's updates ``[S, classes, K]`` with Gaussian noise on every number.

    ``noise`` is its standard deviation in units of the root mean square of a client's own update.
    No guarantee of differential privacy follows: nothing is clipped.
    """
    d = np.asarray(difference, dtype=np.float64)
    size = np.sqrt((d**2).mean((-2, -1), keepdims=True))
    return d + noise * size * rng.standard_normal(d.shape)


def balanced_accuracy(guess: Flags, held: Flags) -> float:
    """Return the mean of how often held and missing labels are told rightly; a coin has 1/2.

    NaN where all or none are held: then there is nothing to tell apart.
    """
    guess, held = np.asarray(guess, dtype=bool), np.asarray(held, dtype=bool)
    if held.all() or not held.any():
        return float("nan")
    return float((guess[held].mean() + (~guess[~held]).mean()) / 2)


def best_threshold(score: Floats, held: Flags) -> float:
    """Return the balanced accuracy of the best test "held if the score exceeds a threshold".

    The threshold is chosen by the truth: no server can do better with these scores.
    """
    value, flag = np.ravel(np.asarray(score, dtype=np.float64)), np.ravel(held).astype(bool)
    if flag.all() or not flag.any():
        return float("nan")
    order = np.argsort(-value, kind="stable")
    last = np.append(np.diff(value[order]) != 0, True)  # equal scores fall on the same side
    hits, misses = np.cumsum(flag[order]), np.cumsum(~flag[order])
    right = hits / flag.sum() + 1 - misses / (~flag).sum()
    return float(max(right[last].max(), 1) / 2)


def leak_of_sums(
    difference: Floats,
    q_y: Floats,
    truth: Floats,
    share: Floats,
    sizes: Sequence[int],
    *,
    draws: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Return what the sum of some clients' updates of phi says, by the number of clients.

    ``truth`` ``[S, classes]`` are the label shares, ``share`` ``[S]`` is p(s). Columns clients;
    set, the balanced accuracy of taking the sum's label set for every client's; own, the distance
    of the sum's shares from a client's; cohort, from those of all examples of these clients. Means
    over ``draws`` random cohorts.
    """
    import pandas as pd

    rng, rows = np.random.default_rng(seed), []
    for size in sizes:
        for _ in range(draws):
            some = rng.choice(len(truth), size, replace=False)
            seen = summed(difference[some], share[some])
            told, shares = set_from_rows(seen), from_rows(seen, q_y)
            held = truth[some] > 0
            mean = share[some] @ truth[some] / share[some].sum()
            rows.append(
                (
                    size,
                    balanced_accuracy(np.broadcast_to(told, held.shape), held),
                    float(total_variation(shares, truth[some]).mean()),
                    float(total_variation(shares, mean)),
                )
            )
    frame = pd.DataFrame(rows, columns=["clients", "set", "own", "cohort"])
    return frame.groupby("clients", as_index=False).mean()


def leak_behind_noise(
    difference: Floats,
    q_y: Floats,
    truth: Floats,
    levels: Sequence[float],
    *,
    draws: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Return what single noisy updates of phi say, by the noise that `noisy` adds.

    Columns noise; set, the balanced accuracy of the best test of the length of a row; own, the
    distance of the shares that `from_rows` finds. Means over ``draws``.
    """
    import pandas as pd

    rng, rows = np.random.default_rng(seed), []
    for level in levels:
        for _ in range(draws):
            seen = noisy(difference, level, rng)
            # Against each client's own noise: all rows of a client have the same.
            length = np.sqrt((seen**2).sum(-1))
            length = length / np.sqrt((length**2).mean(-1, keepdims=True))
            found = total_variation(from_rows(seen, q_y), truth).mean()
            rows.append((level, best_threshold(length, truth > 0), float(found)))
    frame = pd.DataFrame(rows, columns=["noise", "set", "own"])
    return frame.groupby("noise", as_index=False).mean()


def _moved(difference: Floats, q_y: Floats) -> Floats:
    """Return the mean over experts of |difference| / q(z|y); 0 / 0 is 0: nothing moved there."""
    size, q = np.abs(np.asarray(difference, dtype=np.float64)), np.asarray(q_y, dtype=np.float64)
    if size.shape[-2:] != q.shape:
        raise ValueError(f"phi's update and q(z|y) must match, got {size.shape} and {q.shape}")
    q = np.broadcast_to(q, size.shape)
    return np.asarray(np.divide(size, q, out=np.zeros_like(size), where=q > 0).mean(-1))


def _normalised(moved: Floats) -> Floats:
    total = moved.sum(-1, keepdims=True)
    uniform = np.full_like(moved, 1 / moved.shape[-1])
    return np.asarray(np.divide(moved, total, out=uniform, where=total > 0))
