"""Peak memory, each time of a fresh process: it never falls within one."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

from benchmarks.cases import Case, federation
from fedlib import memory


def peak_mib(case: Case, way: str) -> float:
    """Return the peak resident MiB of a process that plays one round in one way, data included."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(peak_here, case, way, torch.get_num_threads()).result()


def peak_here(case: Case, way: str, threads: int) -> float:
    """Play a round in this process and return its peak resident MiB so far."""
    torch.set_num_threads(threads)
    case.way(way, federation(case))()
    return memory.peak_mib()
