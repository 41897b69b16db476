"""Searching the parameters of experiments over a space that is a value, with Ray Tune."""

from fedlib.runs.tuning.search import NoRay, score, search, session
from fedlib.runs.tuning.space import Choice, Space, Uniform

__all__ = ["Choice", "NoRay", "Space", "Uniform", "score", "search", "session"]
