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
    chosen = [SECTIONS[name] for name in sections] or [*SECTIONS.values()]
    found: dict[Experiment, Planned] = {}
    every = [p for section in chosen for p in _of_section(section, scale)]
    for one in sorted(every, key=lambda p: p.experiment.seed):
        for stage in one.experiment.stages:
            found.setdefault(stage, Planned(one.section, one.dataset, one.method, stage))
    return [*found.values()]


def _of_section(section: Section, scale: str) -> list[Planned]:
    return [
        Planned(section.name, dataset, method, experiment)
        for dataset in section.settings(scale)
        for method in section.methods(scale, dataset)
        for experiment in section.experiments(scale, dataset, method)
    ]
