"""Tuning in stages over a search space that is a value (003, sec. 4.4), with Ray Tune."""

from fedlib.runs.tuning.search import NoRay, search, stored, tune, where
from fedlib.runs.tuning.space import Choice, Space, Uniform
from fedlib.runs.tuning.stages import STAGES, Stage, spaces

__all__ = [
    "STAGES",
    "Choice",
    "NoRay",
    "Space",
    "Stage",
    "Uniform",
    "search",
    "spaces",
    "stored",
    "tune",
    "where",
]
