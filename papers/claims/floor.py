"""The floor has moved to `papers.floor`."""

from papers.floor import floor_claims, without_floor

__all__ = ["floor_claims", "without_floor"]
