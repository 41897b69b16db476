"""What a server can infer about its clients, and whether opting out keeps its promise."""

from fedlib.privacy.audit import audit
from fedlib.privacy.labels import (
    from_marginal,
    from_step,
    from_update,
    total_variation,
)
from fedlib.privacy.noise import NoisyFedMix
from fedlib.privacy.opting import Trace, tampered, trace
from fedlib.privacy.phi import (
    balanced_accuracy,
    best_threshold,
    from_rows,
    from_rows_together,
    leak_behind_noise,
    leak_of_sums,
    noisy,
    set_from_rows,
    summed,
)

__all__ = [
    "NoisyFedMix",
    "Trace",
    "audit",
    "balanced_accuracy",
    "best_threshold",
    "from_marginal",
    "from_rows",
    "from_rows_together",
    "from_step",
    "from_update",
    "leak_behind_noise",
    "leak_of_sums",
    "noisy",
    "set_from_rows",
    "summed",
    "tampered",
    "total_variation",
    "trace",
]
