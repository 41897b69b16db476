"""All runs of a scale in one command: how many, what they cost, in which order: `make paper`."""

from companion.campaign.costs import Costs, probed

__all__ = ["Costs", "probed"]
