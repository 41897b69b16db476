"""The papers' experiments as values, section by section, at three scales."""

from fedlib.recipes.communication import (
    ABLATION,
    BIAS,
    BIASED,
    COMMUNICATION,
    LOCAL_GLOBAL,
    PRUNING,
    WIDE,
    with_experts,
    with_pruning,
)
from fedlib.recipes.label_skew import (
    CENTRALISED,
    ENSEMBLE,
    FEDAVG,
    FEDMIX,
    LABEL_SKEW,
    ORIGINAL,
    UNREGULARISED,
)
from fedlib.recipes.newcomers import DENSITIES, JOINING, NEW_CLIENTS, joined
from fedlib.recipes.permuted import PERMUTED, clusters
from fedlib.recipes.privacy import EPOCH, PRIVACY, STEP, TRAINED, audited
from fedlib.recipes.rotated import BY_ANGLE, BY_LABEL, ROTATED, TURNED, TURNED_AND_SKEWED
from fedlib.recipes.section import Section, Setting
from fedlib.tasks import SCALES

_ALL = (LABEL_SKEW, COMMUNICATION, ABLATION, ROTATED, PERMUTED, NEW_CLIENTS, PRIVACY)
SECTIONS = {section.name: section for section in _ALL}

__all__ = [
    "ABLATION",
    "BIAS",
    "BIASED",
    "BY_ANGLE",
    "BY_LABEL",
    "CENTRALISED",
    "COMMUNICATION",
    "DENSITIES",
    "ENSEMBLE",
    "EPOCH",
    "FEDAVG",
    "FEDMIX",
    "JOINING",
    "LABEL_SKEW",
    "LOCAL_GLOBAL",
    "NEW_CLIENTS",
    "ORIGINAL",
    "PERMUTED",
    "PRIVACY",
    "PRUNING",
    "ROTATED",
    "SCALES",
    "SECTIONS",
    "STEP",
    "TRAINED",
    "TURNED",
    "TURNED_AND_SKEWED",
    "UNREGULARISED",
    "WIDE",
    "Section",
    "Setting",
    "audited",
    "clusters",
    "joined",
    "with_experts",
    "with_pruning",
]
