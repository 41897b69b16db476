"""Where clusters' names were; see papers.fedmix."""

from papers.fedmix.clusters import BETWEEN, SHARED

__all__ = ["BETWEEN", "SHARED"]
