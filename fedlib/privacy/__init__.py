"""What a server can infer about its clients, and whether opting out keeps its promise."""

from fedlib.privacy.audit import audit
from fedlib.privacy.labels import (
    from_marginal,
    from_step,
    from_update,
    total_variation,
)
from fedlib.privacy.opting import Trace, tampered, trace

__all__ = [
    "Trace",
    "audit",
    "from_marginal",
    "from_step",
    "from_update",
    "tampered",
    "total_variation",
    "trace",
]
