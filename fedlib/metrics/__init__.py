"""What is measured: divergence, accuracies."""

from fedlib.metrics.accuracy import over_clients
from fedlib.metrics.divergence import divergences, gradient_divergence

__all__ = ["divergences", "gradient_divergence", "over_clients"]
