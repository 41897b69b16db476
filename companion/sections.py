"""Sections of a paper: their experiments at three scales, and the place of each run."""

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
DEMONSTRATION = f"({SCALES[0]})"  # part of the titles of runs on digits
PROTOCOL, OWN, ROUNDS, REDUCED, DIGITS = FAITHFUL = (
    "paper protocol", "paper scale", "paper rounds and rates", "reduced", "digits",
)  # fmt: skip
"""How faithful a setting is, from the most faithful to the least: it follows the paper in all that
is stated; in all but a rule, such as early stopping; with a smaller network; with fewer rounds and
mostly fewer clients or examples; or it runs on digits."""
USUAL = dict(zip(SCALES, (DIGITS, REDUCED, PROTOCOL), strict=True))


@value
class Setting:
    """One data set at one scale: the task, the length of runs, and the number of seeds.

    Attributes:
        task: the task.
        rounds: the number of rounds.
        seeds: the number of seeds.
        cohort: the clients in a round, a number or a fraction.
        batch_size: of the clients' mini-batches.
        evaluate_every: the rounds between two evaluations.
        local_epochs: the epochs of a client in a round.
        costly: methods with a number of seeds of their own; with 0 seeds they are left out unless
            seeds are asked for.
        looks: how often claims were judged as seeds were added, by the least number of seeds for
            which it holds.
        faithful: one of ``FAITHFUL``, "" for the usual one of the scale.
        exploratory: whether the setting was chosen by looking at its results, or differs from the
            paper's where it matters.
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
        """The number of clients M; 0 if a column of the data says who holds which examples."""
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
    """One experiment of a section with seed 0: a method, and its place, such as ``{"p": 0.8}``.

    The numbers and words of the place, ``where``, become columns of frames.
    """

    method: str
    experiment: Experiment
    where: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run in words, such as "Mixture, p = 0.8"."""
        place = (v if isinstance(v, str) else f"{n} = {v:g}" for n, v in self.where.items())
        return ", ".join([self.method, *place])


def placed(experiments: Mapping[str, Experiment], **where: float | str) -> list[Run]:
    """Return the runs of several methods at the same place."""
    return [Run(method, experiment, where) for method, experiment in experiments.items()]


@dataclass(frozen=True)
class Section:
    """The experiments of a section: settings by scale and data set, and the runs of each setting.

    Attributes:
        name: the name of the section.
        known: the settings by scale and data set.
        plan: returns the runs of a setting, given its data set.
        beside: the larger scales whose stored results a notebook shows next to those of the quick
            one.
        every_round: whether ``results/`` keeps the gradient divergence of every round, and not only
            of evaluated ones.
        apart: the name in places whose values are compared with other sections and not with each
            other, such as "departure". Each may have seeds of its own. Default: none.
    """

    name: str
    known: Mapping[str, Mapping[str, Setting]]
    plan: Callable[..., Sequence[Run]]  # takes the section's subclass of Setting
    beside: tuple[str, ...] = ("standard",)
    every_round: bool = False
    apart: str = ""

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
        """Return the runs on a data set, of all methods or some.

        Args:
            scale: one of ``SCALES``.
            dataset: the name of the data set.
            methods: the names of the methods; all by default.
            costly: whether costly methods with 0 seeds are included.
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
        """Return the experiments of a run, one per seed.

        Args:
            scale: one of ``SCALES``.
            dataset: the name of the data set.
            run: the run, or the name of a method that has a single one.
            seeds: the number of seeds; 0 takes the setting's.
            rounds: the number of rounds; 0 takes the setting's. Stages with a length of their own,
                such as the epochs of a centralised model, keep it.

        Raises:
            UnknownName: if no method has the name.
            ValueError: if the method has several runs.
        """
        setting = self.settings(scale, dataset)[dataset]
        one = run if isinstance(run, Run) else self._only(scale, dataset, run)
        count = seeds or dict(setting.costly).get(one.method, setting.seeds)
        return [seeded(one.experiment, s, rounds, setting.rounds) for s in range(count)]

    def by_run(
        self, scale: str, dataset: str, methods: Sequence[str] = (), **how: int
    ) -> list[tuple[Run, list[Experiment]]]:
        """Return each of the ``runs`` with its ``experiments``; ``how``: their seeds and rounds."""
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
    """Return the runs of a plan, which is made once: it is asked for once per method."""
    return plan(setting, dataset)


def federated(setting: Setting, algorithm: object, **more: object) -> Experiment:
    """Return the experiment of an algorithm in a setting, seed 0; ``more`` are further fields."""
    usual = {name: getattr(setting, name) for name in ("rounds", "cohort", "evaluate_every")}
    return Experiment(setting.task, algorithm, **{**usual, **more})  # type: ignore[arg-type]


@cache
def seeded(experiment: Experiment, seed: int, rounds: int = 0, usual: int = 0) -> Experiment:
    """Return an experiment, and the stages before it, with another seed.

    The result is cached, so that its key is computed once.

    Args:
        experiment: the experiment.
        seed: the seed.
        rounds: the number of rounds of all stages that have ``usual`` rounds; 0 changes none.
        usual: the number of rounds of the setting.
    """
    stages = experiment.first_stage, experiment.local_stage
    after, beside = (stage and seeded(stage, seed, rounds, usual) for stage in stages)
    length = rounds if rounds and experiment.rounds == usual else experiment.rounds
    return replace(experiment, seed=seed, rounds=length, first_stage=after, local_stage=beside)


class OtherData(UnknownName):
    """The data set is none of a section, or of several sections, at a scale."""


def has_data(scale: str, dataset: str, known: Iterable[str]) -> None:
    """Raise OtherData, which lists the ``known`` data sets of a scale, if it has no such one."""
    try:
        check_choice(f"data set at scale {scale!r}", dataset, known)
    except UnknownName as error:
        raise OtherData(error) from None


class NothingStored(ValueError):
    """No run, or too few, of what is to be shown are stored, and none may be trained."""


# The following types describe what is reproduced: the companion itself knows no paper by name.


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """One table of a paper, and the section that reproduces it.

    Attributes:
        paper: the number of the paper.
        section: the section whose runs are compared.
        notebook: the notebook that shows the table.
        printed: returns the published numbers of a data set as fractions: the columns ``keys``,
            value, and row, the position among all published numbers.
        measured: returns the results of a panel, a row per seed: the columns ``keys``, value, and
            as many columns of the place of its runs as possible.
        keys: the columns by which both are matched.
        apart: columns or words; numbers are ranked within a data set and a combination of these.
        family: returns the family of a method; numbers are ranked within families.
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
    """Runs of the campaign that are trained and added together.

    Attributes:
        number: the number of the block.
        what: the block in words.
        parts: parts by scale, as `companion.plan.planned` takes them.
        hours: the CPU hours that were expected before the first run.
    """

    number: int
    what: str
    parts: Mapping[str, Sequence[str]]
    hours: float


@dataclass(frozen=True, eq=False)
class Registry:
    """Everything that the companion plans, trains, keeps and judges.

    Attributes:
        sections: the sections by name.
        tables: the published tables.
        published: returns every published number with its ``row``, in ``repeats`` the earlier row
            of the same number (-1 for none), and in ``why_not`` why it is compared with no run (""
            if it is).
        claims: returns the claims of the papers: paper, name, claim, place, quote, data.
        floors: returns the accuracy of the majority-class baseline on the papers' partitions:
            paper, dataset, at, floor.
        floored: by paper, the column to which ``at`` refers.
        gpu_hours: the hours on a GPU by part of the papers' own scale, if a GPU was timed.
        blocks: the blocks of the campaign in their order.
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
