"""How much more two processes get done than one: runs, not rounds, are what a CPU plays at once."""

import multiprocessing
import time
from typing import Any

import pandas as pd
import torch

from benchmarks.cases import Case
from fedlib import processor

ONE, TWO = "one process", "two processes"


def measure(case: Case, rounds: int, repeat: int) -> pd.DataFrame:
    """Return one row per repetition and way: the seconds in which every process plays its rounds.

    Each process has one thread. All wait for each other before they start the clock.
    """
    rows = []
    for repetition in range(repeat):
        order = (ONE, TWO) if repetition % 2 else (TWO, ONE)
        rows += [(repetition, way, seconds(case, rounds, 1 + (way == TWO))) for way in order]
    return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])


def gain(frame: pd.DataFrame) -> float:
    """Return the median over repetitions of two processes' throughput over one's."""
    wide = frame.pivot(index="repetition", columns="way", values="seconds")
    return float((2 * wide[ONE] / wide[TWO]).median())


def seconds(case: Case, rounds: int, processes: int) -> float:
    """Return how long the slowest of some processes takes for its rounds, start-up aside."""
    spawn = multiprocessing.get_context("spawn")
    barrier, took = spawn.Barrier(processes), spawn.Queue()
    workers = [
        spawn.Process(target=_work, args=(case, rounds, barrier, took)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    slowest = max(took.get() for _ in workers)
    for worker in workers:
        worker.join()
    return slowest


def _work(case: Case, rounds: int, barrier: Any, took: Any) -> None:
    torch.set_num_threads(1)
    processor.keep_freed_memory()
    play = case.plays(("engine",), torch.device("cpu"))["engine"]
    play()
    barrier.wait()
    begin = time.perf_counter()
    for _ in range(rounds):
        play()
    took.put(time.perf_counter() - begin)
