"""Who holds which example: labels in, who holds what out."""

from fedlib.partition.base import ClientSubset, LabelPermuted, RepeatedDeals, Request, Rotated
from fedlib.partition.draws import Partition, Pool, balanced, holdout, matched, whole_part
from fedlib.partition.held_out import (
    Division,
    HoldoutByColumn,
    LocalHoldout,
    MatchedHoldout,
    OptOut,
    divide,
)
from fedlib.partition.schemes import (
    IID,
    ByColumn,
    ClassDirichlet,
    Dirichlet,
    MajorityClasses,
    Pachinko,
    QuantitySkew,
    Shards,
)
