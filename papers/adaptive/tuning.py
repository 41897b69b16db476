"""Random search of the parameters of experiments."""

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
        """Return a random number of the domain."""
        if self.log:
            return float(10 ** rng.uniform(np.log10(self.low), np.log10(self.high)))
        return float(rng.uniform(self.low, self.high))


@value
class Choice:
    """One of several numbers."""

    of: tuple[int | float, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a random number of the domain."""
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
    """Return the trials of a random search: the parameters of each, and its `score`.

    The trials are trained as a sweep: an interrupted search continues, and no trial is trained
    twice. A trial that failed, unless it diverged, is tried once more here, and raises its error.

    Args:
        name: the name of the search; other names draw other points.
        experiment: returns the experiment of a point.
        space: the domain of each parameter.
        trials: the number of points.
        seed: the seed of the points.
        device: where trials are trained.
        how: further arguments of ``train_missing``, such as workers or a cluster.
    """
    rng = np.random.default_rng(torch_seed(seed, "search", zlib.crc32(name.encode())) % 2**32)
    points = [{axis: domain.draw(rng) for axis, domain in space.items()} for _ in range(trials)]
    runs = [experiment(point) for point in points]
    with suppress(SweepFailed):  # a trial that diverged scores 0; other failures recur below
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
