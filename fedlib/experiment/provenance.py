"""Where and with what a run was made."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fedlib import paths
from fedlib.engine import State
from fedlib.engine.rounds import chunk_of, numbers
from fedlib.federation import Federation
from fedlib.memory import peak_mib
from fedlib.models import Leaves


def provenance(fed: Federation, segments: list[dict[str, Any]], state: State) -> dict[str, Any]:
    """Return commit, versions, device, time, memory, and the segments of an interrupted run.

    The peak is the process's: of several runs in one process, the largest so far. ``client_mib`` is
    what a client holds of the final ``state``: all that is shared, and its own.
    """
    cuda = fed.device.type == "cuda"
    return {
        **_made_with(fed),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "threads": torch.get_num_threads(),
        "seconds": round(sum(s["seconds"] for s in segments), 1),
        "peak_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20 if cuda else peak_mib()),
        "client_mib": round((_bytes(state.shared) + _bytes(state.local) / fed.clients) / 2**20, 4),
        "data": fed.source,
        "clients": fed.clients,
        "parameters": fed.net.parameters(),
        "segments": segments,
    }


def _bytes(leaves: Leaves) -> int:
    return sum(t.numel() * t.element_size() for t in leaves.values())


def segment(
    fed: Federation, start: int, end: int, seconds: float, chunk: int | None, state: State
) -> dict[str, Any]:
    """Return what trained the rounds ``start`` to ``end``: commit, versions, device, time.

    Chunk and threads too, on which the last bits depend; by default the chunk depends on how large
    the ``state`` is.
    """
    how = {
        "chunk": chunk_of(fed, chunk, numbers(state)),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
    }
    return {"rounds": [start, end], **_made_with(fed), **how}


@cache
def commit() -> str:
    """Return the commit as it was when this process first trained: the code that it runs."""
    call = ["git", "-C", str(paths.ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        said = subprocess.run(call, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def _made_with(fed: Federation) -> dict[str, str]:
    cuda = fed.device.type == "cuda"
    device = torch.cuda.get_device_name(fed.device) if cuda else platform.machine()
    try:
        own = version("fedlib")
    except PackageNotFoundError:
        own = "not installed"
    return {"commit": commit(), "torch": torch.__version__, "fedlib": own, "device": device}
