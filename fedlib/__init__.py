"""fedlib: a companion to five papers on federated mixtures of experts."""

from fedlib.processor import pin

__version__ = "0.1.0"
PINNED: bool = pin()
"""Whether torch computes with the instruction set that all x86-64 processors with AVX2 share."""
