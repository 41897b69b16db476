"""All runs of a scale: their order, what they cost, their training: `make plan`, `make paper`.

First seeds come first, or what is wanted; costs are those of short probes on this machine.
"""

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any

import pandas as pd
import torch

from companion.diverged import diverged
from companion.sections import Book, Section
from fedlib import paths
from fedlib.engine import State, evaluate, play_round
from fedlib.federation import Federation
from fedlib.optim import Optimizer
from fedlib.runs import Experiment, begun, find
from fedlib.runs.provenance import DIRTY, commit
from fedlib.runs.store import complete
from fedlib.runs.sweep import train
from fedlib.values import one_of

Costs = Mapping[Experiment, float | str]
PROBED = 2  # rounds, after one that is not counted


@dataclass(frozen=True)
class Planned:
    """One run: the section, data set and method that first ask for it."""

    section: str
    dataset: str
    method: str
    experiment: Experiment

    def __str__(self) -> str:
        return f"{self.section} on {self.dataset}, {self.method}, seed {self.experiment.seed}"


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
                found.setdefault(stage, replace(one, experiment=stage))
    return [*found.values()]


def by_seed(book: Book, scale: str) -> list[list[Experiment]]:
    """Return the runs that belong together: what a section asks for of a data set with one seed.

    A run stands in every list that needs it, after its first stages.
    """
    found: dict[tuple[str, str, int], dict[Experiment, None]] = {}
    for one in _asked(book, scale):
        group = found.setdefault((one.section, one.dataset, one.experiment.seed), {})
        group |= dict.fromkeys(one.experiment.stages)
    return [[*group] for group in found.values()]


def listed(plan: Iterable[Planned]) -> str:
    """Return how many runs of a plan there are, a line per section, data set and seed."""
    left = Counter(f"{p.section} on {p.dataset}, seed {p.experiment.seed}" for p in plan)
    return "\n".join(f"  {where}: {count} to run" for where, count in left.items())


def _asked(book: Book, scale: str) -> list[Planned]:
    return [p for section in book.sections.values() for p in _of_section(section, scale)]


def _part(book: Book, scale: str, wanted: str) -> list[Planned]:
    part, _, seeds = wanted.partition("@")
    name, colon, dataset = part.partition(":")
    if (colon and not dataset) or ("@" in wanted and not (seeds.isdecimal() and int(seeds))):
        raise ValueError(f"a part is NAME, NAME:DATASET or either with @SEEDS, got {wanted!r}")
    one_of("section", name, book.sections)
    runs = _of_section(book.sections[name], scale, dataset)
    return [p for p in runs if not seeds or p.experiment.seed < int(seeds)]


def _of_section(section: Section, scale: str, dataset: str = "") -> list[Planned]:
    return [
        Planned(section.name, dataset, run.name, experiment)
        for dataset in section.settings(scale, dataset)
        for run in section.runs(scale, dataset)
        for experiment in section.experiments(scale, dataset, run)
    ]


def campaign(
    book: Book,
    scale: str,
    sections: Sequence[str],
    *,
    plan: bool,
    probe: bool,
    device: str,
    workers: int,
    address: str | None,
) -> None:
    """Print what is not stored yet and what it would cost; train it, unless this is the ``plan``.

    ``sections`` are parts as `planned` takes them, none for all. What a
    cluster will need, a probe of this machine does not say: with an ``address`` none is made. The
    same command continues what was interrupted. ValueError from the standard scale on in a
    checkout that names no code. SweepFailed if runs failed.
    """
    asked = planned(book, scale, sections)
    gone = diverged(p.experiment for p in asked)
    missing = [p for p in asked if p.experiment not in gone and find(p.experiment) is None]
    print(f"{len(asked)} runs at the {scale} scale, {len(missing)} of them to be trained")
    if gone:
        print(f"{len(gone)} have diverged, or build on what has, and are not tried again")
    if missing:
        costs = probed(missing, device) if probe and address is None else {}
        sums = summed(asked, missing, costs)
        sums.insert(3, f"hours / {workers}", sums["hours"] / workers)
        print(sums.to_string(float_format="{:.2f}".format))
    if plan or not missing:
        return
    if scale != "quick" and commit().endswith(DIRTY):
        raise ValueError(
            f"{paths.ROOT} has uncommitted changes in fedlib/ (commit {commit()}): what it trains "
            "could never be exported. Commit them, or train from a checkout of its own."
        )
    try:
        train([p.experiment for p in missing], workers=workers, device=device, address=address)
    finally:
        left = [p for p in missing if not complete(p.experiment)]
        text = f"{len(left)} runs are left:\n{listed(left)}" if left else "all runs are stored"
        print(text, flush=True)


