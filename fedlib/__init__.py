"""fedlib: a companion to five papers on federated mixtures of experts."""

__version__ = "0.1.0"
