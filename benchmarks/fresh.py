"""Fresh processes: spawned, for what a process that has done something else cannot measure."""

import multiprocessing
import platform
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch


def pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes of one thread each."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,))


def call(act: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own."""
    with pool(1) as one:
        return one.submit(act, *args).result()


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB; it never falls.

    Linux hands ``ru_maxrss`` down to the processes that a large one starts; VmHWM it does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text("utf-8").splitlines()
        return float(next(n.split()[1] for n in lines if n.startswith("VmHWM:"))) / 2**10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if platform.system() == "Darwin" else 2**10)
