"""Searching the parameters of experiments at random, over a space that is a value."""

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from companion import frames
from fedlib.randomness import torch_seed
from fedlib.values import value
from fedrun import Experiment, RunDiverged, run
from fedrun.sweeps import SweepFailed, train_missing


@value
class Uniform:
    """A number between ``low`` and ``high``, uniform in itself or in its logarithm (``log``)."""

    low: float
    high: float
    log: bool = True

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number of it."""
        if self.log:
            return float(10 ** rng.uniform(np.log10(self.low), np.log10(self.high)))
        return float(rng.uniform(self.low, self.high))


@value
class Choice:
    """One of some numbers."""

    of: tuple[int | float, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a value of it."""
        return self.of[int(rng.choice(len(self.of)))]


# What is searched: the domain of each parameter, by its name.
Space = Mapping[str, Uniform | Choice]


def search(
    name: str,
    experiment: Callable[[Mapping[str, Any]], Experiment],
    space: Space,
    *,
    trials: int,
    seed: int,
    device: str = "cpu",
    **how: Any,
) -> list[dict[str, Any]]:
    """Return the trials of a search: what each chose, and its ``score`` (see there).

    ``trials`` points of the space are drawn at random from ``seed`` and the ``name``, so that
    searches of other names draw others; ``experiment`` makes an experiment of each. They are
    trained as a sweep is, ``how`` being its options: workers or a cluster. So an interrupted
    search continues, and no trial is trained twice. A trial that failed by
    anything but numbers that are not finite is tried once more here, and raises what it raises.
    """
    rng = np.random.default_rng(torch_seed(seed, "search", zlib.crc32(name.encode())) % 2**32)
    points = [{axis: domain.draw(rng) for axis, domain in space.items()} for _ in range(trials)]
    runs = [experiment(point) for point in points]
    with suppress(SweepFailed):  # who diverged scores 0; anything else fails again below
        train_missing(runs, device=device, **how)
    return [{**p, "score": score(e, device)} for p, e in zip(points, runs, strict=True)]


def score(experiment: Experiment, device: str = "cpu") -> float:
    """Return the last mean validation accuracy of the clients; 0 for a run that diverges."""
    try:
        result = run(experiment, device=device, progress=False)
    except RunDiverged:
        return 0.0
    ends = frames.ended(frames.together([("", {}, [result])]), "validation_accuracy")
    return float(ends["value"].item())
