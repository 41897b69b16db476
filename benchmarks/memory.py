"""Peak memory, each time of a fresh process: it never falls within one."""

import multiprocessing
import platform
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.cases import Case


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
    return peak_of_this_process()


def peak_of_this_process() -> float:
    """Return the peak resident memory of this process in MiB.

    Linux hands ``ru_maxrss`` down to the processes that a large one starts; VmHWM it does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text("utf-8").splitlines()
        return float(next(n.split()[1] for n in lines if n.startswith("VmHWM:"))) / 2**10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if platform.system() == "Darwin" else 2**10)
