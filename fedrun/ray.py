"""Runs over a Ray cluster: what the driver does, and what a machine does that trains a run.

Everything goes through Ray: machines need no common folder. What this store holds of a run goes
along, a checkpoint comes to the driver's mailbox when it is written, the whole run is what the task
returns.
"""

import hashlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

import fedlib
from fedlib.parallel import picklable_error
from fedlib.processor import keep_freed_memory, pin, pinned
from fedlib.progress import SweepProgress
from fedlib.values import check_choice
from fedrun import Experiment
from fedrun.store import RunFolder, folder
from fedrun.sweeps import Ended, WorkerDied, Workers, trained

ATTEMPTS = 3  # of a run of which no further checkpoint comes back
AHEAD = 2  # runs given out for every one that can be trained now
SECONDS_BETWEEN_CHECKPOINTS = "300"
SECONDS_BETWEEN_MESSAGES = 1.0
SECONDS_FOR_MAIL = 20.0
Files = dict[str, bytes]
Mail = tuple[tuple[Any, ...], dict[int, Files]]


class NoCluster(RuntimeError):
    """There is no Ray, or no cluster at its address."""


class UnfitNode(RuntimeError):
    """A machine of the cluster cannot train what the others train."""


class Mailbox:
    """Keeps how far every run last was, and its checkpoint, until the driver takes them."""

    def __init__(self) -> None:
        self._mail: dict[str, Mail] = {}

    def post(self, key: str, progress: tuple[Any, ...], files: dict[int, Files]) -> None:
        """Keep how far a run is, and the files of those of its stages that have changed."""
        _, before = self._mail.get(key, ((), {}))
        self._mail[key] = progress, {**before, **files}

    def take(self) -> dict[str, Mail]:
        """Return what has come since the last time."""
        taken, self._mail = self._mail, {}
        return taken


class Cluster(Workers):
    """The machines at a Ray address, which need the same fedlib, and the data.

    A few more runs are given out than fit. Every five minutes (or $FEDLIB_CHECKPOINT_SECONDS)
    their checkpoints come back. A run whose worker or machine is lost goes on from there elsewhere,
    and fails if that happens three times with nothing new in between. NoCluster if it cannot be
    reached, UnfitNode if a machine has other code, or cannot run it.
    """

    def __init__(self, address: str, options: dict[str, Any], tally: SweepProgress) -> None:
        self.ray = ray = connected(address)
        device = device_for(options["device"], ray.cluster_resources())
        super().__init__({**options, "device": device}, tally)
        self.jobs = dict[Any, Experiment]()
        self.lost = Counter[str]()  # attempts at a run since something came back
        self.unit = "GPU" if device == "cuda" else "CPU"
        self.every = os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or SECONDS_BETWEEN_CHECKPOINTS
        # Ray would begin again from what was sent first; retries are ours, from what came back.
        needs = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "max_retries": 0}
        self.remote = ray.remote(train_here).options(**needs)
        node = ray.get_runtime_context().get_node_id()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        how = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        self.mailbox = ray.remote(Mailbox).options(**how).remote()

    def slots(self) -> int:
        return AHEAD * max(1, int(self.ray.cluster_resources().get(self.unit, 0)))

    def give(self, experiment: Experiment) -> None:
        packed = [RunFolder(stage).pack() for stage in experiment.stages]
        how = code(), pinned(), self.every
        order = (experiment, packed, self.options, *how, self.mailbox)
        self.jobs[self.remote.remote(*order)] = experiment

    def ended(self) -> list[Ended]:
        self._read_mail()
        if not self.jobs:
            return []
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=1.0)
        return [end for job in ready if (end := self._take_back(job)) is not None]

    def stop(self) -> None:
        for job in self.jobs:
            self.ray.cancel(job, force=True)
        self.ray.kill(self.mailbox)

    def _read_mail(self) -> None:
        """Show how far runs are, and store the checkpoints that came."""
        mail: dict[str, Mail] = {}
        with suppress(self.ray.exceptions.RayError):  # it is slow, or begins again elsewhere
            mail = self.ray.get(self.mailbox.take.remote(), timeout=SECONDS_FOR_MAIL)
        for experiment in [e for e in self.jobs.values() if e.key in mail]:
            (node, done, total, loss), files = mail[experiment.key]
            for at, packed in files.items():
                RunFolder(experiment.stages[at]).unpack(packed)
                self.lost[experiment.key] = 0
            self.tally.round(experiment.key, done, total, loss, f"on {node}")

    def _take_back(self, job: Any) -> Ended | None:
        """Store a run that has ended; one that was lost is given out again."""
        experiment = self.jobs[job]
        try:
            packed, error = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as broken:  # ours, or not even that could be run
            raise UnfitNode(f"a machine of the cluster cannot run fedlib: {broken}") from broken
        except Exception as why:  # the worker, its machine, the network
            self._read_mail()  # its last checkpoint may lie there
            return self._lose(experiment, why)
        finally:
            del self.jobs[job]
        for stage, files in zip(experiment.stages, packed, strict=True):
            RunFolder(stage).unpack(files)
        return experiment, error

    def _lose(self, experiment: Experiment, why: Exception) -> Ended | None:
        self.lost[experiment.key] += 1
        if self.lost[experiment.key] < ATTEMPTS:
            self.give(experiment)
            return None
        reason = f"{type(why).__name__}: {why}".splitlines()[0]
        text = f"its worker was lost {ATTEMPTS} times, at last: {reason}; what came back is kept"
        return experiment, WorkerDied(text)


