"""What a server can infer about its clients' labels from what they send."""

from fedlib.privacy.audit import audit
from fedlib.privacy.labels import (
    from_marginal,
    from_step,
    from_update,
    total_variation,
)

__all__ = ["audit", "from_marginal", "from_step", "from_update", "total_variation"]
