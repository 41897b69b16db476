"""The floor has moved to `papers.floor`."""

from papers.floor import MAJORITY, floor

__all__ = ["MAJORITY", "floor"]
