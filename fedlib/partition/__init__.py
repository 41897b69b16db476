"""Who holds which example: labels in, who holds what out."""

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
