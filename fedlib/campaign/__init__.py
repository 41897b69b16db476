"""All runs of a scale in one command: how many, what they cost, in which order: `make paper`."""

from fedlib.campaign.costs import Costs, probed
from fedlib.campaign.plan import Planned, planned

__all__ = ["Costs", "Planned", "planned", "probed"]
