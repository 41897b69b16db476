"""Sweeps over a Ray cluster: the driver (``Cluster``) and the remote task (``train_here``).

All files are sent through Ray, so machines need no shared folder. A task receives the stored files
of its run, sends new checkpoints to the mailbox of the driver, and returns the files of the run.
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
from fedrun.workers import Ended, WorkerDied, Workers, trained

ATTEMPTS = 3  # attempts at a run without a new checkpoint in between
AHEAD = 2  # submitted runs for each that can be trained now, so that no machine is idle
SECONDS_BETWEEN_CHECKPOINTS = "300"
SECONDS_BETWEEN_MESSAGES = 1.0
SECONDS_FOR_MAIL = 20.0
Files = dict[str, bytes]
Mail = tuple[tuple[Any, ...], dict[int, Files]]


class NoCluster(RuntimeError):
    """Ray is not installed, or there is no cluster at the address."""


class UnfitNode(RuntimeError):
    """A machine of the cluster has other code or cannot run it."""


class Mailbox:
    """An actor that keeps the latest progress and checkpoint of every run for the driver."""

    def __init__(self) -> None:
        self._mail: dict[str, Mail] = {}

    def post(self, key: str, progress: tuple[Any, ...], files: dict[int, Files]) -> None:
        """Keep the progress of a run, and the files of those of its stages that have changed."""
        _, before = self._mail.get(key, ((), {}))
        self._mail[key] = progress, {**before, **files}

    def take(self) -> dict[str, Mail]:
        """Return everything posted since the last call."""
        taken, self._mail = self._mail, {}
        return taken


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

    def __init__(self, address: str, options: dict[str, Any], tally: SweepProgress) -> None:
        self.ray = ray = connected(address)
        device = device_for(options["device"], ray.cluster_resources())
        super().__init__({**options, "device": device}, tally)
        self.jobs = dict[Any, Experiment]()
        self.lost = Counter[str]()  # lost attempts at a run since its last checkpoint
        self.unit = "GPU" if device == "cuda" else "CPU"
        self.every = os.environ.get("FEDLIB_CHECKPOINT_SECONDS") or SECONDS_BETWEEN_CHECKPOINTS
        # Ray would retry from the files sent at first; `_lose` retries from the last checkpoint.
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
        """Show the progress of all runs, and store their new checkpoints."""
        mail: dict[str, Mail] = {}
        with suppress(self.ray.exceptions.RayError):  # the mailbox is slow, or is restarted
            mail = self.ray.get(self.mailbox.take.remote(), timeout=SECONDS_FOR_MAIL)
        for experiment in [e for e in self.jobs.values() if e.key in mail]:
            (node, done, total, loss), files = mail[experiment.key]
            for at, packed in files.items():
                RunFolder(experiment.stages[at]).unpack(packed)
                self.lost[experiment.key] = 0
            self.tally.round(experiment.key, done, total, loss, f"on {node}")

    def _take_back(self, job: Any) -> Ended | None:
        """Store a run that has ended, or submit it again if it was lost."""
        experiment = self.jobs[job]
        try:
            packed, error = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as broken:  # UnfitNode, or an import failed
            raise UnfitNode(f"a machine of the cluster cannot run fedlib: {broken}") from broken
        except Exception as why:  # the worker, its machine, the network
            self._read_mail()  # its last checkpoint may be there
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
        text = f"its worker was lost {ATTEMPTS} times, last by {reason}; checkpoints are stored"
        return experiment, WorkerDied(text)


def connected(address: str) -> Any:
    """Return the module ray, connected to a cluster; raise NoCluster if that is impossible."""
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
    """Return "cpu" or "cuda"; "auto" is "cuda" if the cluster has a GPU. A run sees only one."""
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
    """Train a run on a machine of the cluster.

    Args:
        experiment: the run.
        packed: the files of every stage in the store of the driver.
        options: keyword arguments of ``run``.
        expected: ``code()`` of the driver.
        held: whether torch is pinned to AVX2 in the driver.
        every: seconds between checkpoints, as text.
        mailbox: the ``Mailbox`` actor.

    Returns:
        the files of every stage, and the error or None.
    """
    node, stages = socket.gethostname(), experiment.stages
    if code() != expected:
        raise UnfitNode(f"{node} has other code: {code()}, the driver has {expected}")
    if held:
        pin()
    torch.set_num_threads(1)
    keep_freed_memory()
    # A private folder; if this process is killed, it is deleted with other temporary files.
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
    """Return a hash of the sources and the version of torch, which determine all numbers."""
    sources = hashlib.sha256()
    for package in (Path(fedlib.__file__).parent, Path(__file__).parent):
        for path in sorted(package.rglob("*.py")):
            sources.update(path.relative_to(package.parent).as_posix().encode() + path.read_bytes())
    return {"fedlib": sources.hexdigest()[:12], "torch": torch.__version__.partition("+")[0]}


def _changed(stage: Experiment) -> int:
    """Return the time of the last change of a run folder, 0 if there is none."""
    with suppress(FileNotFoundError):
        return folder(stage).stat().st_mtime_ns
    return 0
