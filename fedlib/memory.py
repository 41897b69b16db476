"""The memory of this process: how much it has held, and that it keeps what it frees."""

import ctypes
import platform
import resource
from functools import cache
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt
_LARGEST_MMAP_THRESHOLD = 2**25


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB.

    Linux hands ``ru_maxrss`` down to the processes that a large one starts; VmHWM it does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return float(next(n.split()[1] for n in lines if n.startswith("VmHWM:"))) / 2**10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if platform.system() == "Darwin" else 2**10)


@cache
def keep_freed() -> bool:
    """Let this process keep the memory that it frees; return whether its C library can.

    A step of training frees its gradients and asks for as much again. Given back to the system in
    between, every page must be cleared anew, which can double the time of a wide layer.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    )
