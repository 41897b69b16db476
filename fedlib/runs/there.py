"""What a machine of a cluster does: it trains a run in a store of its own, and tells how far it is.

Everything goes through Ray: machines need no common folder. A checkpoint goes to the driver's
mailbox when it is written, the whole run is what the task returns.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

import fedlib
from fedlib.runs import Experiment, run_with_state, store
from fedlib.runs.local import loaded, sendable

Files = dict[str, bytes]
Told = tuple[str, int, int, float]
SECONDS_BETWEEN_MESSAGES = 1.0
FOLDER = "fedlib-runs-"


class UnfitNode(RuntimeError):
    """A machine of the cluster cannot train what the others train."""


class Interrupted(RuntimeError):
    """A run was stopped by who asked for it; its last whole round came back."""


class Order(NamedTuple):
    """A run to be trained: pickled, with what is stored of its stages, and how to train it.

    ``code`` is what the driver has, ``every`` the seconds between checkpoints, as text.
    """

    name: tuple[str, int]
    experiment: bytes
    packed: list[Files]
    options: dict[str, Any]
    code: dict[str, str]
    every: str


class Mailbox:
    """Keeps the last that every run has told, and its checkpoint, until the driver takes them."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], Told] = {}
        self._files: dict[tuple[str, int], dict[int, Files]] = {}

    def post(self, name: tuple[str, int], told: Told, files: dict[int, Files]) -> None:
        """Keep how far a run is, and the files of those of its stages that have changed."""
        self._told[name] = told
        self._files.setdefault(name, {}).update(files)

    def take(self) -> dict[tuple[str, int], tuple[Told, dict[int, Files]]]:
        """Return what has come since the last time."""
        taken = {name: (told, self._files[name]) for name, told in self._told.items()}
        self._told, self._files = {}, {}
        return taken


def train(order: Order, mailbox: Any) -> tuple[list[Files], Exception | None]:
    """Train a run; return the files of every stage, and what went wrong.

    Where the run is cancelled, its last whole round comes back with Interrupted.
    """
    node = socket.gethostname()
    if code() != order.code:
        return [], UnfitNode(f"{node} has other code: {code()}, and here is {order.code}")
    torch.set_num_threads(1)
    hear_cancel()
    stages: list[Experiment] = []
    error: Exception | None = None
    with _own_store(order.every):
        try:
            experiment: Experiment = loaded(lambda: pickle.loads(order.experiment))
            stages = experiment.stages
            for stage, files in zip(stages, order.packed, strict=True):
                store.unpack(stage, files)
            reporter = _Reporter(order.name, node, stages, mailbox)
            run_with_state(experiment, progress=reporter, **order.options)
        except KeyboardInterrupt:
            error = Interrupted(f"on {node}")
        except Exception as caught:
            error = sendable(caught)
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


class _Reporter:
    """Tells the mailbox how far a run is, and hands it every new checkpoint."""

    def __init__(
        self, name: tuple[str, int], node: str, stages: list[Experiment], mailbox: Any
    ) -> None:
        self._name, self._node, self._mailbox = name, node, mailbox
        self._stages, self._last = stages, 0.0
        self._seen = [_changed(stage) for stage in stages]

    def __call__(self, done: int, total: int, loss: float) -> None:
        begins, now = loss != loss, time.monotonic()
        if begins or now - self._last > SECONDS_BETWEEN_MESSAGES:
            told = (self._node, done, total, loss)
            self._mailbox.post.remote(self._name, told, self._new_files())
            self._last = now

    def _new_files(self) -> dict[int, Files]:
        before, self._seen = self._seen, [_changed(stage) for stage in self._stages]
        pairs = enumerate(zip(before, self._seen, strict=True))
        return {at: store.pack(self._stages[at]) for at, (old, new) in pairs if old != new}


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
    lock = place / f"{FOLDER}{uuid.uuid4().hex}.lock"
    own = {"FEDLIB_RUNS": str(lock.with_suffix("")), "FEDLIB_CHECKPOINT_SECONDS": every}
    before = {name: os.environ.get(name) for name in own}
    with FileLock(lock):  # the system lets go of it when this process is killed
        os.environ |= own
        try:
            yield
        finally:
            _delete(lock)
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _delete(lock: Path) -> None:
    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    lock.unlink(missing_ok=True)
