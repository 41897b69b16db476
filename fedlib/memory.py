"""The most memory that this process has held."""

from __future__ import annotations

import platform
import resource
from pathlib import Path


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
