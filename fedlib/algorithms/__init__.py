"""One file per idea, in the papers' symbols. Knows no device and no file.

An algorithm that is imported here is known everywhere: to experiments, the command line, and the
tests that all of them must pass.
"""

from fedlib.algorithms.drift import MOON as MOON
from fedlib.algorithms.drift import SCAFFOLD as SCAFFOLD
from fedlib.algorithms.drift import FedProx as FedProx
from fedlib.algorithms.fedavg import FedAvg as FedAvg
from fedlib.algorithms.fedavg import LastClient as LastClient
from fedlib.algorithms.fedmix import FedMix as FedMix
from fedlib.algorithms.heads import DBE as DBE
from fedlib.algorithms.heads import GPFL as GPFL
from fedlib.algorithms.heads import FedCP as FedCP
from fedlib.algorithms.heads import FedRoD as FedRoD
from fedlib.algorithms.ifca import IFCA as IFCA
from fedlib.algorithms.local import CommonestLabel as CommonestLabel
from fedlib.algorithms.local import Densities as Densities
from fedlib.algorithms.local import Local as Local
from fedlib.algorithms.local import Newcomers as Newcomers
from fedlib.algorithms.mixture import Mixture as Mixture
from fedlib.algorithms.pmmoe import FedSynMoE as FedSynMoE
from fedlib.algorithms.pmmoe import PMMoE as PMMoE
from fedlib.algorithms.server_training import FedGen as FedGen
from fedlib.algorithms.server_training import FedGH as FedGH
from fedlib.algorithms.splitting import FedBABU as FedBABU
from fedlib.algorithms.splitting import FedBN as FedBN
from fedlib.algorithms.splitting import FedPer as FedPer
from fedlib.algorithms.splitting import FedRep as FedRep
from fedlib.algorithms.splitting import LGFedAvg as LGFedAvg
from fedlib.algorithms.splitting import LocalGlobal as LocalGlobal
from fedlib.algorithms.splitting import Personal as Personal
from fedlib.algorithms.variants import ClusteredFedMix as ClusteredFedMix
from fedlib.algorithms.variants import PrunedFedMix as PrunedFedMix

__all__ = sorted(name for name, kind in vars().items() if isinstance(kind, type))
