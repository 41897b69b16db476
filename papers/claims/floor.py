"""Whether a method beats always saying a client's commonest label: see ``papers.floor``."""

from papers.floor import NOT_THEIRS, floor_claims, without_floor

__all__ = ["NOT_THEIRS", "floor_claims", "without_floor"]
