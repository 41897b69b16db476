"""How well sums over clients and noise hide the labels in FedMix's phi from a server."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from fedlib.privacy.labels import Flags, Floats, from_rows, set_from_rows, total_variation

DRAWS = 20  # random draws behind each number of a table


def noisy(difference: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Return phi's updates ``[S, classes, K]`` with Gaussian noise on every number.

    Nothing is clipped: this is no differential privacy.

    Args:
        difference: the updates.
        noise: the standard deviation, relative to the root mean square of a client's own update.
        rng: the random numbers.
    """
    size = np.sqrt((difference**2).mean((-2, -1), keepdims=True))
    return difference + noise * size * rng.standard_normal(difference.shape)


def lengths(update: Floats) -> Floats:
    """Return the norms of a client's rows of phi over their root mean square; 0 if all are 0.

    They are relative because all rows of a client have the same noise.
    """
    length = np.sqrt((update**2).sum(-1))
    whole = np.sqrt((length**2).mean(-1, keepdims=True))
    return length / np.where(whole > 0, whole, 1)


def balanced_accuracy(guess: Flags, held: Flags) -> float:
    """Return the mean of the rates at which held and missing labels are found; chance is 1/2.

    NaN if all labels or none are held.
    """
    if held.all() or not held.any():
        return float("nan")
    return float((guess[held].mean() + (~guess[~held]).mean()) / 2)


def best_threshold(score: Floats, held: Flags) -> float:
    """Return the balanced accuracy of the best test "held if the score exceeds a threshold".

    The threshold is chosen by the truth, so that no server can do better with these scores.
    """
    if held.all() or not held.any():
        return float("nan")
    misses, hits, _ = roc_curve(held.ravel(), score.ravel())
    return float((hits + 1 - misses).max() / 2)


def leak_of_sums(
    difference: Floats, q_y: Floats, truth: Floats, share: Floats, sizes: Sequence[int], seed: int
) -> pd.DataFrame:
    """Return what the sum of several clients' updates of phi reveals, by the number of clients.

    Args:
        difference: the updates ``[S, classes, K]``.
        q_y: q(z|y) before the round, ``[classes, K]``.
        truth: the label shares ``[S, classes]``.
        share: p(s) ``[S]``.
        sizes: the numbers of clients.
        seed: of the random cohorts.

    Returns:
        Means over 20 random cohorts: columns clients; set, the balanced accuracy of taking the
        sum's label set for every client's; own, the distance of the sum's shares from a client's;
        and cohort, that from the shares of all examples of these clients.
    """

    def judged(size: float, rng: np.random.Generator) -> dict[str, float]:
        some = rng.choice(len(truth), int(size), replace=False)
        p, held = share[some], truth[some] > 0
        seen = np.tensordot(p / p.sum(), difference[some], 1)  # all that secure aggregation shows
        shares, mean = from_rows(seen, q_y), p @ truth[some] / p.sum()
        return {
            "set": balanced_accuracy(np.broadcast_to(set_from_rows(seen), held.shape), held),
            "own": float(total_variation(shares, truth[some]).mean()),
            "cohort": float(total_variation(shares, mean)),
        }

    return _means("clients", sizes, judged, seed)


def leak_behind_noise(
    difference: Floats, q_y: Floats, truth: Floats, levels: Sequence[float], seed: int
) -> pd.DataFrame:
    """Return what single noisy updates of phi reveal, by the noise that `noisy` adds.

    Returns:
        Means over 20 draws: columns noise; set, the balanced accuracy of the best test of a row's
        norm; and own, the distance of the shares that `from_rows` finds.
    """

    def judged(level: float, rng: np.random.Generator) -> dict[str, float]:
        seen = noisy(difference, level, rng)
        found = total_variation(from_rows(seen, q_y), truth).mean()
        return {"set": best_threshold(lengths(seen), truth > 0), "own": float(found)}

    return _means("noise", levels, judged, seed)


def _means(
    name: str, levels: Sequence[float], judged: Callable[..., dict[str, float]], seed: int
) -> pd.DataFrame:
    """Return the means of a measure over several draws, a row for each level of ``name``."""
    rng = np.random.default_rng(seed)
    rows = [{name: level, **judged(level, rng)} for level in levels for _ in range(DRAWS)]
    return pd.DataFrame(rows).groupby(name, as_index=False).mean()
