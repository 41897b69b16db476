"""Sweeps over a Ray cluster: the driver (``Cluster``) and the remote task (``train_here``).

All files are sent through Ray, so machines need no shared folder. A task receives the stored files
of its run, puts new checkpoints into a queue for the driver, and returns the files of the run.
"""

import hashlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

import fedlib
from fedlib.parallel import picklable_error
from fedlib.processor import keep_freed_memory, pin, pinned
from fedlib.progress import SweepProgress
from fedlib.tasks import device_name
from fedrun import Experiment
from fedrun.store import RunFolder
from fedrun.train import CLUSTER_CHECKPOINT_SECONDS, checkpoint_interval
from fedrun.workers import Ended, WorkerDied, Workers, trained

ATTEMPTS = 3  # attempts at a run without a new checkpoint in between
AHEAD = 2  # submitted runs for each that can be trained now, so that no machine is idle
SECONDS_BETWEEN_MESSAGES = 1.0
Files = dict[str, bytes]


class NoCluster(RuntimeError):
    """Ray is not installed, or there is no cluster at the address."""


class UnfitNode(RuntimeError):
    """A machine of the cluster has other code or cannot run it."""


class Cluster(Workers):
    """The machines of a Ray cluster, which must have the same version of fedlib and the data.

    Checkpoints are sent back every five minutes, or every $FEDLIB_CHECKPOINT_SECONDS seconds. A run
    whose worker or machine is lost continues from there on another one, and fails after three
    losses without a new checkpoint.

    Args:
        address: "auto" or "HOST:PORT".
        options: keyword arguments of ``run``.
        tally: receives the progress of the runs.

    Raises:
        NoCluster: if Ray is not installed or the cluster cannot be reached.
        UnfitNode: if a machine has other code or cannot run it.
    """

    stored = "the last checkpoint that they sent"

    def __init__(self, address: str, options: dict[str, Any], tally: SweepProgress) -> None:
        self.ray = ray = connected(address)
        device = device_for(options.get("device", "auto"), ray.cluster_resources())
        super().__init__({**options, "device": device}, tally)
        self.jobs, self.lost = dict[Any, Experiment](), Counter[str]()
        self.unit = "GPU" if device == "cuda" else "CPU"
        # Ray would retry from the files sent at first; `_take_back` does from the last checkpoint.
        needs = {"num_cpus": 1, "num_gpus": int(device == "cuda"), "max_retries": 0}
        self.remote = ray.remote(train_here).options(**needs)
        how = {"num_cpus": 0, "max_restarts": -1}
        self.queue = import_module("ray.util.queue").Queue(actor_options=how)

    def slots(self) -> int:
        return AHEAD * max(1, int(self.ray.cluster_resources().get(self.unit, 0)))

    def give(self, experiment: Experiment) -> None:
        every = str(checkpoint_interval(CLUSTER_CHECKPOINT_SECONDS))
        packed = [RunFolder(stage).pack() for stage in experiment.stages]
        driver = {"code": code(), "pinned": pinned(), "every": every, "queue": self.queue}
        self.jobs[self.remote.remote(experiment, packed, self.options, driver)] = experiment

    def ended(self) -> list[Ended]:
        self._read_messages()
        if not self.jobs:
            return []
        ready, _ = self.ray.wait([*self.jobs], num_returns=1, timeout=1.0)
        return [end for job in ready if (end := self._take_back(job)) is not None]

    def stop(self) -> None:
        self._read_messages()  # checkpoints of interrupted runs
        for job in self.jobs:
            self.ray.cancel(job, force=True)
        self.queue.shutdown(force=True)

    def _read_messages(self) -> None:
        """Show the progress of all runs, and store their new checkpoints."""
        messages: list[Any] = []
        with suppress(self.ray.exceptions.RayError):  # the actor of the queue is restarted
            messages = self.queue.get_nowait_batch(self.queue.qsize())
        running = {e.key: e for e in self.jobs.values()}
        for key, (node, done, total, loss), files in messages:
            if (experiment := running.get(key)) is not None:
                for at, packed in files.items():
                    RunFolder(experiment.stages[at]).unpack(packed)
                    self.lost[key] = 0
                self.tally.round(key, done, total, loss, f"on {node}")

    def _take_back(self, job: Any) -> Ended | None:
        """Store a run that has ended, or submit it again if its worker or machine was lost."""
        experiment = self.jobs[job]
        try:
            packed, error = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as broken:  # UnfitNode, or an import failed
            raise UnfitNode(f"a machine of the cluster cannot run fedlib: {broken}") from broken
        except Exception as why:  # the worker, its machine, the network
            self._read_messages()  # its last checkpoint may be there
            self.lost[experiment.key] += 1
            if self.lost[experiment.key] < ATTEMPTS:
                self.give(experiment)
                return None
            reason = f"{type(why).__name__}: {why}".splitlines()[0]
            text = f"its worker was lost {ATTEMPTS} times, last by {reason}; checkpoints are stored"
            return experiment, WorkerDied(text)
        finally:
            del self.jobs[job]
        for stage, files in zip(experiment.stages, packed, strict=True):
            RunFolder(stage).unpack(files)
        return experiment, error


