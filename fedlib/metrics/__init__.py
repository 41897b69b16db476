"""What is measured: divergence, accuracies, recovered clusters, features."""

from fedlib.metrics.accuracy import majority_floor, over_clients
from fedlib.metrics.divergence import divergences, gradient_divergence
from fedlib.metrics.embedding import embedded, neighbours, purity
from fedlib.metrics.recovery import adjusted_rand_index, truth

__all__ = [
    "adjusted_rand_index",
    "divergences",
    "embedded",
    "gradient_divergence",
    "majority_floor",
    "neighbours",
    "over_clients",
    "purity",
    "truth",
]