def connected(address: str) -> Any:
    """Return Ray, connected to a cluster; NoCluster if there is none."""
    try:
        import ray

        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError as error:
        raise NoCluster('a Ray address needs Ray: pip install "fedlib[ray]"') from error
    except OSError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray


def device_for(asked: str, resources: Mapping[str, float]) -> str:
    """Return "cpu" or "cuda": "auto" is a GPU if the cluster has one, and a run sees one only."""
    kind = asked.partition(":")[0]
    check_choice("device", kind, ("auto", "cpu", "cuda"))
    return kind if kind != "auto" else "cuda" if resources.get("GPU") else "cpu"


def train_here(
    experiment: Experiment,
    packed: Sequence[Files],
    options: dict[str, Any],
    expected: dict[str, str],
    held: bool,
    every: str,
    mailbox: Any,
) -> tuple[list[Files], Any]:
    """Train a run on a machine; return the files of every stage, and what went wrong.

    ``packed`` is what the driver's store holds of the stages, ``expected`` its ``code``, ``held``
    whether its torch is pinned, ``every`` the seconds between checkpoints, as text.
    """
    node, stages = socket.gethostname(), experiment.stages
    if code() != expected:
        raise UnfitNode(f"{node} has other code: {code()}, and here is {expected}")
    if held:
        pin()
    torch.set_num_threads(1)
    keep_freed_memory()
    # A folder that nobody else can have made or can write; what a killed process leaves in it goes
    # with the temporary files of its machine.
    home = TemporaryDirectory(prefix=f"fedlib-{experiment.key}-", ignore_cleanup_errors=True)
    variables = {"FEDLIB_RUNS": home.name, "FEDLIB_CHECKPOINT_SECONDS": every}
    with home, patch.dict(os.environ, variables):
        for stage, files in zip(stages, packed, strict=True):
            RunFolder(stage).unpack(files)
        seen, last = [_changed(stage) for stage in stages], 0.0

        def tell(*progress: Any) -> None:
            nonlocal seen, last
            if time.monotonic() - last > SECONDS_BETWEEN_MESSAGES:
                now = [_changed(stage) for stage in stages]
                new = {i: RunFolder(stages[i]).pack() for i in range(len(now)) if now[i] != seen[i]}
                mailbox.post.remote(experiment.key, (node, *progress), new)
                seen, last = now, time.monotonic()

        error = trained(experiment, tell, options)
        if error is not None:
            error.add_note(f"on {node}")
        return [RunFolder(stage).pack() for stage in stages], error and picklable_error(error)


def code() -> dict[str, str]:
    """Return what decides about a run's numbers: a hash of fedlib's sources, torch's version."""
    package, sources = Path(fedlib.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return {"fedlib": sources.hexdigest()[:12], "torch": torch.__version__.partition("+")[0]}


def _changed(stage: Experiment) -> int:
    """Return when a file of a run folder got its name; 0 if there is none."""
    with suppress(FileNotFoundError):
        return folder(stage).stat().st_mtime_ns
    return 0
