"""Many runs: a list of experiments over local processes, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from fedlib.experiment import Experiment, Result, find, run
from fedlib.progress import bar


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed; what finished is stored."""


def sweep(
    experiments: Sequence[Experiment],
    *,
    workers: int = 1,
    device: str = "auto",
    progress: bool = True,
) -> list[Result]:
    """Return the results of ``experiments`` in order, training those that are not stored.

    One worker trains in this process; more are spawned processes with one torch thread each, which
    on a CPU is faster than one process with many threads. Failures are collected and raised
    together as SweepFailed after everything else has finished.
    """
    if workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers}")
    missing = list({e.key: e for e in experiments if find(e) is None}.values())
    if workers == 1 or len(missing) < 2:
        failures = _in_this_process(missing, device, progress)
    else:
        failures = _in_processes(missing, min(workers, len(missing)), device, progress)
    if failures:
        said = [f"{e}: {type(error).__name__}: {error}" for e, error in failures]
        raise SweepFailed("\n".join(said)) from failures[0][1]
    return [run(e, device=device, progress=False) for e in experiments]


def _in_this_process(
    missing: Sequence[Experiment], device: str, progress: bool
) -> list[tuple[Experiment, BaseException]]:
    failures: list[tuple[Experiment, BaseException]] = []
    for i, experiment in enumerate(missing, 1):
        text = f"run {i} of {len(missing)}, {type(experiment.algorithm).__name__}"
        try:
            run(experiment, device=device, progress=progress and text)
        except Exception as error:
            failures.append((experiment, error))
            print(f"failed: {experiment}: {error}", file=sys.stderr)
    return failures


def _in_processes(
    missing: Sequence[Experiment], workers: int, device: str, progress: bool
) -> list[tuple[Experiment, BaseException]]:
    failures: list[tuple[Experiment, BaseException]] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_one_thread) as pool:
        jobs: dict[Future[None], Experiment] = {pool.submit(_job, e, device): e for e in missing}
        ticks = bar(len(jobs), "runs", show=progress)
        for job in as_completed(jobs):
            error = job.exception()
            if error is not None:
                failures.append((jobs[job], error))
                print(f"failed: {jobs[job]}: {error}", file=sys.stderr)
            ticks.update()
        ticks.close()
    return failures


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _job(experiment: Experiment, device: str) -> None:
    run(experiment, device=device, progress=False)
