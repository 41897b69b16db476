"""Where FedMix's runs were; see papers.fedmix."""

from papers.fedmix import ENSEMBLE, FEDAVG, FEDMIX
from papers.fedmix.experiments import fedavg, fedmix
from papers.fedmix.settings import LABEL_SKEW as SETTINGS

__all__ = ["ENSEMBLE", "FEDAVG", "FEDMIX", "SETTINGS", "fedavg", "fedmix"]
