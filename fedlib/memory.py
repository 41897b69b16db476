"""The memory of this process: that it keeps what it frees."""

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt
_LARGEST_MMAP_THRESHOLD = 2**25


@cache
def keep_freed() -> None:
    """Let this process keep the memory that it frees, where its C library can.

    A step of training frees its gradients and asks for as much again. Given back to the system in
    between, every page must be cleared anew, which can double the time of a wide layer.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
