"""Spawned processes, for measurements that the history of this process would change."""

import multiprocessing
import platform
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch


def pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes with one thread each."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,))


def call(act: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a new process; return its result."""
    with pool(1) as one:
        return one.submit(act, *args).result()


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB.

    Linux passes ``ru_maxrss`` of a large process on to the processes that it starts, but not VmHWM.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text("utf-8").splitlines()
        return float(next(n.split()[1] for n in lines if n.startswith("VmHWM:"))) / 2**10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if platform.system() == "Darwin" else 2**10)
