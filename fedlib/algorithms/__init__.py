"""One file per idea, in the papers' symbols. Knows no device and no file."""

from fedlib.algorithms.clusters import ClusteredFedMix
from fedlib.algorithms.densities import Densities
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedmix import FedMix
from fedlib.algorithms.ifca import IFCA
from fedlib.algorithms.local import Local
from fedlib.algorithms.mixture import Mixture
from fedlib.algorithms.newcomers import Newcomers
from fedlib.algorithms.personal import LocalGlobal, Personal
from fedlib.algorithms.pruning import PrunedFedMix
from fedlib.algorithms.released import LastClient

__all__ = [
    "IFCA",
    "ClusteredFedMix",
    "Densities",
    "FedAvg",
    "FedMix",
    "LastClient",
    "Local",
    "LocalGlobal",
    "Mixture",
    "Newcomers",
    "Personal",
    "PrunedFedMix",
]
