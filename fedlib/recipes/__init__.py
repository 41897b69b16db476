"""The papers' experiments as values, section by section, at three scales."""

from fedlib.recipes.adaptive import ADAPTIVE, ALL_EQUAL, BEST, EAGER, MOE, Adaptive
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
from fedlib.recipes.section import Section, Setting, at
from fedlib.recipes.specialists import (
    ARCHITECTURES,
    AS_RELEASED,
    DEPARTURES,
    DIRICHLET,
    EVERYTHING,
    FIRST_VERSION,
    LOCAL,
    MIXTURE,
    OPT_OUT,
    RATE_SWEEP,
    SMALL,
    SPECIALISTS,
    TUNED,
    Stages,
    departed,
)
from fedlib.tasks import SCALES

_FEDMIX = (LABEL_SKEW, COMMUNICATION, ABLATION, ROTATED, PERMUTED, NEW_CLIENTS, PRIVACY)
_SPECIALISTS = (
    SPECIALISTS,
    RATE_SWEEP,
    DIRICHLET,
    ARCHITECTURES,
    AS_RELEASED,
    OPT_OUT,
    FIRST_VERSION,
)
_ALL = (*_FEDMIX, *_SPECIALISTS, ADAPTIVE)
SECTIONS = {section.name: section for section in _ALL}

__all__ = [
    "ABLATION",
    "ADAPTIVE",
    "ALL_EQUAL",
    "ARCHITECTURES",
    "AS_RELEASED",
    "BEST",
    "BIAS",
    "BIASED",
    "BY_ANGLE",
    "BY_LABEL",
    "CENTRALISED",
    "COMMUNICATION",
    "DENSITIES",
    "DEPARTURES",
    "DIRICHLET",
    "EAGER",
    "ENSEMBLE",
    "EPOCH",
    "EVERYTHING",
    "FEDAVG",
    "FEDMIX",
    "FIRST_VERSION",
    "JOINING",
    "LABEL_SKEW",
    "LOCAL",
    "LOCAL_GLOBAL",
    "MIXTURE",
    "MOE",
    "NEW_CLIENTS",
    "OPT_OUT",
    "ORIGINAL",
    "PERMUTED",
    "PRIVACY",
    "PRUNING",
    "RATE_SWEEP",
    "ROTATED",
    "SCALES",
    "SECTIONS",
    "SMALL",
    "SPECIALISTS",
    "STEP",
    "TRAINED",
    "TUNED",
    "TURNED",
    "TURNED_AND_SKEWED",
    "UNREGULARISED",
    "WIDE",
    "Adaptive",
    "Section",
    "Setting",
    "Stages",
    "at",
    "audited",
    "clusters",
    "departed",
    "joined",
    "with_experts",
    "with_pruning",
]
