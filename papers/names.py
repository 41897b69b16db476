"""Methods that several papers compare with, each under one name."""

FEDAVG = "FedAvg"
LOCAL = "Local"
TUNED = "Fine-tuned"
MAJORITY = "Commonest label"
