"""What the experiments of a section of a paper have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache

from companion.scales import SCALES
from fedlib.optim import Optimizer
from fedlib.runs import Experiment
from fedlib.tasks import Task
from fedlib.values import one_of, value


@value
class Setting:
    """One data set at one scale: task, rounds, seeds, and the rates that the time scale asks for.

    ``phi_rate`` is the server's rate for phi. Adam moves a logit by about its rate per round,
    whatever the gradient, so that at the paper's 1e-3 the rows of q(z|y) need some 2,000 rounds to
    become one-hot; shorter runs must raise it or nothing can specialise. ``epochs`` are those of
    the centralised mixture (Fig. 14b): on small data an epoch has few steps; ``local_epochs`` are
    the clients'. ``costly`` methods have as many seeds as it says, and not ``seeds``; with 0
    they are left out unless their seeds are asked for.
    """

    task: Task
    rounds: int
    seeds: int
    cohort: int | float = 10
    batch_size: int = 64
    server_rate: float = 1e-3
    phi_rate: float = 1e-3
    experts: int = 4
    evaluate_every: int = 20
    epochs: int = 5
    local_epochs: int = 1
    costly: tuple[tuple[str, int], ...] = ()

    def check(self) -> None:
        for name in (field.name for field in fields(self)):
            given = getattr(self, name)
            for number in given if isinstance(given, tuple) else (given,):
                least = 1 if name in ("rounds", "seeds", "batch_size", "experts") else 0
                if isinstance(number, int | float) and number < least:
                    raise ValueError(f"{type(self).__name__}.{name} must be >= {least}: {number}")

    @property
    def server(self) -> Optimizer:
        """The server's Adam, with a rate of its own for phi if that differs."""
        rates = (("phi", self.phi_rate),) if self.phi_rate != self.server_rate else ()
        return Optimizer("adam", lr=self.server_rate, rates=rates)


@dataclass(frozen=True)
class Section:
    """The experiments of a section: settings by scale and data set, and what is run on each.

    ``plan`` returns the methods of a setting of a data set, each as the experiment of seed 0.
    """

    name: str
    known: Mapping[str, Mapping[str, Setting]]
    plan: Callable[..., Mapping[str, Experiment]]  # of its own kind of Setting

    def settings(self, scale: str, dataset: str = "") -> Mapping[str, Setting]:
        """Return the settings of a scale by data set: the named one, or all of them."""
        one_of("scale", scale, SCALES)
        known = self.known[scale]
        if not dataset:
            return known
        one_of(f"data set at scale {scale!r}", dataset, known)
        return {dataset: known[dataset]}

    def methods(self, scale: str, dataset: str) -> tuple[str, ...]:
        """Return the names of what is run on a data set."""
        setting = self.settings(scale, dataset)[dataset]
        seeds = dict(setting.costly)
        return tuple(m for m in _planned(self.plan, setting, dataset) if seeds.get(m, 1))

    def experiments(
        self, scale: str, dataset: str, method: str, *, seeds: int = 0, rounds: int = 0
    ) -> list[Experiment]:
        """Return the runs of one method, one per seed; 0 takes the setting's own numbers.

        ``rounds`` does not change stages that have a length of their own, as the epochs of a
        centralised model.
        """
        setting = self.settings(scale, dataset)[dataset]
        plan = _planned(self.plan, setting, dataset)
        one_of(f"method on {dataset!r}", method, plan)
        one, count = plan[method], seeds or dict(setting.costly).get(method, setting.seeds)
        return [seeded(one, s, rounds, setting.rounds) for s in range(count)]


@cache
def _planned(
    plan: Callable[..., Mapping[str, Experiment]], setting: Setting, dataset: str
) -> Mapping[str, Experiment]:
    """Return a plan, made once: a large one is asked for each of its methods in turn."""
    return plan(setting, dataset)


def federated(setting: Setting, algorithm: object, **more: object) -> Experiment:
    """Return the experiment of an algorithm in a setting, seed 0; ``more`` are further fields."""
    fields = {
        "rounds": setting.rounds,
        "cohort": setting.cohort,
        "evaluate_every": setting.evaluate_every,
    }
    return Experiment(setting.task, algorithm, **{**fields, **more})  # type: ignore[arg-type]


def seeded(experiment: Experiment, seed: int, rounds: int = 0, usual: int = 0) -> Experiment:
    """Return an experiment and the stages before it with another seed.

    Stages of the ``usual`` number of rounds play ``rounds``, if that is not 0.
    """
    after, beside = (
        stage and seeded(stage, seed, rounds, usual)
        for stage in (experiment.after, experiment.beside)
    )
    length = rounds if rounds and experiment.rounds == usual else experiment.rounds
    return replace(experiment, seed=seed, rounds=length, after=after, beside=beside)


def at(method: str, **where: float) -> str:
    """Return the name of a method at some values, e.g. "Mixture, p = 0.8"; see ``frames.apart``."""
    return ", ".join([method, *(f"{name} = {value:g}" for name, value in where.items())])