def connected(address: str) -> Any:
    """Return the module ray, connected to a cluster; raise NoCluster if that is impossible."""
    try:
        import ray

        if not ray.is_initialized():
            host, _, port = address.rpartition(":")
            if port.isdigit() and "/" not in host:  # Ray itself would try for many minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError as error:
        raise NoCluster('a Ray address needs Ray: pip install "fedlib[ray]"') from error
    except OSError as error:
        raise NoCluster(f"no Ray cluster answers at {address!r}: {error}") from error
    return ray


def device_for(asked: str, resources: Mapping[str, float]) -> str:
    """Return "cpu" or "cuda"; "auto" is "cuda" if the cluster has a GPU. A run sees only one."""
    kind = device_name(asked).partition(":")[0]
    return kind if kind != "auto" else "cuda" if resources.get("GPU") else "cpu"


def train_here(
    experiment: Experiment, packed: list[Files], options: dict[str, Any], driver: dict[str, Any]
) -> tuple[list[Files], Any]:
    """Train a run on a machine of the cluster.

    Args:
        experiment: the run.
        packed: the files of every stage in the store of the driver.
        options: keyword arguments of ``run``.
        driver: of the driver: its ``code()``, whether torch is ``pinned`` to AVX2, seconds between
            checkpoints (``every``, as text), and the ``queue`` of messages.

    Returns:
        the files of every stage, and the error or None.
    """
    node = socket.gethostname()
    if code() != driver["code"]:
        raise UnfitNode(f"{node} has other code: {code()}, the driver has {driver['code']}")
    if driver["pinned"]:
        pin()
    torch.set_num_threads(1)
    keep_freed_memory()
    # A private folder; if this process is killed, it is deleted with other temporary files.
    home = TemporaryDirectory(prefix=f"fedlib-{experiment.key}-", ignore_cleanup_errors=True)
    variables = {"FEDLIB_RUNS": home.name, "FEDLIB_CHECKPOINT_SECONDS": driver["every"]}
    with home, patch.dict(os.environ, variables):
        stages = [RunFolder(stage) for stage in experiment.stages]
        for stage, files in zip(stages, packed, strict=True):
            stage.unpack(files)
        sent, last = [stage.saved for stage in stages], 0.0

        def tell(*progress: Any) -> None:
            nonlocal sent, last
            if time.monotonic() - last > SECONDS_BETWEEN_MESSAGES:
                now = [stage.saved for stage in stages]
                new = {i: stages[i].pack() for i, at in enumerate(now) if at > sent[i]}
                with suppress(Exception):  # the actor of the queue is restarted
                    driver["queue"].put_nowait((experiment.key, (node, *progress), new))
                    sent = now
                last = time.monotonic()

        error = trained(experiment, tell, options)
        if error is not None:
            error.add_note(f"on {node}")
        return [stage.pack() for stage in stages], error and picklable_error(error)


def code() -> dict[str, str]:
    """Return a hash of the sources and the version of torch, which determine all numbers."""
    sources = hashlib.sha256()
    for package in (Path(fedlib.__file__).parent, Path(__file__).parent):
        for path in sorted(package.rglob("*.py")):
            sources.update(path.relative_to(package.parent).as_posix().encode() + path.read_bytes())
    return {"fedlib": sources.hexdigest()[:12], "torch": torch.__version__.partition("+")[0]}
