"""Runs of a second or less, and what must be the same of them whatever happened."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedlib import paths
from fedlib.algorithms import FedAvg, FedMix, Local, Mixture
from fedlib.models import MLP
from fedlib.optim import adam
from fedlib.partition import Dirichlet, MatchedHoldout
from fedlib.tasks import Task
from fedrun import Experiment, run, store

TASK = Task(
    "digits",
    Dirichlet(clients=6, alpha=1.0, size=20),
    MLP(hidden=(8,)),
    MatchedHoldout(pool=100, validation=10, test=10),
)
MIX = Experiment(
    TASK, FedMix(experts=2, server=adam(0.01)), rounds=5, cohort=3, seed=1, evaluate_every=2
)
BEST = Experiment(
    TASK,
    FedAvg(batch_size=5, client=adam(0.05)),
    rounds=5,
    cohort=4,
    evaluate_every=1,
    select="best",
)
ALONE = replace(BEST, algorithm=Local(batch_size=5, client=adam(0.05)), rounds=4, cohort=3)
TUNED = replace(ALONE, algorithm=Local(batch_size=5), rounds=3, first_stage=BEST)
MIXED = Experiment(
    TASK, Mixture(batch_size=5), rounds=3, cohort=3, first_stage=BEST, local_stage=ALONE
)

RUNS = {
    "FedMix": MIX,
    "FedAvg, best state": BEST,
    "Local, best state": ALONE,
    "Local after FedAvg": TUNED,
    "Mixture after FedAvg beside Local": MIXED,
}

Bits = tuple[bytes, dict[str, tuple[str, tuple[int, ...], bytes]]]


@contextmanager
def home(folder: Path) -> Iterator[Path]:
    """Let runs, results and decoded data be kept below a folder, and every round be stored.

    Whatever the state of the checkout: results of uncommitted code could not be exported.
    """
    said = {f"FEDLIB_{n.upper()}": str(folder / n) for n in ("runs", "results", "cache")}
    said |= {"FEDLIB_CHECKPOINT_SECONDS": "-1", "FEDLIB_QUIET": "1"}
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        with patch("fedrun.provenance.commit", lambda: "none, to be thrown away"):
            yield folder
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name)
            else:
                os.environ[name] = text


def play(experiment: Experiment) -> None:
    """Run an experiment quietly, on one thread of the CPU."""
    torch.set_num_threads(1)
    run(experiment, device="cpu", progress=False)


def bits(experiment: Experiment) -> Bits:
    """Return the bytes of the stored metrics, and those of every tensor of the final state."""
    kept = store.RunFolder(experiment).restore()
    assert kept is not None and kept.completed >= experiment.fewest_rounds
    file = (store.folder(experiment) / store.METRICS).read_bytes()
    state = kept.state.flat()
    return file, {n: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for n, t in state.items()}


def all_bits(experiment: Experiment) -> dict[str, Bits]:
    """Return the bits of a run and of all stages before it."""
    return {stage.key: bits(stage) for stage in experiment.stages}


def litter(folder: Path) -> list[str]:
    """Return the names of temporary and half-written files that lie about."""
    return [p.name for p in folder.rglob("*") if p.suffix in (".tmp", ".partial")]


def stored() -> dict[str, Any]:
    """Return the provenance of every finished run, by key."""
    runs = paths.runs()
    done = sorted(runs.glob(f"*/{store.PROVENANCE}")) if runs.is_dir() else []
    return {p.parent.name: p.read_bytes() for p in done}


def warm(folder: Path) -> None:
    """Import in this process whatever its children will need, so that they need not."""
    with home(folder):
        for experiment in RUNS.values():
            play(experiment)
