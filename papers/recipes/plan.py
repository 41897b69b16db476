"""What a scale asks for, and in which order: first seeds first, or as is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedlib.runs import Experiment
from fedlib.values import one_of
from papers.recipes import SECTIONS, Section

# In which order `make paper` trains, as ``planned`` takes it: a part, of its first seeds. What a
# scale does not have is left out, and all else follows.
_ROWS = ("specialists", "specialists_rates", "specialists_dirichlet", "architectures",
         "as_released", "first_version", "adaptive", "adaptive_participation")  # fmt: skip
_SECOND = ("fourteen", "private_parts", "gates", "every_method")  # of 004
_FIVE = ("adaptive_writers", "permuted", "communication:femnist", "communication:cifar100",
         "rotated", "privacy", "specialists:fashion_mnist", "specialists_dirichlet",
         "first_version:cifar100", "adaptive_rotated", "label_skew:fashion_mnist")  # fmt: skip
_FEDMIX = ("privacy", "communication:femnist", "communication:cifar100", "rotated", "permuted",
           "label_skew")  # fmt: skip
ORDER = (
    *(f"{name}@3" for name in _FEDMIX),
    *(f"{name}@3" for name in _ROWS),
    *(f"{name}:{dataset}" for dataset in ("mnist", "fashion_mnist") for name in _SECOND),
    *_FIVE,
    "opt_out",
    *(f"{name}:cifar10" for name in _SECOND),
    "long@1",
)


@dataclass(frozen=True)
class Planned:
    """One run: the section, data set and method that first ask for it."""

    section: str
    dataset: str
    method: str
    experiment: Experiment


def planned(scale: str, wanted: Sequence[str] = ()) -> list[Planned]:
    """Return every run of a scale once, those of the first seed of all methods first.

    So an interrupted campaign has one run of everything rather than all runs of something. A first
    stage stands before what builds on it. ``wanted`` are parts, each with its first seeds first, in
    the order in which they are to come: "section", "section:data set", and of either the first
    seeds, "section@3"; none for all at once. ValueError for an unknown one.
    """
    found: dict[Experiment, Planned] = {}
    for asked in [_part(scale, name) for name in wanted] or [_asked(scale)]:
        for one in sorted(asked, key=lambda p: p.experiment.seed):
            for stage in one.experiment.stages:
                found.setdefault(stage, Planned(one.section, one.dataset, one.method, stage))
    return [*found.values()]


def in_order(scale: str) -> list[str]:
    """Return the parts of a scale as ``ORDER`` has them, then all sections."""
    return [*(name for name in ORDER if _has(scale, name)), *SECTIONS]


def by_seed(scale: str) -> list[list[Experiment]]:
    """Return the runs that belong together: what a section asks for of a data set with one seed.

    A run stands in every list that needs it, after its first stages.
    """
    found: dict[tuple[str, str, int], dict[Experiment, None]] = {}
    for one in _asked(scale):
        group = found.setdefault((one.section, one.dataset, one.experiment.seed), {})
        group |= dict.fromkeys(one.experiment.stages)
    return [[*group] for group in found.values()]


def _asked(scale: str) -> list[Planned]:
    return [p for section in SECTIONS.values() for p in _of_section(section, scale)]


def _part(scale: str, wanted: str) -> list[Planned]:
    name, dataset, seeds = _read(wanted)
    one_of("section", name, SECTIONS)
    runs = _of_section(SECTIONS[name], scale, dataset)
    return [p for p in runs if p.experiment.seed < seeds or not seeds]


def _has(scale: str, wanted: str) -> bool:
    name, dataset, _ = _read(wanted)
    return not dataset or dataset in SECTIONS[name].settings(scale)


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
