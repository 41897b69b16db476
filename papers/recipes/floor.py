"""The floor under every number on clients' own tests: see ``papers.floor``."""

from papers.floor import MAJORITY, floor

__all__ = ["MAJORITY", "floor"]
