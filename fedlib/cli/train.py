"""`run` and `sweep`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedlib.cli.app import Usage
from fedlib.cli.text import show_table
from fedlib.runs import Experiment, Result, find, store
from fedlib.runs import run as run_one
from fedlib.runs.exported import path_of
from fedlib.runs.sweep import sweep as run_many
from fedlib.tasks import pick_device


def run(experiment: Experiment, dry: bool, device: str, **how: Any) -> None:
    """Train one experiment and say what came of it."""
    _check_device(device)
    print(experiment)
    stored = find(experiment)
    print(f"key {experiment.key}, {'stored' if stored else 'not stored'}", flush=True)
    if not dry:
        show_summary([run_one(experiment, device=device, **how)])
        folder = store.folder(experiment)
        kept = (folder / store.PROVENANCE).exists()
        print(f"stored in {folder if kept else path_of(experiment) or folder}")


def sweep(experiments: Sequence[Experiment], plan: bool, device: str, **how: Any) -> None:
    """Train many experiments and say what came of them."""
    if how["address"] is None:  # a cluster has devices of its own
        _check_device(device)
    if not plan:
        show_summary(run_many(experiments, device=device, **how))
        return
    found = [find(e) is not None for e in experiments]
    for experiment, stored in zip(experiments, found, strict=True):
        print(f"{experiment.key}  {'stored ' if stored else 'missing'}  {experiment}")
    print(f"{len(found)} experiments, {sum(found)} stored")


def show_summary(results: Sequence[Result]) -> None:
    """Print what the runs reached: mean client test accuracy, by three rules."""
    rows = []
    for result in results:
        e = result.experiment
        what = f"{e.task.dataset} {e.algorithm}"
        what = what if len(what) <= 60 else f"{what[:57]}..."
        scores = (f"{score:.4f}" for score in reported(result))
        rows.append((e.key[:8], what, e.seed, e.rounds, *scores))
    show_table(("key", "run", "seed", "rounds", "last", "last ten", "best on validation"), rows)


def reported(result: Result) -> tuple[float, float, float]:
    """Return the mean client accuracy by three rules: last, last ten evaluations, best round.

    The best is chosen on validation data; nan where there are none.
    """
    held, test = result.curve("validation_accuracy"), result.curve("test_accuracy")
    course = [test[t] for t in test if t in held]
    some = [t for t in test if not math.isnan(held.get(t, math.nan))]
    best = test[max(some, key=lambda t: (held[t], -t))] if some else math.nan
    return course[-1], sum(course[-10:]) / len(course[-10:]), best


def _check_device(device: str) -> None:
    try:
        pick_device(device)
    except (RuntimeError, ValueError) as error:
        raise Usage(str(error)) from error
