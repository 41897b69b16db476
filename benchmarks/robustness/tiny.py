"""Runs of a second and a small data set, and what must be the same of them in any case."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from fedlib import data as datasets
from fedlib import paths
from fedlib.algorithms import FedAvg, FedMix, Local, Mixture
from fedlib.optim import adam
from fedrun import Experiment, run, store, tiny

TASK = tiny.task
STEP = {"batch_size": 5, "client": adam(0.05)}
MIX = Experiment(
    TASK, FedMix(experts=2, server=adam(0.01)), rounds=5, cohort=3, seed=1, evaluate_every=2
)
BEST = Experiment(TASK, FedAvg(**STEP), rounds=5, cohort=4, evaluate_every=1, select="best")
ALONE = replace(BEST, algorithm=Local(**STEP), rounds=4, cohort=3)
TUNED = replace(ALONE, algorithm=Local(batch_size=5), rounds=3, first_stage=BEST)
GATED = Mixture(batch_size=5, epochs=4)
MIXED = Experiment(TASK, GATED, rounds=3, cohort=3, first_stage=BEST, local_stage=ALONE)
RUNS = {
    "FedMix": MIX,
    "FedAvg, best state": BEST,
    "Local, best state": ALONE,
    "Local after FedAvg": TUNED,
    "Mixture after FedAvg beside Local": MIXED,
}
NAME = "mnist_sample"
PICTURES = {"train": 300, "test": 60}

Bits = tuple[bytes, dict[str, tuple[str, tuple[int, ...], bytes]]]


@contextmanager
def home(folder: Path) -> Iterator[Path]:
    """Keep runs, results and decoded data below a folder, and store every round.

    The commit is replaced, because results of uncommitted code could not be exported.
    """
    said = {f"FEDLIB_{n.upper()}": str(folder / n) for n in ("runs", "results", "cache")}
    said |= {"FEDLIB_CHECKPOINT_SECONDS": "-1", "FEDLIB_QUIET": "1"}
    commit = patch("fedrun.provenance.commit", lambda: "none, to be thrown away")
    with patch.dict(os.environ, said), commit:
        yield folder


def play(experiment: Experiment) -> None:
    """Run an experiment on one thread of the CPU, without progress."""
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
    """Return the names of temporary and half-written files below a folder."""
    return [p.name for p in folder.rglob("*") if p.suffix in (".tmp", ".partial")]


def stored() -> dict[str, Any]:
    """Return the provenance of every finished run, by key."""
    return {p.parent.name: p.read_bytes() for p in paths.runs().glob(f"*/{store.PROVENANCE}")}


def warm(folder: Path) -> None:
    """Import in this process what its children will need."""
    with home(folder):
        for experiment in RUNS.values():
            play(experiment)


@contextmanager
def data(folder: Path) -> Iterator[Path]:
    """Write a small data set of random pictures, which $FEDLIB_DATA points to within a block."""
    target = folder / NAME
    target.mkdir()
    rng = np.random.default_rng(0)
    for split, n in PICTURES.items():
        pictures = [{"bytes": _png(rng.integers(256, size=(28, 28)))} for _ in range(n)]
        table = pa.table({"image": pictures, "label": rng.integers(10, size=n)})
        pq.write_table(table, target / f"{split}-00000-of-00001.parquet")
    with patch.dict(os.environ, FEDLIB_DATA=str(folder)):
        yield target


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
    return file.getvalue()


def opened() -> str:
    """Open the data set, decoding it if necessary; return its fingerprint."""
    opened = datasets.load(NAME)
    assert len(opened.train) == PICTURES["train"]
    return opened.fingerprint


def renew(source: Path) -> None:
    """Change the times of the files of a data set, so that the decoded files are older."""
    for path in source.iterdir():
        path.touch()
