"""Pin torch to AVX2, so that all processors of one maker with AVX2 compute the same bits.

torch, oneDNN and MKL choose kernels by the processor, and kernels round differently; MKL does so
between processors of Intel and AMD even when it is pinned. Kernels are chosen when the first one is
needed, so ``pin`` must be called before that. It does not import torch.

Importing ``companion`` pins torch, and so do notebooks, campaigns, tests and benchmarks. The
library alone does not, as wider instructions are faster, unless ``FEDLIB_PIN=1`` is set.
``FEDLIB_PIN=0`` prevents pinning by the companion as well.
"""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # exists on Linux only
VARIABLE = "FEDLIB_PIN"
GRAPHS = "FEDLIB_GRAPHS"
PINS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
"""The environment variables of torch, oneDNN and MKL, and the values that pin them."""
_BRANCH, _OFF = 1, 1  # constants of MKL: query the branch; no branch is set
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of glibc's mallopt
_LARGEST_MMAP_THRESHOLD = 2**25


def pin() -> bool:
    """Pin torch to AVX2 in this process and its child processes; return whether it is pinned.

    This has no effect if torch has already computed something, if the processor is not known to
    have AVX2, or with ``FEDLIB_PIN=0``. Variables that are set already are not changed. Child
    processes inherit the environment.
    """
    missing = PINS.keys() - os.environ.keys()
    if missing and os.environ.get(VARIABLE) != "0" and has_avx2():
        os.environ.update({name: PINS[name] for name in missing})
        if "torch" in sys.modules and not _taken():
            for name in missing:
                del os.environ[name]
    return pinned()


def pinned() -> bool:
    """Return whether torch is pinned to AVX2 in this process, by ``pin`` or by the user."""
    asked = all(os.environ.get(name) == value for name, value in PINS.items())
    return asked and has_avx2() and ("torch" not in sys.modules or _taken())


def unpinned_environment() -> dict[str, str]:
    """Return an environment for a process in which torch is not pinned."""
    kept = {name: value for name, value in os.environ.items() if name not in PINS}
    return {**kept, VARIABLE: "0"}


def captures_graphs() -> bool:
    """Return whether FEDLIB_GRAPHS=1 asks for training steps as CUDA graphs."""
    return os.environ.get(GRAPHS) == "1"


def _taken() -> bool:
    """Return whether torch, which is imported already, uses the kernels of the environment.

    They are chosen when torch first computes. oneDNN's choice cannot be queried, but ATen chooses
    no later.
    """
    import torch

    held = torch.backends.cpu.get_cpu_capability() == "AVX2"
    with suppress(AttributeError, OSError):  # a build of torch without MKL
        mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return held and mkl.mkl_serv_cbwr_get(_BRANCH) != _OFF
    return held


def has_avx2() -> bool:
    """Return whether this is an x86-64 processor with AVX2; False on other systems than Linux."""
    return _lists("avx2")


def has_wider() -> bool:
    """Return whether this processor has AVX-512, which torch uses unless it is pinned."""
    return _lists("avx512f")


def _lists(flag: str) -> bool:
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):
        return flag in CPUINFO.read_text("utf-8").split()
    return False


def model() -> str:
    """Return the model name of the processor."""
    with suppress(OSError, StopIteration):
        lines = (line.partition(":") for line in CPUINFO.read_text("utf-8").splitlines())
        return next(model.strip() for name, _, model in lines if name.strip() == "model name")
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Keep freed memory in this process instead of returning it to the system. glibc only.

    Every training step frees its gradients and allocates as much again. If the memory is returned
    to the system in between, every page must be cleared, which can double the time of a wide layer.
    Only processes that do nothing but train call this: the command line and workers of sweeps.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
