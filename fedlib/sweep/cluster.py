"""Runs over a Ray cluster: a run trains in a store of its own and comes back as files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from fedlib.experiment import Experiment, run, store
from fedlib.sweep.local import sendable
from fedlib.sweep.table import Failures, Table

Files = dict[str, bytes]


class NoCluster(RuntimeError):
    """There is no Ray, or no cluster at its address."""


def on_cluster(
    experiments: Sequence[Experiment], address: str, options: dict[str, Any], table: Table
) -> Failures:
    """Train on the cluster at a Ray address; its workers need fedlib and the data.

    What this store holds of a run (a checkpoint, a first stage) goes along, and what the cluster
    stored comes back, also of a run that failed. First stages are trained before what comes after
    them. How many run at once is the cluster's to say. NoCluster if it cannot be reached.
    """
    ray = _connected(address)
    firsts = {first.key for e in experiments for first in e.before}
    waves = [[e for e in experiments if (e.key in firsts) == now] for now in (True, False)]
    return [failure for wave in waves if wave for failure in _train_all(ray, wave, options, table)]


def _train_all(
    ray: Any, experiments: Sequence[Experiment], options: dict[str, Any], table: Table
) -> Failures:
    remote = ray.remote(_train_there).options(
        num_cpus=1, num_gpus=int(options["device"].startswith("cuda"))
    )
    jobs = {}
    try:
        for experiment in experiments:
            jobs[remote.remote(experiment, _packed(experiment), options)] = experiment
            table.start(experiment)
        return _collected(ray, jobs, table)
    except BaseException:
        for job in jobs:
            ray.cancel(job)
        raise


def _collected(ray: Any, jobs: dict[Any, Experiment], table: Table) -> Failures:
    failures = Failures()
    left = list(jobs)
    while left:
        ready, left = ray.wait(left, num_returns=1, timeout=1.0)
        for job in ready:
            experiment = jobs[job]
            try:
                stages, error = ray.get(job)
                for stage, files in zip(experiment.stages, stages, strict=True):
                    with store.claimed(stage):
                        if files and not store.complete(stage):
                            store.unpack(stage, files)
            except Exception as lost:  # the machine, the network, or what Ray makes of them
                error = lost
            if error is not None:
                failures.append((experiment, error))
                table.fail(experiment, error)
            else:
                table.done(experiment)
        table.draw()
    return failures


def _train_there(
    experiment: Experiment, packed: list[Files], options: dict[str, Any]
) -> tuple[list[Files], Exception | None]:
    """Train on a machine of the cluster; return the files of every stage and what went wrong."""
    before, error = os.environ.get("FEDLIB_RUNS"), None
    with tempfile.TemporaryDirectory(prefix="fedlib-runs-") as folder:
        os.environ["FEDLIB_RUNS"] = folder
        try:
            for stage, files in zip(experiment.stages, packed, strict=True):
                store.unpack(stage, files)
            run(experiment, progress=False, **options)
        except Exception as caught:
            error = sendable(caught)
        finally:
            back = _packed(experiment)
            os.environ.pop("FEDLIB_RUNS")
            if before is not None:
                os.environ["FEDLIB_RUNS"] = before
    return back, error


def _packed(experiment: Experiment) -> list[Files]:
    return [store.pack(stage) for stage in experiment.stages]


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise NoCluster('a Ray address needs Ray: pip install "fedlib[ray]"') from error
    try:
        if not ray.is_initialized():
            ray.init(address=address)
    except ConnectionError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray
