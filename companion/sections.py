"""What is run for a section of a paper: its experiments at three scales, and where each stands."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self

import pandas as pd

from fedlib.partition import Partitioner
from fedlib.tasks import Task
from fedlib.values import PositiveInt, UnknownName, check_choice, value
from fedrun import Experiment

SCALES = ("quick", "standard", "paper")
"""The scales of a section: minutes, days on a CPU, and the papers' own settings."""
DEMONSTRATION = f"({SCALES[0]})"  # in the name of what was run on digits
PROTOCOL, OWN, ROUNDS, REDUCED, DIGITS = FAITHFUL = (
    "paper protocol", "paper scale", "paper rounds and rates", "reduced", "digits",
)  # fmt: skip
"""How faithful a setting is, the most faithful first: the paper's own in all that it states; but
for a rule that it states, as early stopping; with a smaller network; with less of everything."""
USUAL = dict(zip(SCALES, (DIGITS, REDUCED, PROTOCOL), strict=True))


@value
class Setting:
    """One data set at one scale: its task, and how long and with how many seeds it is run.

    ``local_epochs`` are the clients'. ``costly`` methods have as many seeds as it says, and not
    ``seeds``; with 0 they are left out unless their seeds are asked for. ``looks`` are how often
    claims were judged as seeds became more, by the number of seeds from which on that is so.
    ``faithful`` is one of ``FAITHFUL``, "" for what is usual at its scale, and ``exploratory`` says
    whether the setting was chosen by looking at what it shows, or is not the paper's where it
    matters.
    """

    task: Task
    rounds: PositiveInt
    seeds: PositiveInt = 3
    cohort: int | float = 10
    batch_size: PositiveInt = 64
    evaluate_every: int = 20
    local_epochs: int = 1
    costly: tuple[tuple[str, int], ...] = ()
    looks: tuple[tuple[int, int], ...] = ()
    faithful: str = ""
    exploratory: bool = False

    @property
    def clients(self) -> int:
        """The number of clients M; 0 where a column of the data says whose is what."""
        return self.task.partition.num_clients()

    @property
    def local_round(self) -> dict[str, Any]:
        """The fields of an algorithm that say how long clients train in a round."""
        return {"epochs": self.local_epochs, "batch_size": self.batch_size}

    def dealt(self, partition: Partitioner) -> Self:
        """Return the setting with another partition."""
        return replace(self, task=replace(self.task, partition=partition))


