"""What a scale asks for, first seeds first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedlib.experiment import Experiment
from fedlib.recipes import SECTIONS, Section
from fedlib.values import one_of


@dataclass(frozen=True)
class Planned:
    """One run: the section, data set and method that first ask for it."""

    section: str
    dataset: str
    method: str
    experiment: Experiment


def planned(scale: str, sections: Sequence[str] = ()) -> list[Planned]:
    """Return every run of a scale once, those of the first seed of all methods first.

    So an interrupted campaign has one run of everything rather than all runs of something. A first
    stage stands before what builds on it. ``sections`` are names, none for all; ValueError for an
    unknown one.
    """
    for name in sections:
        one_of("section", name, SECTIONS)
    found: dict[Experiment, Planned] = {}
    for one in sorted(_asked(scale, sections), key=lambda p: p.experiment.seed):
        for stage in one.experiment.stages:
            found.setdefault(stage, Planned(one.section, one.dataset, one.method, stage))
    return [*found.values()]


def by_seed(scale: str) -> list[list[Experiment]]:
    """Return the runs that belong together: what a section asks for of a data set with one seed.

    A run stands in every list that needs it, after its first stages.
    """
    found: dict[tuple[str, str, int], dict[Experiment, None]] = {}
    for one in _asked(scale):
        group = found.setdefault((one.section, one.dataset, one.experiment.seed), {})
        group |= dict.fromkeys(one.experiment.stages)
    return [[*group] for group in found.values()]


def _asked(scale: str, sections: Sequence[str] = ()) -> list[Planned]:
    chosen = [SECTIONS[name] for name in sections] or [*SECTIONS.values()]
    return [p for section in chosen for p in _of_section(section, scale)]


def _of_section(section: Section, scale: str) -> list[Planned]:
    return [
        Planned(section.name, dataset, method, experiment)
        for dataset in section.settings(scale)
        for method in section.methods(scale, dataset)
        for experiment in section.experiments(scale, dataset, method)
    ]
