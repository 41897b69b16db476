"""Where FedMix's curves were; see papers.fedmix."""

from papers.fedmix import BIAS, BIASED, ETA, LOCAL_GLOBAL, PRUNING

__all__ = ["BIAS", "BIASED", "ETA", "LOCAL_GLOBAL", "PRUNING"]
