"""Train every algorithm in several ways and report whether results have the same bits.

    python -m benchmarks.determinism [--device auto] [--jobs 2] [--folder DIR] [--keep]

The report goes to ``build/DETERMINISM.md``; ``--keep`` writes it next to the benchmarks instead.
Ends with status 1 if a promise of same bits is broken.
"""

import argparse
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from benchmarks.__main__ import machine, there
from benchmarks.determinism.deviation import Deviation, compare
from benchmarks.determinism.played import growth, in_memory
from benchmarks.determinism.report import BITS, ROUNDED, Findings, text
from benchmarks.determinism.subjects import subjects
from benchmarks.determinism.trained import (
    GPU,
    GPU_AGAIN,
    REFERENCE,
    train_all,
    trained,
)
from fedlib import paths

# Whose difference is followed over rounds: a net of each kind, and a mixture.
GROWING = (
    "FedAvg, dense",
    "FedMix, dense",
    "FedAvg, wide dense",
    "FedAvg, convolutional",
    "FedAvg, text",
)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    asked = _asked(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(asked.folder or scratch), asked.device, asked.jobs)
    said = text(found)
    folder = Path(__file__).parent.parent if asked.keep else paths.build()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "DETERMINISM.md").write_text(said, "utf-8")
    print(f"{said}\nwritten to {folder / 'DETERMINISM.md'}")
    sys.exit(any(found.broken().values()))


def measure(root: Path, device: torch.device, jobs: int) -> Findings:
    """Return all that there is to find on this machine; runs are kept below ``root``."""
    train_all(root, device, jobs)
    found = Findings(subjects(), machine(device))
    found.deviations = {way: _compared(root, REFERENCE, way) for way in (*BITS, *ROUNDED)}
    if device.type == "cuda":
        found.deviations[GPU] = _compared(root, REFERENCE, GPU)
        found.deviations[GPU_AGAIN] = _compared(root, GPU, GPU_AGAIN)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, torch.set_num_threads, (1,)) as pool:
        titles = [s.title for s in found.subjects]
        played = pool.map(partial(in_memory, root), found.subjects)
        growing = [s for s in found.subjects if s.title in GROWING]
        grown = pool.map(growth, growing)
        found.played = dict(zip(titles, played, strict=True))
        found.grown = dict(zip([s.title for s in growing], grown, strict=True))
    return found


def _compared(root: Path, one: str, other: str) -> dict[str, Deviation]:
    """Return how far two ways are apart, by title."""
    found = {}
    for subject in subjects():
        ends = [trained(root, way, subject.experiment) for way in (one, other)]
        mine, theirs = ((state.flat(), metrics) for state, metrics in ends)
        found[subject.title] = compare(mine, theirs)
    return found


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="write into benchmarks/")
    parser.add_argument("--device", type=there, default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--folder", help="keep the runs here; what is there is not trained again")
    asked = parser.parse_args(arguments)
    if asked.jobs < 1:
        parser.error("--jobs must be >= 1")
    return asked


if __name__ == "__main__":
    main()
