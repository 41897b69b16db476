"""Peak memory, each time of a fresh process: it never falls within one."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

from benchmarks.cases import Case
from fedlib import memory


def peak_mib(case: Case, way: str, device: torch.device) -> float:
    """Return the peak MiB of a process that plays one round in one way, data included.

    Resident memory on a CPU; on a GPU what torch has allocated there.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(peak_here, case, way, device, torch.get_num_threads()).result()


def peak_here(case: Case, way: str, device: torch.device, threads: int) -> float:
    """Play a round in this process and return its peak MiB so far."""
    torch.set_num_threads(threads)
    case.plays((way,), device)[way]()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return memory.peak_mib()
