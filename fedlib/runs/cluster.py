"""Runs over a Ray cluster: what the driver does, and what a machine does that trains a run.

Everything goes through Ray: machines need no common folder. What this store holds of a run goes
along, a checkpoint comes to the driver's mailbox when it is written, the whole run is what the task
returns.
"""

import hashlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import fedlib
from fedlib.progress import Table
from fedlib.runs import Experiment, StoreError, store
from fedlib.runs.sweep import SECONDS_TO_STOP, Ended, Pool, WorkerDied, trained
from fedlib.values import one_of

ATTEMPTS = 3  # of a run of which no further checkpoint comes back
AHEAD = 2  # runs handed out for every one that can be trained now
SECONDS_BETWEEN_CHECKPOINTS = "300"
SECONDS_BETWEEN_MESSAGES = 1.0
FOLDER = "fedlib-runs-"
Files = dict[str, bytes]


class NoCluster(RuntimeError):
    """There is no Ray, or no cluster at its address."""


class UnfitNode(RuntimeError):
    """A machine of the cluster cannot train what the others train."""


class Interrupted(RuntimeError):
    """A run was stopped by who asked for it; its last whole round came back."""


class Mailbox:
    """Keeps the last that every run has told, and its checkpoint, until the driver takes them."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[Any, ...]] = {}
        self._files: dict[str, dict[int, Files]] = {}

    def post(self, name: str, told: tuple[Any, ...], files: dict[int, Files]) -> None:
        """Keep how far a run is, and the files of those of its stages that have changed."""
        self._told[name] = told
        self._files.setdefault(name, {}).update(files)

    def take(self) -> dict[str, tuple[tuple[Any, ...], dict[int, Files]]]:
        """Return what has come since the last time."""
        taken = {name: (told, self._files[name]) for name, told in self._told.items()}
        self._told, self._files = {}, {}
        return taken


@dataclass
class _Run:
    """A run that has been handed out: ``lost`` are the attempts since something came back."""

    experiment: Experiment
    name: str
    lost: int = 0
    started: bool = False


class Cluster(Pool):
    """The machines at a Ray address, which need the same fedlib, and the data.

    A few more runs are handed out than fit. Every five minutes (or $FEDLIB_CHECKPOINT_SECONDS)
    their checkpoints come back. A run whose worker or machine is lost goes on from there elsewhere,
    and fails if that happens three times with nothing new in between. NoCluster if it cannot be
    reached, UnfitNode if one of its machines has other code.
    """

    def __init__(self, address: str, options: dict[str, Any], table: Table) -> None:
        self.ray = ray = connected(address)
        device = device_for(options["device"], ray.cluster_resources())
        super().__init__({**options, "device": device}, table)
        self.jobs = dict[Any, _Run]()
        self.unit = "GPU" if device == "cuda" else "CPU"
        self.every = os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or SECONDS_BETWEEN_CHECKPOINTS
        # Ray would begin again from what was sent first; retries are ours, from what came back.
        needs = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "max_retries": 0}
        self.remote = ray.remote(train).options(**needs)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        how = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        self.mailbox = ray.remote(Mailbox).options(**how).remote()

    def slots(self) -> int:
        return AHEAD * max(1, int(self.ray.cluster_resources().get(self.unit, 0)))

    def give(self, experiment: Experiment, lost: int = 0) -> None:
        run = _Run(experiment, f"{experiment.key}-{uuid.uuid4().hex}", lost)
        packed = [store.pack(stage) for stage in experiment.stages]
        order = (run.name, experiment, packed, self.options, code(), self.every, self.mailbox)
        self.jobs[self.remote.remote(*order)] = run

    def ended(self) -> list[Ended]:
        self._read_mail()
        return [end for job in self._ready() if (end := self._take_back(job)) is not None]

    def stop(self) -> None:
        """Stop the cluster, and store where its runs are."""
        for job in self.jobs:
            self.ray.cancel(job, recursive=False)
        end = time.monotonic() + SECONDS_TO_STOP
        while self.jobs and time.monotonic() < end:
            for job in self._ready():
                run = self.jobs.pop(job)
                with suppress(self.ray.exceptions.RayError, StoreError):
                    _keep_all(run.experiment, self.ray.get(job)[0])
        for job in self.jobs:
            self.ray.cancel(job, force=True)
        self.ray.kill(self.mailbox)

    def _ready(self) -> list[Any]:
        """Return a job that has ended, or after a second none."""
        if not self.jobs:
            return []
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=1.0)
        return list(ready)

    def _read_mail(self) -> None:
        """Show how far runs are, and store the checkpoints that came."""
        mail = {}
        with suppress(self.ray.exceptions.RayError):  # it is slow, or begins again elsewhere
            mail = self.ray.get(self.mailbox.take.remote(), timeout=SECONDS_TO_STOP)
        for run in [run for run in self.jobs.values() if run.name in mail]:
            (node, *told), files = mail[run.name]
            for at, packed in files.items():
                stage = run.experiment.stages[at]
                if not store.busy(stage.key):
                    _keep(stage, packed)
                    run.lost = 0
            if not run.started:
                self.table.start(run.experiment.key, run.experiment.rounds, node)
                run.started = True
            self.table.round(run.experiment.key, *told)

    def _take_back(self, job: Any) -> Ended | None:
        """Store a run that has ended; one that was lost is handed out again."""
        run = self.jobs[job]
        try:
            packed, error = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as broken:  # not even our code could be run
            raise UnfitNode(f"a machine of the cluster cannot run fedlib: {broken}") from broken
        except Exception as lost:  # the worker, its machine, the network
            self._read_mail()  # its last checkpoint may lie there
            return self._lose(run, lost)
        finally:
            del self.jobs[job]
        if isinstance(error, UnfitNode):
            raise error
        _keep_all(run.experiment, packed)
        return run.experiment, error

    def _lose(self, run: _Run, why: Exception) -> Ended | None:
        lost, said = run.lost + 1, f"{type(why).__name__}: {why}".splitlines()[0]
        if lost < ATTEMPTS:
            self.table.wait(run.experiment.key, f"lost, to be trained on elsewhere ({said})")
            self.give(run.experiment, lost)
            return None
        text = f"its worker was lost {lost} times, at last: {said}; what came back is kept"
        return run.experiment, WorkerDied(text)


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


def connected(address: str) -> Any:
    """Return Ray, connected to a cluster; NoCluster if there is none."""
    try:
        import ray
    except ImportError as error:
        raise NoCluster('a Ray address needs Ray: pip install "fedlib[ray]"') from error
    try:
        if not ray.is_initialized():
            host, _, port = address.rpartition(":")
            if host and port.isdigit():  # Ray itself would knock for minutes
                socket.create_connection((host, int(port)), timeout=SECONDS_TO_STOP).close()
            terminated = signal.getsignal(signal.SIGTERM)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            if callable(terminated):  # with Ray's own, `kill` aborts before anything is stored
                signal.signal(signal.SIGTERM, terminated)
    except OSError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray


def train(
    name: str,
    experiment: Experiment,
    packed: Sequence[Files],
    options: dict[str, Any],
    expected: dict[str, str],
    every: str,
    mailbox: Any,
) -> tuple[list[Files], Exception | None]:
    """Train a run on a machine; return the files of every stage, and what went wrong.

    ``packed`` is what the driver's store holds of the stages, ``expected`` its ``code``, ``every``
    the seconds between checkpoints, as text. Where the run is cancelled, its last whole round comes
    back with Interrupted.
    """
    node = socket.gethostname()
    if code() != expected:
        return [], UnfitNode(f"{node} has other code: {code()}, and here is {expected}")
    torch.set_num_threads(1)
    hear_cancel()
    stages = experiment.stages
    seen = [0] * len(stages)
    with _own_store(every):

        def tell(*told: Any) -> None:
            now = [_changed(stage) for stage in stages]
            new = {i: store.pack(stages[i]) for i in range(len(now)) if now[i] != seen[i]}
            seen[:] = now
            mailbox.post.remote(name, (node, *told), new)

        error: Exception | None
        try:
            for at, (stage, files) in enumerate(zip(stages, packed, strict=True)):
                store.unpack(stage, files)
                seen[at] = _changed(stage)
            error = trained(experiment, tell, SECONDS_BETWEEN_MESSAGES, options)
        except KeyboardInterrupt:
            error = Interrupted("by the driver")
        except StoreError as full:
            error = full
        if error is not None:
            error.add_note(f"on {node}")
        return [store.pack(stage) for stage in stages], error


def hear_cancel() -> None:
    """Let this process be cancelled: Ray interrupts it, which does nothing where ^C is ignored.

    A shell makes whatever it starts in the background ignore ^C, a cluster's nodes and all that
    they start too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def code() -> dict[str, str]:
    """Return what decides about a run's numbers: a hash of fedlib's sources, torch's version."""
    package, own = Path(fedlib.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        own.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return {"fedlib": own.hexdigest()[:12], "torch": torch.__version__.partition("+")[0]}


def _changed(stage: Experiment) -> int:
    """Return when a file of a run folder got its name; 0 if there is none."""
    with suppress(FileNotFoundError):
        return store.folder(stage).stat().st_mtime_ns
    return 0


@contextmanager
def _own_store(every: str) -> Iterator[None]:
    """Have an empty store for one run, and delete those that killed processes left here."""
    place = Path(tempfile.gettempdir())
    for lock in place.glob(f"{FOLDER}*.lock"):
        with suppress(OSError), FileLock(lock, timeout=0):
            _delete(lock)
    lock, before = place / f"{FOLDER}{uuid.uuid4().hex}.lock", dict(os.environ)
    with FileLock(lock):  # the system lets go of it when this process is killed
        os.environ |= {"FEDLIB_RUNS": str(lock.with_suffix("")), "FEDLIB_CHECKPOINT_SECONDS": every}
        try:
            yield
        finally:
            _delete(lock)
            os.environ.clear()
            os.environ.update(before)


def _delete(lock: Path) -> None:
    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    lock.unlink(missing_ok=True)
