"""Where FedMix's claims were; see papers.fedmix."""

from papers.fedmix.analysis import by_tensor, least_used, spread
from papers.fedmix.claims import divergence_claims, specialisation_claims

__all__ = ["by_tensor", "divergence_claims", "least_used", "specialisation_claims", "spread"]
