"""Partitions of labelled examples among clients, and their held-out examples.

>>> partition.ClientSubset(Dirichlet(clients=10), 2, 6)  # four of ten clients
ClientSubset(of=Dirichlet(clients=10), first=2, last=6)
"""

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
