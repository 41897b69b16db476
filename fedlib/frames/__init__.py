"""From stored metrics to the tidy frames that figures draw and claims test."""

from fedlib.frames.runs import (
    adapted,
    apart,
    curve,
    divergence,
    divergences,
    ended,
    final,
    last,
    logged_rounds,
    matrix,
    reported,
    smooth,
    spread_over_clients,
    together,
)
from fedlib.frames.seeds import RUN, ByMethod, bands, by_method, by_seed, interval, stated
from fedlib.frames.sent import against_traffic, at_traffic, gigabytes, traffic

__all__ = [
    "RUN",
    "ByMethod",
    "adapted",
    "against_traffic",
    "apart",
    "at_traffic",
    "bands",
    "by_method",
    "by_seed",
    "curve",
    "divergence",
    "divergences",
    "ended",
    "final",
    "gigabytes",
    "interval",
    "last",
    "logged_rounds",
    "matrix",
    "reported",
    "smooth",
    "spread_over_clients",
    "stated",
    "together",
    "traffic",
]
