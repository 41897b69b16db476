"""Who holds which example: labels in, an index table with one row per client out."""

from fedlib.partition.draws import dirichlet, holdout, iid, mirrored
from fedlib.partition.requests import IID, Dirichlet
from fedlib.partition.table import Partition

__all__ = ["IID", "Dirichlet", "Partition", "dirichlet", "holdout", "iid", "mirrored"]
