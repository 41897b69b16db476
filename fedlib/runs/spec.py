"""What a run is: a value whose key names its stored result, and that result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedlib.algorithms import FedAvg
from fedlib.runs.log import curve
from fedlib.tasks import Task
from fedlib.values import key_of, one_of, shown, value

# Raise this when the same experiment would give other numbers than before (a change of default, a
# repaired bug): old results then keep their key and are no longer found.
VERSION = 1


@value
class Experiment:
    """An algorithm on a task for some rounds, with one seed for everything.

    ``cohort`` is the number of clients per round, or a fraction of the population as a float.
    Clients are scored every ``evaluate_every`` rounds, before the first and after the last; 0 is
    after the last only.
    ``after`` is a first stage whose final state this one starts from; ``beside`` is another,
    without a federation, whose clients' own leaves take the place of the first one's. ``audit``
    logs what the server can infer of its clients' labels from their messages, at the rounds that
    are scored.
    ``keep`` says which state the run ends with, for a stage after it: that of the "last" round, or
    of the "best" one, which has the least mean validation nll over the clients that take part.
    Device, chunk and threads are no part of it: they change a result by float rounding only, and
    stand in its provenance.
    """

    task: Task
    algorithm: FedAvg
    rounds: int
    cohort: int | float = 10
    seed: int = 0
    evaluate_every: int = 10
    after: Any = None
    audit: bool = False
    keep: str = "last"
    beside: Any = None

    def check(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        if self.evaluate_every < 0:
            raise ValueError(f"evaluate_every must be >= 0, got {self.evaluate_every}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        whole = isinstance(self.cohort, int)
        if not (self.cohort >= 1 if whole else 0 < self.cohort <= 1):
            raise ValueError(
                f"cohort must be a number >= 1 or a fraction in (0, 1], got {self.cohort}"
            )
        one_of("keep", self.keep, ("last", "best"))
        for name in ("after", "beside"):
            stage = getattr(self, name)
            if stage is not None and not isinstance(stage, Experiment):
                raise TypeError(f"{name} must be an Experiment or None, got {shown(stage)}")
        if self.beside is not None and self.after is None:
            raise ValueError("beside needs a first stage to be beside of: give `after` too")

    @property
    def key(self) -> str:
        """The name of the stored result: 16 hex digits, the same on every machine."""
        return key_of(self, version=VERSION)

    @property
    def before(self) -> tuple[Experiment, ...]:
        """The stages that this one builds on."""
        return tuple(stage for stage in (self.after, self.beside) if stage is not None)

    @property
    def stages(self) -> list[Experiment]:
        """This experiment after all that it builds on, first ones first."""
        return [*(s for stage in self.before for s in stage.stages), self]

    def evaluates(self, completed: int) -> bool:
        """Return whether the clients are scored after ``completed`` rounds."""
        between = self.evaluate_every > 0 and completed % self.evaluate_every == 0
        return between or completed == self.rounds


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its experiment, tidy metrics and provenance.

    ``metrics`` has the columns round, metric, client, expert, item and value (``log.SCHEMA``);
    ``metrics.to_pandas()`` and ``polars.from_arrow(metrics)`` make frames of it.
    """

    experiment: Experiment
    metrics: pa.Table
    provenance: dict[str, Any]

    def select(self, metric: str) -> pa.Table:
        """Return the rows of one metric."""
        return self.metrics.filter(pc.field("metric") == metric)

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric by round, averaged over all else that it has: clients, experts, items."""
        return curve(self.metrics, metric)
