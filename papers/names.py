"""Methods that several papers compare with, each under one name."""

from papers.floor import MAJORITY

FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"

__all__ = ["FEDAVG", "LOCAL", "MAJORITY", "TUNED"]
