"""The same bits on every processor of one maker with AVX2: torch is held to that instruction set.

torch, oneDNN and MKL choose their kernels by the processor, and kernels round differently. MKL does
so between Intel's and AMD's processors even when it is held to AVX2. The choice is made when the
first kernel is needed, so ``pin`` comes before it, and does not import torch by itself.

The companion pins when it is imported, and with it notebooks, campaigns, tests and benchmarks. The
library leaves torch as it is, which is faster on a processor with wider instructions, unless
``FEDLIB_PIN=1`` asks for it. ``FEDLIB_PIN=0`` leaves torch as it is in the companion, too.
"""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # of Linux
VARIABLE = "FEDLIB_PIN"
SHARED = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
"""What torch, oneDNN and MKL read from the environment, and what is put there."""
_BRANCH, _OFF = 1, 1  # MKL's numbers: which branch is asked for; its kernels are free
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt
_LARGEST_MMAP_THRESHOLD = 2**25


def pin() -> bool:
    """Hold torch to AVX2 in this process and those that it starts; return whether it is held.

    Nothing is set where torch has computed already, where the processor lacks AVX2 or is not known
    to have it, and where ``FEDLIB_PIN=0`` frees it. What a user has set stays as it is. Processes
    that this one starts inherit the environment, and are held with it.
    """
    missing = SHARED.keys() - os.environ.keys()
    if missing and os.environ.get(VARIABLE) != "0" and has_avx2():
        os.environ.update({name: SHARED[name] for name in missing})
        if "torch" in sys.modules and not _taken():
            for name in missing:
                del os.environ[name]
    return pinned()


def pinned() -> bool:
    """Return whether torch is held to AVX2 in this process, by whomever."""
    asked = all(os.environ.get(name) == value for name, value in SHARED.items())
    return asked and has_avx2() and ("torch" not in sys.modules or _taken())


def free() -> dict[str, str]:
    """Return the environment of a process in which torch is not held to AVX2."""
    kept = {name: value for name, value in os.environ.items() if name not in SHARED}
    return {**kept, VARIABLE: "0"}


def _taken() -> bool:
    """Whether torch, which is imported already, has chosen by what the environment holds now.

    It asks when it first computes. oneDNN cannot be asked, but ATen chooses no later than it.
    """
    import torch

    held = torch.backends.cpu.get_cpu_capability() == "AVX2"
    with suppress(AttributeError, OSError):  # a torch without MKL
        mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return held and mkl.mkl_serv_cbwr_get(_BRANCH) != _OFF
    return held


def has_avx2() -> bool:
    """Return whether this is an x86-64 processor that lists AVX2; only Linux lists it."""
    return _lists("avx2")


def has_wider() -> bool:
    """Return whether this processor has AVX-512, with which a torch that is free computes."""
    return _lists("avx512f")


def _lists(flag: str) -> bool:
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):
        return flag in CPUINFO.read_text("utf-8").split()
    return False


def model() -> str:
    """Return the model of the processor."""
    with suppress(OSError, StopIteration):
        lines = (line.partition(":") for line in CPUINFO.read_text("utf-8").splitlines())
        return next(model.strip() for name, _, model in lines if name.strip() == "model name")
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for good, where its C library can.

    A step of training frees its gradients and asks for as much again. Given back to the system in
    between, every page must be cleared, which can double the time of a wide layer. That is the
    business of the command line and of a sweep's workers, whose processes do nothing but train.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
