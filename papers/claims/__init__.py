"""The papers' claims: the rule that judges them, and a file for each group of experiments."""

from companion.claims import Claim, above, below, equal, greater, table

__all__ = ["Claim", "above", "below", "equal", "greater", "table"]
