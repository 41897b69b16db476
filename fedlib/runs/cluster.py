"""Runs over a Ray cluster, as seen by the driver: a few are handed out, and come back as files."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedlib.progress import note
from fedlib.runs import Experiment, StoreError, store
from fedlib.runs.local import SECONDS_TO_STOP, WorkerDied
from fedlib.runs.table import Failures, Table
from fedlib.runs.there import Files, Mailbox, Order, UnfitNode, code, train
from fedlib.values import one_of

ATTEMPTS = 3  # of a run of which no further checkpoint comes back
AHEAD = 2  # runs handed out for every one that can be trained now
SECONDS_BETWEEN_CHECKPOINTS = "300"


class NoCluster(RuntimeError):
    """There is no Ray, or no cluster at its address."""


def on_cluster(
    experiments: Sequence[Experiment], address: str, options: dict[str, Any], table: Table
) -> Failures:
    """Train on the cluster at a Ray address; its workers need the same fedlib, and the data.

    Runs are handed out in their order, a few more than fit, one that builds on another of them
    when that has come back. What this store holds of a run goes along. Every five minutes (or
    $FEDLIB_CHECKPOINT_SECONDS) its checkpoint comes back. A run whose worker or machine is lost
    goes on from there elsewhere, and fails if that happens three times with nothing new in
    between. Interrupted, the cluster stops, and what it has is stored.

    NoCluster if it cannot be reached, UnfitNode if one of its machines has other code.
    """
    return _Driver(_connected(address), experiments, options, table).train()


@dataclass
class _Run:
    """A run that has not ended, and the keys of those among them that it builds on."""

    experiment: Experiment
    needs: frozenset[str]
    attempt: int = 0
    lost: int = 0  # attempts since something came back
    node: str = ""  # where it is known to run


class _Driver:
    """Hands runs out and takes them back: ``waiting`` and ``jobs`` are those left."""

    def __init__(
        self, ray: Any, experiments: Sequence[Experiment], options: dict[str, Any], table: Table
    ) -> None:
        self.ray, self.table = ray, table
        device = device_for(options["device"], ray.cluster_resources())
        self.options = {**options, "device": device}
        self.unit = "GPU" if device == "cuda" else "CPU"
        self.every = os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or SECONDS_BETWEEN_CHECKPOINTS
        keys = {e.key for e in experiments}
        self.waiting = {
            e.key: _Run(e, frozenset(s.key for s in e.stages[:-1]) & keys) for e in experiments
        }
        self.jobs: dict[Any, _Run] = {}
        self.failed: dict[str, tuple[Experiment, BaseException]] = {}
        gpus = int(device == "cuda")
        # Ray would begin again from what was sent first; retries are ours, from what came back.
        self.remote = ray.remote(train).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        how = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        self.mailbox = ray.remote(Mailbox).options(**how).remote()

    def train(self) -> Failures:
        """Train until nothing is left; return what failed."""
        if self._slots() == 0:
            note(f"the cluster has no {self.unit} at the moment: waiting for one")
        try:
            while self.waiting or self.jobs:
                self._hand_out()
                self._read_mail()
                for job in self._ready(1.0):
                    self._take_back(job)
                self.table.draw()
        except BaseException:
            self._stop()
            raise
        finally:
            self.ray.kill(self.mailbox)
        return list(self.failed.values())

    def _slots(self) -> int:
        return int(self.ray.cluster_resources().get(self.unit, 0))

    def _hand_out(self) -> None:
        """Keep the cluster busy, also when machines have joined it."""
        most = AHEAD * max(1, self._slots())
        while len(self.jobs) < most and (run := self._next()) is not None:
            broken = run.needs & self.failed.keys()
            if broken:
                self._fail(run, self.failed[min(broken)][1])
            elif store.complete(run.experiment):  # by another process, meanwhile
                self.table.done(run.experiment)
            else:
                self._send(run)

    def _next(self) -> _Run | None:
        """Take the first run that waits for no other."""
        left = self.waiting.keys() | {run.experiment.key for run in self.jobs.values()}
        key = next((k for k, run in self.waiting.items() if not run.needs & left), None)
        return None if key is None else self.waiting.pop(key)

    def _send(self, run: _Run) -> None:
        experiment = run.experiment
        run.attempt += 1
        order = Order(
            (experiment.key, run.attempt),
            pickle.dumps(experiment),
            [store.pack(stage) for stage in experiment.stages],
            self.options,
            code(),
            self.every,
        )
        self.jobs[self.remote.remote(order, self.mailbox)] = run

    def _read_mail(self) -> None:
        """Show how far runs are, and store the checkpoints that came."""
        mail = {}
        with suppress(self.ray.exceptions.RayError):  # it is slow, or begins again elsewhere
            mail = self.ray.get(self.mailbox.take.remote(), timeout=SECONDS_TO_STOP)
        runs = {(run.experiment.key, run.attempt): run for run in self.jobs.values()}
        for name in mail.keys() & runs.keys():
            (node, *told), files = mail[name]
            run = runs[name]
            for at, packed in files.items():
                stage = run.experiment.stages[at]
                if not store.busy(stage.key):
                    _keep(stage, packed)
                    run.lost = 0
            if not run.node:
                self.table.start(run.experiment, node)
                run.node = node
            self.table.round(run.experiment, *told)

    def _ready(self, seconds: float) -> list[Any]:
        """Return a job that has ended, or after some time none."""
        if not self.jobs:
            return []
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=seconds)
        return list(ready)

    def _take_back(self, job: Any) -> None:
        """Store a run that has ended; one that was lost waits again."""
        run = self.jobs[job]
        try:
            packed, error = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as broken:  # not even our code could be run
            raise UnfitNode(f"a machine of the cluster cannot run fedlib: {broken}") from broken
        except Exception as lost:  # the worker, its machine, the network
            self._read_mail()  # its last checkpoint may lie there
            self._lose(run, lost)
            return
        finally:
            del self.jobs[job]
        if isinstance(error, UnfitNode):
            raise error
        _keep_all(run.experiment, packed)
        if error is None:
            self.table.done(run.experiment)
        else:
            self._fail(run, error)

    def _lose(self, run: _Run, why: Exception) -> None:
        run.lost += 1
        said = f"{type(why).__name__}: {why}".splitlines()[0]
        if run.lost < ATTEMPTS:
            self.table.wait(run.experiment, f"lost, to be trained on elsewhere ({said})")
            run.node = ""
            self.waiting = {run.experiment.key: run, **self.waiting}
        else:
            text = f"its worker was lost {run.lost} times, at last: {said}; what came back is kept"
            self._fail(run, WorkerDied(text))

    def _fail(self, run: _Run, error: BaseException) -> None:
        self.failed[run.experiment.key] = run.experiment, error
        self.table.fail(run.experiment, error)

    def _stop(self) -> None:
        """Stop the cluster, and store where its runs are."""
        for job in self.jobs:
            self.ray.cancel(job, recursive=False)
        end = time.monotonic() + SECONDS_TO_STOP
        while self.jobs and time.monotonic() < end:
            for job in self._ready(1.0):
                run = self.jobs.pop(job)
                with suppress(self.ray.exceptions.RayError, StoreError):
                    _keep_all(run.experiment, self.ray.get(job)[0])
        for job in self.jobs:
            self.ray.cancel(job, force=True)


def device_for(asked: str, resources: Mapping[str, float]) -> str:
    """Return "cpu" or "cuda": "auto" is a GPU if the cluster has one, and a run sees one only."""
    kind = asked.partition(":")[0]
    one_of("device", kind, ("auto", "cpu", "cuda"))
    return kind if kind != "auto" else "cuda" if resources.get("GPU") else "cpu"


def _keep_all(experiment: Experiment, packed: Sequence[Files]) -> None:
    for stage, files in zip(experiment.stages, packed, strict=bool(packed)):
        _keep(stage, files)


def _keep(stage: Experiment, files: Files) -> None:
    """Store what came back of a run, unless there is all of it."""
    if files:
        with store.claimed(stage):
            if not store.complete(stage):
                store.unpack(stage, files)


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise NoCluster('a Ray address needs Ray: pip install "fedlib[ray]"') from error
    try:
        if not ray.is_initialized():
            _knock(address)
            terminated = signal.getsignal(signal.SIGTERM)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            if callable(terminated):  # with Ray's own, `kill` aborts before anything is stored
                signal.signal(signal.SIGTERM, terminated)
    except ImportError as error:
        raise NoCluster(f'{address!r} needs more of Ray: pip install "ray[client]"') from error
    except OSError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray


def _knock(address: str) -> None:
    """OSError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_STOP).close()
