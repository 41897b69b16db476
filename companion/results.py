"""Export finished runs to the project's ``results/``: `make results SCALE=standard`.

A run is stored in a file of the first section and data set that ask for it,
``results/<section>-<dataset>.parquet``. Existing files stay as they are, even if no section asks
for their runs any more; new runs are added in a further file, ``<section>-<dataset>.2.parquet``.
Runs that diverged have no result: they are listed in ``results/diverged.csv``.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from companion import diverged
from companion.plan import listed, planned
from companion.sections import SCALES, Registry
from fedrun import Experiment, Result, find_result
from fedrun.provenance import began_with, dirty
from fedrun.results import (
    export,
    group_of,
    place_of_more,
    places,
    read_run,
    refusal,
    result_files,
    writing,
)

Made = Mapping[Experiment, Mapping[str, Any]]  # the provenance of each run


class Exported(NamedTuple):
    """The outcome of ``export_runs``.

    Attributes:
        files: all files of results.
        missing: experiments that have not been run.
        dirty: results of uncommitted code, or of stages that build on such results.
        waiting: experiments that began with another first stage than the exported one, on which
            others stand.
        unplanned: the number of exported runs for which no section asks any more.
    """

    files: list[Path]
    missing: list[Experiment]
    dirty: list[Result]
    waiting: list[Experiment]
    unplanned: int


def homes(registry: Registry) -> dict[str, str]:
    """Return, by key, the name of the file to which every planned run belongs."""
    every = [p for scale in SCALES for p in planned(registry, scale)]
    return {p.experiment.key: f"{p.section}-{p.dataset}" for p in reversed(every)}


def of_every_round(registry: Registry) -> set[Experiment]:
    """Return the experiments of sections that read the divergence of every round."""
    return {
        stage
        for section in registry.sections.values()
        for scale in SCALES
        for dataset in (section.settings(scale) if section.every_round else ())
        for _, experiments in section.by_run(scale, dataset)
        for experiment in experiments
        for stage in experiment.stages
    }


def thinned(result: Result) -> Result:
    """Return a result with the gradient divergence of evaluated rounds only.

    It has about a tenth of the numbers.
    """
    metrics = result.metrics
    every = metrics["round"].unique().to_pylist()
    evaluated = pa.array([r for r in every if result.experiment.evaluates(r)], pa.int32())
    kept = (pc.field("metric") != "divergence") | pc.field("round").isin(evaluated)
    return replace(result, metrics=metrics.filter(kept))


def export_runs(registry: Registry, scale: str) -> Exported:
    """Export every finished run of a scale, in whole chains of stages: see `fitting`."""
    with writing():
        there, home, whole = places(), homes(registry), of_every_round(registry)
        plan = {p.experiment: p for p in planned(registry, scale)}
        old = {r.experiment: r.provenance for r in map(read_run, there.values(), there)}
        found = {e: find_result(e) for e in plan}
        new = {e: r for e, r in found.items() if r and r.provenance != old.get(e)}
        sound = {e: r.provenance for e, r in new.items() if not dirty(r.provenance)}
        now = fitting(old, sound)
        added = [e for e, made in now.items() if made is not old.get(e)]
        name = {e: group_of(there[e.key]) if e in old else home[e.key] for e in added}
        for each in sorted({*name.values()}):
            mine = [e for e in added if name[e] == each]
            export([new[e] if e in whole else thinned(new[e]) for e in mine], place_of_more(each))
        gone = diverged.diverged(e for e in plan if e not in now)
        first = [e for e in gone if gone.keys().isdisjoint(e.before)]
        diverged.store([(e.key, f"{plan[e]}", gone[e]) for e in first], {e.key for e in plan})
    missing = [e for e in plan if found[e] is None and e not in gone]
    waiting = [e for e in sound if e not in now]
    bad = [r for e, r in new.items() if e not in sound]
    return Exported(result_files(), missing, bad, waiting, len(there.keys() - home.keys()))


def fitting(old: Made, new: Made) -> dict[Experiment, Mapping[str, Any]]:
    """Return which runs to keep, of the exported ones and of those that were trained since.

    A later stage is kept only with the first stages with which it began. A run that was trained
    again replaces the exported one only if another run can be kept for it, and together with all
    later stages that build on it.

    Args:
        old: the provenance of the exported runs.
        new: the provenance of the runs that were trained since.
    """
    now = {**old, **new}

    def retrained(e: Experiment) -> bool:
        return e in new and now.get(e) is new[e]

    def give_way(e: Experiment) -> list[Experiment]:
        """Return what must be replaced by the old runs: itself, or stages that do not fit it."""
        if _fits(e, now):
            return []
        return [e] if retrained(e) else [s for s in e.stages if retrained(s)]

    while back := {one for e in now for one in give_way(e)}:
        for e in back:
            del now[e]
        now |= {e: old[e] for e in back if e in old}
    needed = {e for e in now if e not in old or (retrained(e) and not _fits(e, old))}
    again = {e for e in now if retrained(e)} - needed
    while more := {e for e in again if any(e in n.stages or n in e.stages for n in needed)}:
        needed, again = needed | more, again - more
    return {e: old[e] if e in again else made for e, made in now.items()}


def _fits(one: Experiment, made: Made) -> bool:
    """Return whether a run is present with all stages with which it began."""
    began, before = began_with(made[one]), one.stages[:-1]
    return all(s in made and began.get(s.key) == made[s].get("state") for s in before)


def main(registry: Registry, scale: str = "standard") -> int:
    """Export a scale; print what was written and what has not been run.

    Returns:
        The exit code: 1 if results of uncommitted code were refused.
    """
    kept = export_runs(registry, scale)
    size = sum(f.stat().st_size for f in kept.files) / 1e6
    print(f"{len(places())} results in {len(kept.files)} files of {size:.1f} MB")
    print(f"{kept.unplanned} of them are asked for by no section any more")
    for _, run, rounds in diverged.stored().itertuples(index=False):
        print(f"  diverged after {rounds} rounds: {run}")
    for experiment in kept.waiting:
        print(f"  waits for the others after its first stage: {experiment.key} {experiment}")
    print(f"{len(kept.missing)} experiments have not been run")
    lacking = {*kept.missing}
    if lacking:
        print(listed(p for p in planned(registry, scale) if p.experiment in lacking))
    if kept.dirty:
        print(f"fedlib: {refusal(kept.dirty)}", file=sys.stderr)
    return 1 if kept.dirty else 0
