"""One file per idea, in the papers' symbols. Knows no device and no file."""

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedmix import FedMix
from fedlib.algorithms.local import Local

__all__ = ["FedAvg", "FedMix", "Local"]
