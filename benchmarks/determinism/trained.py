"""Train all subjects in several ways, each way with its own processes and folder.

python -m benchmarks.determinism.trained FOLDER WAY...
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pandas as pd
import torch

from benchmarks.determinism.subjects import ROUNDS, Subject, subjects
from fedlib import paths
from fedlib.engine import State
from fedrun import Experiment, run, store

EVERYBODY = 10**6
HALF = ROUNDS // 2


@dataclass(frozen=True)
class Way:
    """How to train, in ways that are not part of an experiment's key.

    Attributes:
        chunk, threads, device: as of ``run``.
        backwards: whether the subjects are trained in the opposite order.
        stop: whether every run is interrupted half way.
        into: the way whose folder it trains into, and which thus continues its runs. Default: its
            own.
        environment: further variables of its process.
    """

    chunk: int | None = None
    threads: int = 1
    device: str = "cpu"
    backwards: bool = False
    stop: bool = False
    into: str = ""
    environment: dict[str, str] = field(default_factory=dict)


CHUNKS = {f"chunk {n}": Way(chunk=n) for n in (1, 2, 3)} | {"chunk all": Way(chunk=EVERYBODY)}
THREADS = "threads 2"
_OTHER = {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
_OFTEN = {"FEDLIB_CHECKPOINT_SECONDS": "-1"}
# Threads that wait actively for each other are very slow if other processes need the cores.
_TWO = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
WAYS: dict[str, Way] = {
    "reference": Way(),
    "again": Way(),
    "elsewhere": Way(backwards=True, environment=_OTHER),
    "interrupted": Way(stop=True, into="resumed", environment=_OFTEN),
    "resumed": Way(environment=_OFTEN),
    **CHUNKS,
    THREADS: Way(threads=2, environment=_TWO),
}
# Ways of one group share a process; the groups of a line run one after another.
_LINES: list[list[list[str]]] = [
    [["reference", "again"]],
    [["interrupted"], ["resumed"]],
    [["elsewhere"]],
    [["chunk 1", "chunk 2"]],
    [["chunk 3", "chunk all"]],
    [[THREADS]],
]


def train_all(root: Path, jobs: int) -> None:
    """Train everything in every way, ``jobs`` processes at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(_line, root, line) for line in _LINES]:
            done.result()


def trained(root: Path, way: str, experiment: Experiment) -> tuple[State, pd.DataFrame]:
    """Return the final state and the metrics of an experiment that was trained in a way."""
    with runs_in(root / way):
        kept = store.RunFolder(experiment).restore()
    assert kept is not None and kept.completed == experiment.rounds, (way, experiment)
    return kept.state, kept.metrics.to_pandas()


@contextmanager
def runs_in(folder: Path) -> Iterator[None]:
    """Store runs in a folder, without exported results."""
    where = {"FEDLIB_RUNS": str(folder), "FEDLIB_RESULTS": str(folder / "none")}
    with mock.patch.dict(os.environ, where):
        yield


def _line(root: Path, groups: list[list[str]]) -> None:
    for group in groups:
        environment = {**os.environ, "PYTHONHASHSEED": "0", **WAYS[group[0]].environment}
        call = [sys.executable, "-m", __name__, str(root), *group]
        subprocess.run(call, cwd=paths.ROOT, env=environment, check=True)


def train_one(subject: Subject, way: Way) -> None:
    """Train one subject; a way that stops leaves its last stage half done."""

    def half_way(completed: int, _: int, loss: float) -> None:
        if completed == HALF and math.isfinite(loss):  # a resumed run reports NaN at its start
            raise KeyboardInterrupt

    experiment = subject.experiment
    watch = half_way if way.stop else False
    while True:
        try:
            run(experiment, device=way.device, chunk=way.chunk, progress=watch)
            break
        except KeyboardInterrupt:
            if store.RunFolder(experiment).restore() is not None:
                break
    kept = store.RunFolder(experiment).restore()
    assert kept is not None and kept.completed == (HALF if way.stop else experiment.rounds)


def main(arguments: list[str]) -> None:
    """Train all subjects in the given ways."""
    root, *names = arguments
    for name in names:
        way = WAYS[name]
        torch.set_num_threads(way.threads)
        with runs_in(Path(root) / (way.into or name)):
            for subject in subjects()[:: -1 if way.backwards else 1]:
                train_one(subject, way)


if __name__ == "__main__":
    main(sys.argv[1:])
