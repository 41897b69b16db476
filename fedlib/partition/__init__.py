"""Who holds which example: labels in, an index table with one row per client out."""

from fedlib.partition.base import Clients, LabelPermuted, Repeated, Request, Rotated
from fedlib.partition.draws import Partition, Pool, balanced, holdout, mirrored, whole_part
from fedlib.partition.held_out import Division, Mirrored, OptOut, Own, divide
from fedlib.partition.schemes import (
    IID,
    ByColumn,
    ClassDirichlet,
    Dirichlet,
    Majority,
    Pachinko,
    QuantitySkew,
    Shards,
)