def summed(plan: Sequence[Planned], missing: Sequence[Planned], costs: Costs) -> pd.DataFrame:
    """Return runs, what is left, and estimated hours by section and data set, and of all."""
    left, where = {p.experiment for p in missing}, ["section", "data set"]
    table = pd.DataFrame([(p.section, p.dataset) for p in plan], columns=where).assign(runs=1)
    table["left"] = [int(p.experiment in left) for p in plan]
    seconds = pd.to_numeric([costs.get(p.experiment) for p in plan], errors="coerce")
    table["hours"] = seconds / 3600
    table["no estimate"] = table["left"] * table["hours"].isna()
    sums = table.groupby(where, sort=False).sum()
    sums.loc[("all", ""), :] = sums.sum()
    return sums.astype({"runs": int, "left": int, "no estimate": int})


def probed(missing: Iterable[Planned], device: str = "auto") -> Costs:
    """Return the estimated seconds of every run, or why there is no estimate; print every probe.

    Runs that differ in seeds, lengths and rates only are probed once: a few rounds are played and
    the clients scored, of a stage that trains for many epochs one epoch. What early stopping may
    save is not known beforehand, so that all epochs count.
    """
    print("probing a few rounds of every kind of run:")
    found: dict[Experiment, float | str] = {}
    units: dict[Hashable, tuple[float, float] | str] = {}
    for one in missing:
        kind = kind_of(one.experiment)
        new = kind not in units
        unit = units[kind] = _tried(one.experiment, device) if new else units[kind]
        cost = unit if isinstance(unit, str) else _total(one.experiment, *unit)
        found[one.experiment] = cost
        if new:
            text = cost if isinstance(cost, str) else f"about {timedelta(seconds=round(cost))}"
            print(f"  {one.section}, {one.dataset}, {one.method}: {text}", flush=True)
    return found


def kind_of(experiment: Experiment) -> Hashable:
    """Return what runs have in common that cost the same per round, or at home per epoch."""
    task, home = experiment.task, experiment.rounds == 1
    where = (task.dataset, task.portion, _shape(task.partition), _shape(task.model))
    return (*where, _shape(experiment.algorithm, home), experiment.cohort, home)


def _shape(value: Any, without_epochs: bool = False) -> Hashable:
    """Return a value without its rates: what counts, and what is named, but no fraction."""
    if not is_dataclass(value) or isinstance(value, Optimizer):
        return None if isinstance(value, float | Optimizer) else value
    kept = [f.name for f in fields(value) if not (without_epochs and f.name == "epochs")]
    return (type(value).__name__, *((name, _shape(getattr(value, name))) for name in kept))


def epochs_of(experiment: Experiment) -> int:
    """Return how many epochs a stage at home trains; 1 for what federates, whose rounds count."""
    return experiment.algorithm.epochs if experiment.rounds == 1 else 1


def _total(experiment: Experiment, per_round: float, per_scoring: float) -> float:
    every = experiment.evaluate_every
    scorings = 1 + (experiment.rounds // every if every else 0)
    return per_round * experiment.rounds * epochs_of(experiment) + per_scoring * scorings


def _tried(one: Experiment, device: str) -> tuple[float, float] | str:
    """Return the seconds of a round and of a scoring; the reason if they cannot be had here."""
    if epochs_of(one) > 1:
        one = replace(one, algorithm=replace(one.algorithm, epochs=1))
    try:
        return _measured(one, device)
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _measured(one: Experiment, device: str) -> tuple[float, float]:
    fed = one.task.build(one.seed, device)
    state, algorithm = _untrained(one, fed), one.algorithm
    times = []
    for t in range(PROBED + 1):
        state, _ = play_round(algorithm, fed, state, round=t, seed=one.seed, cohort=one.cohort)
        times.append(_now(fed))
    state = algorithm.assign_models(fed, state)
    for table in (fed.validation, fed.test):
        evaluate(fed, algorithm, state, table)
    return (times[-1] - times[0]) / PROBED, _now(fed) - times[-1]


def _untrained(one: Experiment, fed: Federation) -> State:
    """Return a state that a stage can begin with, after fresh first stages, which cost nothing."""
    return begun(one, fed, [_untrained(stage, fed) for stage in one.before])


def _now(fed: Federation) -> float:
    if fed.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
