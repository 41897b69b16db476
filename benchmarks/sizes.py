"""What a task costs to build: time and memory go with the examples, however unequal clients are."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd

from benchmarks.memory import peak_of_this_process
from fedlib import data
from fedlib.models import MLP
from fedlib.partition import LocalHoldout, NaturalPartition
from fedlib.tasks import Task

EACH = 5
POPULATIONS = {f"{n:,} clients of {EACH}": (n, EACH, 0) for n in (10_000, 50_000, 200_000)}
LEAST, _, MOST = POPULATIONS
POPULATIONS["10,000 clients of 2, one of 50,000"] = 10_000, 2, 50_000
COLUMNS = ["repetition", "way", "seconds", "peak_mib", "once_mib", "examples"]


def measure(repeat: int) -> pd.DataFrame:
    """Return one row per repetition and population: what a fresh process needs to build a task.

    ``once_mib`` is what its tables of clients x the largest client once held by themselves.
    """
    rows, spawn = [], multiprocessing.get_context("spawn")
    for repetition in range(repeat):
        for way, population in POPULATIONS.items():
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                rows.append((repetition, way, *pool.submit(build, *population).result()))
    return pd.DataFrame(rows, columns=COLUMNS)


def build(clients: int, each: int, large: int) -> tuple[float, float, float, int]:
    """Return seconds, peak MiB, MiB of the tables as they were, and examples of a population.

    ``num_clients`` hold ``each`` examples of four numbers, and one more holds ``large``.
    """
    rng, total = np.random.default_rng(0), clients * each + large
    who = np.minimum(np.arange(total) // each, clients)
    x, y = rng.normal(size=(total, 4)).astype(np.float32), rng.integers(2, size=total)
    data.add("population", (x, y, {"who": who}))
    begin = time.perf_counter()
    fed = Task(
        "population", NaturalPartition("who"), MLP((4,)), LocalHoldout(test=0.3, validation=0.1)
    ).build(0)
    seconds = time.perf_counter() - begin
    tables = fed.train, fed.validation, fed.test
    once = sum(8 * fed.num_clients * int(table.sizes.max()) for table in tables) / 2**20
    return seconds, peak_of_this_process(), once, total


def text(frame: pd.DataFrame) -> str:
    """Return a table of the populations and the slope from the smallest to the largest as text."""
    mean = frame.groupby("way", sort=False)[COLUMNS[2:]].median()
    lines = ["building a task: seconds, peak MiB, and MiB of the tables as they once were alone"]
    for way, at in mean.iterrows():
        numbers = f"{at['seconds']:>9.2f}{at['peak_mib']:>9.0f}{at['once_mib']:>9.1f}"
        lines.append(f"   {way:<34}{numbers}")
    more = mean.loc[MOST] - mean.loc[LEAST]
    micro, size = more["seconds"] * 1e6, more["peak_mib"] * 2**20
    slope = f"{micro / more['examples']:.1f} us, {size / more['examples']:.0f} bytes"
    lines.append(f"   each further example: {slope}")
    return "\n".join(lines)
