"""Partitions of labelled examples among clients, and their held-out examples."""

from fedlib.partition.draws import (
    LabelledExamples,
    Partition,
    balanced,
    holdout,
    matched,
    whole_part,
)
from fedlib.partition.held_out import (
    Division,
    HoldoutByColumn,
    LocalHoldout,
    MatchedHoldout,
    OptOut,
    divide,
)
from fedlib.partition.partitioner import (
    ClientSubset,
    LabelPermuted,
    Partitioner,
    RepeatedPartition,
    Rotated,
)
from fedlib.partition.schemes import (
    IID,
    ClassDirichlet,
    Dirichlet,
    MajorityClasses,
    NaturalPartition,
    Pachinko,
    QuantitySkew,
    Shards,
)
