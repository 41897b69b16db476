"""One file per idea, in the papers' symbols. Knows no device and no file."""

from fedlib.algorithms.clusters import ClusteredFedMix
from fedlib.algorithms.dbe import DBE
from fedlib.algorithms.densities import Densities
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedcp import FedCP
from fedlib.algorithms.fedgen import FedGen
from fedlib.algorithms.fedgh import FedGH
from fedlib.algorithms.fedmix import FedMix
from fedlib.algorithms.fedprox import FedProx
from fedlib.algorithms.fedrod import FedRoD
from fedlib.algorithms.fedsynmoe import FedSynMoE
from fedlib.algorithms.gpfl import GPFL
from fedlib.algorithms.ifca import IFCA
from fedlib.algorithms.local import Local
from fedlib.algorithms.majority import CommonestLabel
from fedlib.algorithms.mixture import Mixture
from fedlib.algorithms.moon import MOON
from fedlib.algorithms.newcomers import Newcomers
from fedlib.algorithms.personal import FedBABU, FedPer, FedRep, LGFedAvg, LocalGlobal, Personal
from fedlib.algorithms.pmmoe import PMMoE
from fedlib.algorithms.pruning import PrunedFedMix
from fedlib.algorithms.released import LastClient
from fedlib.algorithms.scaffold import SCAFFOLD

__all__ = [
    "DBE",
    "GPFL",
    "IFCA",
    "MOON",
    "SCAFFOLD",
    "ClusteredFedMix",
    "CommonestLabel",
    "Densities",
    "FedAvg",
    "FedBABU",
    "FedCP",
    "FedGH",
    "FedGen",
    "FedMix",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSynMoE",
    "LGFedAvg",
    "LastClient",
    "Local",
    "LocalGlobal",
    "Mixture",
    "Newcomers",
    "PMMoE",
    "Personal",
    "PrunedFedMix",
]
