"""Who holds which example: labels in, an index table with one row per client out."""

from fedlib.partition.base import Request
from fedlib.partition.checks import Pool
from fedlib.partition.draws import balanced, holdout, mirrored
from fedlib.partition.held_out import Division, Mirrored, Own, divide
from fedlib.partition.majority import Majority, Shards
from fedlib.partition.natural import ByColumn, Pachinko
from fedlib.partition.opting import OptOut
from fedlib.partition.pfllib import ClassDirichlet
from fedlib.partition.requests import IID, Dirichlet, QuantitySkew
from fedlib.partition.sides import Clients, LabelPermuted, Repeated, Rotated
from fedlib.partition.table import Partition

__all__ = [
    "IID",
    "ByColumn",
    "ClassDirichlet",
    "Clients",
    "Dirichlet",
    "Division",
    "LabelPermuted",
    "Majority",
    "Mirrored",
    "OptOut",
    "Own",
    "Pachinko",
    "Partition",
    "Pool",
    "QuantitySkew",
    "Repeated",
    "Request",
    "Rotated",
    "Shards",
    "balanced",
    "divide",
    "holdout",
    "mirrored",
]
