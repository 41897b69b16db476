"""The papers' claims: the rule that judges them, and one file per paper."""

from fedlib.claims.rule import Claim, above, below, equal, greater, print_verdicts, table

__all__ = ["Claim", "above", "below", "equal", "greater", "print_verdicts", "table"]
