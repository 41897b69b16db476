"""What a gate over experts that err independently can promise (004, Theorem 3.1)."""

import numpy as np


def promised(experts: int, p: float, alpha: float) -> float:
    """Return 004's lower bound on the accuracy of a gate that draws one of its experts.

    Each of the ``experts`` is right with the probability ``p``, and one that is right is drawn
    1 + ``alpha`` times as readily as one that is wrong: (1 + a) p / (1 + a (p + (1 - p) / M)).
    """
    return (1 + alpha) * p / (1 + alpha * (p + (1 - p) / experts))


def expected(experts: int, p: float, alpha: float) -> float:
    """Return that accuracy exactly: the mean of (1 + a) k / (M + a k) over k of Bin(M, p)."""
    from scipy import stats  # slow to import

    k = np.arange(experts + 1)
    # scipy's pmf overflows where p is denormal; its logarithm does not.
    weight = np.exp(stats.binom.logpmf(k, experts, p))
    return float(weight @ ((1 + alpha) * k / (experts + alpha * k)))


def drawn(experts: int, p: float, alpha: float, draws: int, seed: int) -> tuple[float, float]:
    """Return the share of ``draws`` in which the drawn expert is right, and its standard error."""
    rng = np.random.default_rng(seed)
    right = rng.random((draws, experts)) < p
    weight = np.where(right, 1 + alpha, 1.0)
    # The largest of weight over an exponential variable is a draw by weight.
    chosen = (rng.standard_exponential((draws, experts)) / weight).argmin(1)
    hit = right[np.arange(draws), chosen]
    return float(hit.mean()), float(hit.std() / np.sqrt(draws))
