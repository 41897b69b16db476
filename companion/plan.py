"""The runs of a scale or of the campaign: their order, their cost, and their training.

`make plan`, `make campaign` and `make paper` call this module. By default first seeds are trained
first. The cost of a run is estimated by the CPU seconds of stored runs of the same kind.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from companion.diverged import diverged
from companion.sections import SCALES, Block, Registry, Run
from fedlib import paths
from fedlib.optim import Optimizer
from fedlib.values import UnknownName, check_choice
from fedrun import Experiment, find_result, provenance
from fedrun.provenance import commit, committed
from fedrun.store import RunFolder
from fedrun.sweeps import train_missing


@dataclass(frozen=True)
class Planned:
    """A run, with the first section, data set and method that ask for it."""

    section: str
    dataset: str
    method: str
    experiment: Experiment

    def __str__(self) -> str:
        return f"{self.section} on {self.dataset}, {self.method}, seed {self.experiment.seed}"


def planned(registry: Registry, scale: str, wanted: Sequence[str] = ()) -> list[Planned]:
    """Return every run of a scale once, the first seeds of all methods first.

    An interrupted campaign thus has one run of everything, and not all runs of something. A first
    stage comes before the stages that build on it.

    Args:
        registry: the sections.
        scale: one of ``SCALES``.
        wanted: parts, in the order in which they are trained, each with its first seeds first:
            "section" or "section:dataset"; either with a number of seeds, "section@3"; and with
            values of the method or the place, "section@3/p=0.2,1/method=FedAvg". All runs by
            default.

    Raises:
        ValueError: for a part that does not exist.
    """
    found: dict[Experiment, Planned] = {}
    parts = [_part(registry, scale, name) for name in wanted or registry.sections]
    for asked in parts if wanted else [[p for part in parts for p in part]]:
        for one in sorted(asked, key=lambda p: p.experiment.seed):
            for stage in one.experiment.stages:
                found.setdefault(stage, replace(one, experiment=stage))
    return [*found.values()]


def listed(plan: Iterable[Planned]) -> str:
    """Return how many runs of a plan there are, and of which seeds, a line per section and data."""
    left = defaultdict[str, list[int]](list)
    for p in plan:
        left[f"{p.section} on {p.dataset}"].append(p.experiment.seed)
    lines = []
    for where, runs in left.items():
        seeds = sorted({*runs})
        of = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
        lines.append(f"  {where}: {len(runs)} to run, of {of}")
    return "\n".join(lines)


def _part(registry: Registry, scale: str, wanted: str) -> list[Planned]:
    """Return the runs of a part, which `planned` describes."""
    whole, *filters = wanted.split("/")
    part, at, seeds = whole.partition("@")
    name, colon, dataset = part.partition(":")
    bad = colon and not dataset, at and not (seeds.isdecimal() and int(seeds))
    if any(bad) or not all("=" in each for each in filters):
        raise ValueError(
            "a part is NAME, NAME:DATASET or either with @SEEDS, and then /FIELD=VALUE,VALUE as "
            f"in adaptive:cifar10@3/p=0.2,1/method=MoE; got {wanted!r}"
        )
    check_choice("section", name, registry.sections)
    section, wanted_at = registry.sections[name], [f.partition("=") for f in filters]
    found = [
        Planned(section.name, data, run.name, experiment)
        for data in section.settings(scale, dataset)
        for run, every in section.by_run(scale, data)
        if all(_matches(run, field, values) for field, _, values in wanted_at)
        for experiment in every
        if not seeds or experiment.seed < int(seeds)
    ]
    if filters and not found:
        raise ValueError(f"no run of {part} at the {scale} scale has {' and '.join(filters)}")
    return found


def _matches(run: Run, field: str, values: str) -> bool:
    """Return whether a run's method, or a value of its place, is one of ``values``.

    A comma before a space belongs to a name: "K = 4, half the rate" is one method.
    """
    here = {"method": run.method, **run.where}.get(field)
    if isinstance(here, float | int):
        with suppress(ValueError):
            return here in [float(v) for v in values.split(",")]
    return here in re.split(",(?! )", values)


def of_block(registry: Registry, block: Block) -> list[Planned]:
    """Return every run of a block of the campaign once, first stages first."""
    every = [p for scale, parts in block.parts.items() for p in planned(registry, scale, parts)]
    return [*{p.experiment: p for p in every}.values()]


def progress(registry: Registry) -> pd.DataFrame:
    """Return the progress of the campaign: the runs of every block, the stored ones, and hours.

    CPU hours spent are those of stored runs whose CPU seconds are known; planned hours were fixed
    before the first run. Hours on a GPU are the times of runs, several of which may share the GPU.
    """
    rows = []
    for block in registry.blocks:
        found = [find_result(p.experiment) for p in of_block(registry, block)]
        stored = [r.provenance for r in found if r is not None]
        spent = np.sum([(0.0, 0.0), *(_spent(made) for made in stored)], axis=0) / 3600
        rows.append((block.number, block.what, len(found), len(stored), *spent, block.hours))
    names = ["block", "what", "runs", "stored", "CPU hours spent", "hours on a GPU", "planned"]
    return pd.DataFrame(rows, columns=names).set_index("block")


def _spent(made: Mapping[str, Any]) -> tuple[float, float]:
    """Return the known CPU seconds of a stored run, and its seconds on a GPU."""
    parts = made.get("segments", ())
    on_gpu = [part["seconds"] for part in parts if part["device"] not in provenance.CPUS]
    return sum(part.get("cpu_seconds", 0.0) for part in parts), sum(on_gpu)


def campaign(
    registry: Registry,
    scale: str,
    sections: Sequence[str],
    *,
    blocks: Sequence[int] = (),
    plan: bool,
    workers: int,
    **how: Any,
) -> None:
    """Print the runs that are not stored and their cost; train them, unless ``plan`` asks not to.

    The same command continues an interrupted campaign.

    Args:
        registry: the sections and blocks.
        scale: one of ``SCALES``; "" for the paper's.
        sections: parts of the scale, as `planned` takes them; all by default.
        blocks: the numbers of blocks of the campaign, in place of a scale and sections.
        plan: whether runs are only listed.
        workers: the number of processes.
        how: further arguments of ``train_missing``: device, address.

    Raises:
        ValueError: if runs of the standard or paper scale would come from uncommitted code.
        SweepFailed: if runs failed.
    """
    asked, what = _asked(registry, scale, sections, blocks)
    asked = [*{p.experiment: p for p in asked}.values()]
    gone = diverged(p.experiment for p in asked)
    missing = [p for p in asked if p.experiment not in gone and find_result(p.experiment) is None]
    print(f"{len(asked)} runs of {what}, {len(missing)} of them to be trained")
    if gone:
        print(f"{len(gone)} have diverged, or build on what has, and are not tried again")
    if missing:
        sums = summed(asked, missing)
        sums.insert(3, f"hours / {workers}", sums["hours"] / workers)
        print(sums.to_string(float_format="{:.2f}".format))
    if plan or not missing:
        return
    if (blocks or scale != "quick") and not committed(commit()):
        raise ValueError(
            f"{paths.ROOT} has uncommitted changes in fedlib/ or fedrun/, or git does not answer "
            f"(commit "
            f"{commit()}): what it trains could never be exported. Commit them, have `git status` "
            "work there, or train from a checkout of its own."
        )
    try:
        train_missing([p.experiment for p in missing], workers=workers, **how)
    finally:
        left = [p for p in missing if not RunFolder(p.experiment).complete]
        text = f"{len(left)} runs are left:\n{listed(left)}" if left else "all runs are stored"
        print(text, flush=True)


def _asked(
    registry: Registry, scale: str, sections: Sequence[str], blocks: Sequence[int]
) -> tuple[list[Planned], str]:
    """Return the runs of blocks, or else of sections, and what these are in words."""
    if blocks and (sections or scale):
        raise ValueError("give blocks of the campaign, or a scale and sections of it, not both")
    if not blocks:
        scale = scale or SCALES[-1]
        return planned(registry, scale, sections), f"the {scale} scale"
    chosen = {b.number: b for b in registry.blocks}
    if unknown := {*blocks} - {*chosen}:
        known = f"the campaign has {min(chosen)} to {max(chosen)}"
        raise UnknownName(f"unknown block {min(unknown)}; {known}")
    what = f"block {', '.join(map(str, blocks))} of the campaign"
    return [p for n in blocks for p in of_block(registry, chosen[n])], what


def summed(plan: Sequence[Planned], missing: Sequence[Planned]) -> pd.DataFrame:
    """Return the number of runs, the number left, and their CPU hours, by section and data set.

    A run costs as much as stored runs of its kind (`kind_of`) for as many rounds and epochs. If
    none of its kind is stored, there is no estimate.
    """
    left, where = {p.experiment for p in missing}, ["section", "data set"]
    table = pd.DataFrame([(p.section, p.dataset) for p in plan], columns=where).assign(runs=1)
    table["left"] = [int(p.experiment in left) for p in plan]
    costs = costs_of(p.experiment for p in plan)
    seconds = [costs.get(p.experiment, np.nan) if p.experiment in left else 0.0 for p in plan]
    table["hours"] = np.array(seconds) / 3600
    table["no estimate"] = table["left"] * table["hours"].isna()
    sums = table.groupby(where, sort=False).sum()
    sums.loc[("all", ""), :] = sums.sum()
    return sums.astype({"runs": int, "left": int, "no estimate": int})


def costs_of(experiments: Iterable[Experiment]) -> dict[Experiment, float]:
    """Return the cost of runs in CPU seconds: their own, or that of stored runs of their kind."""
    found = {one: find_result(one) for one in experiments}
    costs = {e: r.provenance.get("cpu_seconds") for e, r in found.items() if r is not None}
    known = {one: cost for one, cost in costs.items() if cost is not None}
    rates = defaultdict[Hashable, list[float]](list)
    for one, cost in known.items():
        rates[kind_of(one)].append(cost / _length(one))
    alike = {one: rates[kind] for one in found if (kind := kind_of(one)) in rates}
    return {one: float(np.mean(of)) * _length(one) for one, of in alike.items()} | known


def _length(one: Experiment) -> int:
    """Return the number of units, rounds or epochs, by which the cost of a run grows."""
    return one.rounds * epochs_of(one)


def kind_of(experiment: Experiment) -> Hashable:
    """Return what runs of the same cost have in common.

    The cost is per round; for a stage of a single round, which clients train alone, it is per
    epoch.
    """
    task, home = experiment.task, experiment.rounds == 1
    where = (task.dataset, task.portion, _shape(task.partition), _shape(task.model))
    return (*where, _shape(experiment.algorithm, home), experiment.cohort, home)


def _shape(value: Any, without_epochs: bool = False) -> Hashable:
    """Return a value without its fractions and optimisers, which do not change its cost."""
    if not is_dataclass(value) or isinstance(value, Optimizer):
        return None if isinstance(value, float | Optimizer) else value
    kept = [f.name for f in fields(value) if not (without_epochs and f.name == "epochs")]
    return (type(value).__name__, *((name, _shape(getattr(value, name))) for name in kept))


def epochs_of(experiment: Experiment) -> int:
    """Return the epochs of a stage of a single round; 1 for others, whose rounds count."""
    return experiment.algorithm.epochs if experiment.rounds == 1 else 1
