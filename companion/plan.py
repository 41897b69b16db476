"""What a scale asks for, and in which order: first seeds first, or as is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from companion.book import Book
from companion.sections import Section
from fedlib.runs import Experiment
from fedlib.values import one_of


@dataclass(frozen=True)
class Planned:
    """One run: the section, data set and method that first ask for it."""

    section: str
    dataset: str
    method: str
    experiment: Experiment


def planned(book: Book, scale: str, wanted: Sequence[str] = ()) -> list[Planned]:
    """Return every run of a scale once, those of the first seed of all methods first.

    So an interrupted campaign has one run of everything rather than all runs of something. A first
    stage stands before what builds on it. ``wanted`` are parts, each with its first seeds first, in
    the order in which they are to come: "section", "section:data set", and of either the first
    seeds, "section@3"; none for all at once. ValueError for an unknown one.
    """
    found: dict[Experiment, Planned] = {}
    for asked in [_part(book, scale, name) for name in wanted] or [_asked(book, scale)]:
        for one in sorted(asked, key=lambda p: p.experiment.seed):
            for stage in one.experiment.stages:
                found.setdefault(stage, Planned(one.section, one.dataset, one.method, stage))
    return [*found.values()]


def in_order(book: Book, scale: str) -> list[str]:
    """Return the parts of a scale in the order of the book, then all sections."""
    return [*(name for name in book.order if _has(book, scale, name)), *book.sections]


def by_seed(book: Book, scale: str) -> list[list[Experiment]]:
    """Return the runs that belong together: what a section asks for of a data set with one seed.

    A run stands in every list that needs it, after its first stages.
    """
    found: dict[tuple[str, str, int], dict[Experiment, None]] = {}
    for one in _asked(book, scale):
        group = found.setdefault((one.section, one.dataset, one.experiment.seed), {})
        group |= dict.fromkeys(one.experiment.stages)
    return [[*group] for group in found.values()]


def _asked(book: Book, scale: str) -> list[Planned]:
    return [p for section in book.sections.values() for p in _of_section(section, scale)]


def _part(book: Book, scale: str, wanted: str) -> list[Planned]:
    name, dataset, seeds = _read(wanted)
    one_of("section", name, book.sections)
    runs = _of_section(book.sections[name], scale, dataset)
    return [p for p in runs if p.experiment.seed < seeds or not seeds]


def _has(book: Book, scale: str, wanted: str) -> bool:
    name, dataset, _ = _read(wanted)
    return not dataset or dataset in book.sections[name].settings(scale)


def _read(wanted: str) -> tuple[str, str, int]:
    """Return the section, data set ("" for all) and number of seeds (0 for all) of a part."""
    part, _, seeds = wanted.partition("@")
    name, colon, dataset = part.partition(":")
    if (colon and not dataset) or ("@" in wanted and not (seeds.isdecimal() and int(seeds))):
        raise ValueError(f"a part is NAME, NAME:DATASET or either with @SEEDS, got {wanted!r}")
    return name, dataset, int(seeds or 0)


def _of_section(section: Section, scale: str, dataset: str = "") -> list[Planned]:
    return [
        Planned(section.name, dataset, run.name, experiment)
        for dataset in section.settings(scale, dataset)
        for run in section.runs(scale, dataset)
        for experiment in section.experiments(scale, dataset, run)
    ]
