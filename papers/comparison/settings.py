"""The settings of the comparison: 004's, and what is compared of 003 on them."""

from __future__ import annotations

from papers.pm_moe.settings import known

CLUSTERS, EPSILON = 3, 0.33  # of IFCA, at every scale
KNOWN = known(("fashion_mnist", "cifar10"))
