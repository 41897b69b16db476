"""A run that a person steers: advance it round by round and keep what was seen."""

from __future__ import annotations

import numpy as np

from fedlib.runs import Experiment, rounds


class LiveRun:
    """An experiment trained step by step, nothing stored.

    ``history[t]`` is what the algorithm observed after t rounds, by name (scalars, ``[experts]`` or
    ``[items, experts]``).
    """

    def __init__(self, experiment: Experiment, device: str = "auto") -> None:
        self.experiment = experiment
        self._fed = experiment.task.build(experiment.seed, device)
        start = experiment.algorithm.init(self._fed, experiment.seed)
        self._course = rounds(experiment, self._fed, start)
        self.history: list[dict[str, np.ndarray]] = []
        self.advance(0)

    @property
    def completed(self) -> int:
        """Rounds played so far."""
        return len(self.history) - 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self._fed.class_names

    def advance(self, to: int) -> None:
        """Play rounds until ``to`` are completed; ValueError beyond the experiment's rounds."""
        if not 0 <= to <= self.experiment.rounds:
            raise ValueError(f"round must be between 0 and {self.experiment.rounds}, got {to}")
        while self.completed < to:
            self._state, _, _ = next(self._course)
            seen = self.experiment.algorithm.observe(self._fed, self._state)
            self.history.append({n: np.asarray(t.cpu()) for n, t in seen.items()})
