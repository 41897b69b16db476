"""`run` and `sweep`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from companion.frames import reported, together
from fedlib.cli import asked as questions
from fedlib.cli.parser import Usage
from fedlib.cli.text import table
from fedlib.runs import Experiment, Result, find, store
from fedlib.runs import run as run_one
from fedlib.runs.exported import path_of
from fedlib.runs.sweep import sweep as run_many
from fedlib.tasks import pick_device


def run(asked: Namespace) -> None:
    """Train one experiment and say what came of it."""
    experiment = questions.one(asked)
    _check_device(asked.device)
    print(experiment)
    stored = find(experiment)
    print(f"key {experiment.key}, {'stored' if stored else 'not stored'}", flush=True)
    if asked.dry_run:
        return
    result = run_one(experiment, device=asked.device, chunk=asked.chunk, retry=asked.retry)
    print(summary([result]))
    print(f"stored in {where(experiment)}")


def sweep(asked: Namespace) -> None:
    """Train many experiments and say what came of them."""
    experiments = questions.several(asked)
    if not experiments:
        raise Usage("there is no experiment in it")
    if asked.address is None:  # a cluster has devices of its own
        _check_device(asked.device)
    if asked.plan:
        found = [find(e) is not None for e in experiments]
        for experiment, stored in zip(experiments, found, strict=True):
            print(f"{experiment.key}  {'stored ' if stored else 'missing'}  {experiment}")
        print(f"{len(found)} experiments, {sum(found)} stored")
        return
    results = run_many(
        experiments,
        workers=asked.workers,
        device=asked.device,
        chunk=asked.chunk,
        retry=asked.retry,
        address=asked.address,
    )
    print(summary(results))


def summary(results: Sequence[Result]) -> str:
    """Return a table of what the runs reached: mean client test accuracy, by three rules."""
    rows = []
    for result in results:
        scores = reported(together({"run": [result]})).set_index("rule")["value"]
        e = result.experiment
        what = f"{e.task.dataset} {e.algorithm}"
        what = what if len(what) <= 60 else f"{what[:57]}..."
        rows.append((e.key[:8], what, e.seed, e.rounds, *(f"{v:.4f}" for v in scores)))
    head = ("key", "run", "seed", "rounds", "last", "last ten", "best on validation")
    return table(head, rows)


def where(experiment: Experiment) -> str:
    """Return the place of a stored result."""
    folder = store.folder(experiment)
    return str(folder if (folder / store.PROVENANCE).exists() else path_of(experiment) or folder)


def _check_device(device: str) -> None:
    try:
        pick_device(device)
    except (RuntimeError, ValueError) as error:
        raise Usage(str(error)) from error
