"""Federated mixtures of experts (paper 000): the names of its methods."""

from papers.scaled import FEDAVG as FEDAVG

FEDMIX = "FedMix"
# The variants of Fig. 3 and 14.
ENSEMBLE = "FedMix with H(q)"
UNREGULARISED = "FedMix without marginal entropy"
ORIGINAL = "Mixture of experts (eq. 3)"
CENTRALISED = "Mixture of experts (eq. 3), S = 1"
MINUS = {FEDAVG: "FedMix minus FedAvg", ENSEMBLE: "FedMix minus the ensemble"}  # differences
# The curves of Fig. 4 and 11.
WIDE = {2: "FedAvg, 2x parameters", 4: "FedAvg, 4x parameters"}
BIASED = "Biased FedAvg"
LOCAL_GLOBAL = "Local/Global"
BIAS = "FedMix + personal bias"
PRUNING = "FedMix + pruning"  # at the eta of Fig. 4
ETA = 0.9
PRUNED = "FedMix + pruning, eta = 0.9"  # its name beside other eta
# Fig. 5 and 6, one data set each, and Fig. 8.
BY_LABEL, BY_ANGLE = "FedMix, q(z|y)", "FedMix, q(z|rotation)"
TURNED, TURNED_AND_SKEWED = "rotated_mnist", "rotated_skewed_mnist"
KS = (3, 4, 5)
SLOWER, LARGE = "K = 4, half the rate", "K = 4, 32 channels and 512 units"
SHARED, BETWEEN = "common to all clients", "between permutations"  # what makes q(z|s) uneven
# App. F: p(s|x), and the clients that join a trained federation.
DENSITIES = "FedMix, p(s|x)"
JOINING = (FEDAVG, BIASED, LOCAL_GLOBAL, FEDMIX)
NEW = "new clients"
# App. C: the audited messages.
STEP, EPOCH, TRAINED = "one full-batch step", "one epoch", "trained, one epoch"


def with_experts(experts: int) -> str:
    """Return the name of FedMix with K experts; for one, which is its limit, FedAvg's."""
    return {1: FEDAVG, 4: FEDMIX}.get(experts, f"FedMix, K = {experts}")


def with_pruning(eta: float) -> str:
    """Return the name of FedMix that prunes at eta / K; FedMix's for 0."""
    return {0: FEDMIX, ETA: PRUNING}.get(eta, f"FedMix + pruning, eta = {eta:g}")


def with_k(experts: int) -> str:
    """Return the name of the run on permuted labels with K experts."""
    return f"K = {experts}"


TWO, TEN = with_experts(2), with_experts(10)
TEN_PRUNED = f"{TEN} + pruning"
