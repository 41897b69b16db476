"""The papers' exhibits, until the scorecard is handed them."""

from companion.scorecard.exhibit import Exhibit
from papers.exhibits import EXHIBITS, RESCALED, not_at_hand, why_not

__all__ = ["EXHIBITS", "RESCALED", "Exhibit", "not_at_hand", "why_not"]