@dataclass(frozen=True, eq=False)
class Run:
    """One experiment of a section, of seed 0: a method, and where it stands, e.g. ``{"p": 0.8}``.

    Numbers and words of ``where`` become columns of frames.
    """

    method: str
    experiment: Experiment
    where: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run in words, e.g. "Mixture, p = 0.8"."""
        place = (v if isinstance(v, str) else f"{n} = {v:g}" for n, v in self.where.items())
        return ", ".join([self.method, *place])


def placed(experiments: Mapping[str, Experiment], **where: float | str) -> list[Run]:
    """Return the runs of some methods that stand at the same place."""
    return [Run(method, experiment, where) for method, experiment in experiments.items()]


@dataclass(frozen=True)
class Section:
    """The experiments of a section: settings by scale and data set, and what is run on each.

    ``plan`` returns the runs of a setting of a data set. ``beside`` are the larger scales whose
    stored results a notebook shows next to those of the quick scale. Where ``every_round`` is
    false, ``results/`` keeps the divergence of evaluated rounds only.
    """

    name: str
    known: Mapping[str, Mapping[str, Setting]]
    plan: Callable[..., Sequence[Run]]  # of its own kind of Setting
    beside: tuple[str, ...] = ("standard",)
    every_round: bool = False

    def settings(self, scale: str, dataset: str = "") -> Mapping[str, Setting]:
        """Return the settings of a scale by data set: the named one, or all of them."""
        check_choice("scale", scale, SCALES)
        known = self.known[scale]
        if not dataset:
            return known
        has_data(scale, dataset, known)
        return {dataset: known[dataset]}

    def runs(
        self, scale: str, dataset: str, methods: Sequence[str] = (), *, costly: bool = False
    ) -> list[Run]:
        """Return what is run on a data set, of all methods or some.

        What is too ``costly`` to be run unless it is asked for is left out.
        """
        setting = self.settings(scale, dataset)[dataset]
        seeds = {} if costly else dict(setting.costly)
        every = _planned(self.plan, setting, dataset)
        return [r for r in every if seeds.get(r.method, 1) and r.method in (methods or [r.method])]

    def methods(self, scale: str, dataset: str) -> tuple[str, ...]:
        """Return the names of the methods that are run on a data set."""
        return tuple(dict.fromkeys(run.method for run in self.runs(scale, dataset)))

    def experiments(
        self, scale: str, dataset: str, run: Run | str, *, seeds: int = 0, rounds: int = 0
    ) -> list[Experiment]:
        """Return a run's experiments, one per seed; 0 takes the setting's own numbers.

        A method's name stands for its run where it has one only. ``rounds`` does not change stages
        that have a length of their own, as the epochs of a centralised model.
        """
        setting = self.settings(scale, dataset)[dataset]
        one = run if isinstance(run, Run) else self._only(scale, dataset, run)
        count = seeds or dict(setting.costly).get(one.method, setting.seeds)
        return [seeded(one.experiment, s, rounds, setting.rounds) for s in range(count)]

    def by_run(
        self, scale: str, dataset: str, methods: Sequence[str] = (), **how: int
    ) -> list[tuple[Run, list[Experiment]]]:
        """Return ``runs`` and the ``experiments`` of each; ``how``: seeds, rounds of these."""
        runs = self.runs(scale, dataset, methods)
        return [(run, self.experiments(scale, dataset, run, **how)) for run in runs]

    def _only(self, scale: str, dataset: str, method: str) -> Run:
        every = self.runs(scale, dataset, costly=True)
        names = {name for run in every for name in (run.method, run.name)}
        check_choice(f"method on {dataset!r}", method, names)
        found = [r for r in every if method in (r.method, r.name)]
        if len(found) > 1:
            places = "; ".join(r.name for r in found)
            raise ValueError(f"{method!r} is run at several places: {places}")
        return found[0]


@cache
def _planned(plan: Callable[..., Sequence[Run]], setting: Setting, dataset: str) -> Sequence[Run]:
    """Return a plan, made once: a large one is asked for each of its methods in turn."""
    return plan(setting, dataset)


def federated(setting: Setting, algorithm: object, **more: object) -> Experiment:
    """Return the experiment of an algorithm in a setting, seed 0; ``more`` are further fields."""
    usual = {name: getattr(setting, name) for name in ("rounds", "cohort", "evaluate_every")}
    return Experiment(setting.task, algorithm, **{**usual, **more})  # type: ignore[arg-type]


@cache
def seeded(experiment: Experiment, seed: int, rounds: int = 0, usual: int = 0) -> Experiment:
    """Return an experiment and the stages before it with another seed.

    Stages of the ``usual`` number of rounds play ``rounds``, if that is not 0. The same one every
    time, which has its key then.
    """
    stages = experiment.first_stage, experiment.local_stage
    after, beside = (stage and seeded(stage, seed, rounds, usual) for stage in stages)
    length = rounds if rounds and experiment.rounds == usual else experiment.rounds
    return replace(experiment, seed=seed, rounds=length, first_stage=after, local_stage=beside)


class OtherData(UnknownName):
    """A data set that is not among those of a section, or of several, at a scale."""


def has_data(scale: str, dataset: str, known: Iterable[str]) -> None:
    """Raise OtherData, which names the ``known`` data sets of a scale, unless it is one of them."""
    try:
        check_choice(f"data set at scale {scale!r}", dataset, known)
    except UnknownName as error:
        raise OtherData(error) from None


class NothingStored(ValueError):
    """Of what is to be shown no run is stored, or too few, and none are to be trained."""


# What is reproduced, as one value: the companion is handed it and knows no paper by name.


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """One table of a paper and the section that makes it.

    ``printed(dataset)`` returns its published numbers as fractions, ``measured(panel)`` what runs
    have, a row per seed; both have the columns ``keys`` and value, the former ``row``, the number's
    place among all published ones, and the latter as many columns of its runs as it can keep.
    Numbers are ranked within a data set and what ``apart`` names, columns or words, and there
    within the ``family`` of their method.
    """

    paper: str
    section: Section
    notebook: str
    printed: Callable[[str], pd.DataFrame]
    measured: Callable[..., pd.DataFrame]
    keys: tuple[str, ...]
    apart: tuple[str, ...]
    family: Callable[[str], str] = lambda method: ""


@dataclass(frozen=True, eq=False)
class Block:
    """Runs that are trained and land together: parts by scale, as `companion.plan` reads them.

    ``hours`` are the CPU hours that they were expected to take before the first of them ran.
    """

    number: int
    what: str
    parts: Mapping[str, Sequence[str]]
    hours: float


@dataclass(frozen=True, eq=False)
class Registry:
    """Everything that the companion plans, trains, keeps and judges.

    ``sections`` by name; ``published()``, every published number with its ``row``, in ``repeats``
    the earlier row of the same number (-1 for none), and in ``why_not`` why it is compared with no
    run ("" where it is); ``claims()``, the papers' claims (paper, name, claim, place, quote, data);
    ``floors()``, what a client's commonest label is worth on a paper's partitions (paper, dataset,
    at, floor), and in ``floored`` by paper the column that ``at`` is; ``gpu_hours`` by part of the
    papers' own scale, where a GPU timed it; ``blocks`` of the campaign, in their order.
    """

    sections: Mapping[str, Section]
    tables: tuple[PublishedTable, ...]
    published: Callable[[], pd.DataFrame]
    claims: Callable[[], pd.DataFrame]
    floors: Callable[[], pd.DataFrame]
    floored: Mapping[str, str]
    gpu_hours: Mapping[str, float] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()

    def data(self, scale: str) -> tuple[str, ...]:
        """Return the names of the data sets that some section has at a scale."""
        check_choice("scale", scale, SCALES)
        every = (name for section in self.sections.values() for name in section.settings(scale))
        return tuple(dict.fromkeys(every))
