"""The algorithms, one file per idea, in the notation of the papers.

An algorithm that is imported here is available to experiments and to the command line, and is
covered by the tests that apply to all algorithms.

>>> algorithms.FedProx(mu=0.1)
FedProx(mu=0.1)
"""

from fedlib.algorithms.drift import MOON, SCAFFOLD, FedDyn, FedNova, FedProx
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedem import FedEM
from fedlib.algorithms.fedmix import ClusteredFedMix, FedMix, PrunedFedMix
from fedlib.algorithms.ifca import IFCA
from fedlib.algorithms.local import Local, MajorityClass, NewClients, VAEDensity
from fedlib.algorithms.mixture import Mixture
from fedlib.algorithms.personal import APFL, Ditto, FedALA, FedAMP, PerFedAvg, PFedMe
from fedlib.algorithms.pmmoe import FedSynMoE, PMMoE
from fedlib.algorithms.private import Private
from fedlib.algorithms.released import LastClient
from fedlib.algorithms.server_training import FedGen, FedGH
from fedlib.algorithms.splitting import (
    DBE, GPFL, FedBABU, FedBN, FedCP, FedPer, FedRep, FedRoD, LGFedAvg, LocalGlobal, Personal,
)  # fmt: skip

__all__ = sorted(name for name, kind in vars().items() if isinstance(kind, type))
