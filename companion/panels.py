"""What a notebook shows: the methods of a section on the data sets of a scale, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

<<<<<<< HEAD:companion/panels.py
from companion.frames import LEAST_SEEDS, together
from companion.plotting import title
from fedlib.runs import Result, find
from fedlib.runs.sweep import sweep
=======
from fedlib.experiment import Result, find
from fedlib.frames import LEAST_SEEDS, together
from fedlib.plotting import title
from fedlib.recipes import MAJORITY, Section, Setting
from fedlib.sweep import sweep
>>>>>>> main:fedlib/panels.py
from fedlib.values import one_of
from papers.recipes import Section, Setting


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs of several methods on one data set: their setting and their metrics.

    ``trained`` is false when the runs come from the exported results of a larger scale.
    """

    dataset: str
    scale: str
    setting: Setting
    frame: pd.DataFrame
    trained: bool

    @property
    def name(self) -> str:
        """The panel's title, e.g. "CIFAR-10 (standard)"."""
        return f"{title(self.dataset)} ({self.scale})"


def panels(
    section: Section,
    methods: Sequence[str],
    scale: str,
    dataset: str = "",
    *,
    larger: Sequence[str] = (),
    seeds: int = 0,
    rounds: int = 0,
    device: str = "auto",
    workers: int = 1,
) -> list[Panel]:
    """Return one panel per data set of ``scale``, training the runs that are not stored.

    ``methods`` that a data set does not have are left out there; none are all. At the quick scale
    the exported results of the standard scale follow, as far as they are there: what a newcomer's
    machine has just computed beside what the paper's data give. ``larger`` are methods that the
    quick scale leaves out.
    """
    every = [*methods, *larger]
    methods = methods if scale == "quick" else every
    shown = []
    for name, setting in section.settings(scale, dataset).items():
        runs = {
            m: section.experiments(scale, name, m, seeds=seeds, rounds=rounds)
            for m in _chosen(section, methods, scale, name)
        }
        results = sweep([e for es in runs.values() for e in es], workers=workers, device=device)
        done = iter(results)
        frame = together({m: [next(done) for _ in es] for m, es in runs.items()})
        shown.append(Panel(name, scale, setting, frame, trained=True))
    return shown + (stored(section, every, "standard") if scale == "quick" else [])


def several(
    sections: Sequence[Section], scale: str, dataset: str = "", **more: Any
) -> Callable[[Section], list[Panel]]:
    """Return a function that gives `panels` of each section: none where it lacks the data set.

    UnknownName if all of them lack it. ``more`` is handed on.
    """
    if dataset:
        known = [name for section in sections for name in section.settings(scale)]
        one_of(f"data set at scale {scale!r}", dataset, dict.fromkeys(known))

    def shown(section: Section) -> list[Panel]:
        lacking = dataset and dataset not in section.settings(scale)
        return [] if lacking else panels(section, [], scale, dataset, **more)

    return shown


def stored(section: Section, methods: Sequence[str], scale: str) -> list[Panel]:
    """Return a panel per data set of ``scale`` from results that are there, training nothing.

    While a campaign is under way methods have different seeds: see ``comparable``. A data set of
    which some method is still missing everywhere is left out.
    """
    shown = []
    for name, setting in section.settings(scale).items():
        found = {
            m: [find(e) for e in section.experiments(scale, name, m)]
            for m in _chosen(section, methods, scale, name)
        }
        there = comparable(found)
        # The floor is a line behind what is compared: a figure can do without.
        if there and {_lines(m)[0] for m in found} <= {_lines(m)[0] for m in [*there, MAJORITY]}:
            shown.append(Panel(name, scale, setting, together(there), trained=False))
    return shown


def comparable(found: Mapping[str, Sequence[Result | None]]) -> dict[str, list[Result]]:
    """Return the runs of methods that can be compared: the same seeds of all, at the same places.

    ``found`` has a result by method and seed, None where it is not there. A method that lacks one
    of its first ``LEAST_SEEDS`` seeds is left out (or the first one, as long as no method has so
    many), and so is a seed that one of the others is still to get. A place is p = 0.7 in "Mixture,
    p = 0.7". Means over places are those over the same ones: names and places are left out, those
    that lack most first, until every name is at every place at which it should be.
    """
    there = {m: _in_a_row(results) for m, results in found.items()}
    least = LEAST_SEEDS if max(there.values(), default=0) >= LEAST_SEEDS else 1
    whole = {m for m, n in there.items() if n >= min(least, max(len(found[m]), 1))}
    kept = _without_holes([*found], whole)
    most = min((there[m] for m in kept if there[m] < len(found[m])), default=None)
    return {m: [r for r in found[m][:most] if r is not None] for m in kept}


def _in_a_row(results: Sequence[Result | None]) -> int:
    """Return how many of the first seeds are there."""
    return next((i for i, result in enumerate(results) if result is None), len(results))


def _without_holes(asked: list[str], whole: set[str]) -> list[str]:
    """Return the methods whose names are at all of their places, in order; see ``comparable``."""
    while any(m not in whole for m in asked):
        lines: dict[tuple[str, str], list[bool]] = {}
        for method in asked:
            for line in _lines(method):
                lines.setdefault(line, []).append(method not in whole)
        worst = max(lines, key=lambda line: sum(lines[line]) / len(lines[line]))
        asked = [m for m in asked if worst not in _lines(m)]
    return asked


def _lines(method: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the name and the place of a method, as in "Mixture, p = 0.7"."""
    name, _, place = method.partition(", ")
    return ("name", name), ("place", place)


def costs(section: Section, panel: Panel, *, seeds: int = 0, rounds: int = 0) -> pd.DataFrame:
    """Return what every method of a panel cost, its first stages included.

    Columns method, seed; megabytes that all clients sent and received, seconds of training on the
    machine that trained it, and client_mib, what a client holds in the end (NaN where older runs
    did not say).
    """
    rows = []
    for method, own in panel.frame.groupby("method", sort=False)["seed"]:
        for experiment in section.experiments(
            panel.scale, panel.dataset, str(method), seeds=seeds, rounds=rounds
        ):
            if experiment.seed not in set(own):
                continue
            stages = [find(stage) for stage in experiment.stages]
            there = [result for result in stages if result is not None]
            if len(there) == len(stages):
                rows.append((method, experiment.seed, *_spent(there)))
    return pd.DataFrame(rows, columns=["method", "seed", "megabytes", "seconds", "client_mib"])


def _spent(stages: Sequence[Result]) -> tuple[float, float, float]:
    sent = sum(
        r.metrics.loc[r.metrics["metric"].isin(["bytes_down", "bytes_up"]), "value"].sum()
        for r in stages
    )
    seconds = sum(r.provenance["seconds"] for r in stages)
    return sent / 1e6, seconds, stages[-1].provenance.get("client_mib", float("nan"))


def _chosen(section: Section, methods: Sequence[str], scale: str, dataset: str) -> list[str]:
    known = section.methods(scale, dataset)
    return [m for m in methods or known if m in known]
