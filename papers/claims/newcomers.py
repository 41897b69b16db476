"""Where the numbers of App. F were; see papers.fedmix."""

from papers.fedmix.analysis import measured, printed

__all__ = ["measured", "printed"]
