"""Where and with what a run was made."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedlib import paths
from fedlib.engine import State
from fedlib.engine.costs import chunk_of, numbers
from fedlib.federation import Federation
from fedlib.memory import peak_mib
from fedlib.models import Params

DIRTY = "-dirty"
CPUINFO = Path("/proc/cpuinfo")  # of Linux
_MODEL = ("model name", "cpu model", "cpu")  # x86 and arm, mips, power


def provenance(fed: Federation, segments: list[dict[str, Any]], state: State) -> dict[str, Any]:
    """Return commit, versions, processor, time, memory, and the segments of an interrupted run.

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


def _bytes(leaves: Params) -> int:
    return sum(t.numel() * t.element_size() for t in leaves.values())


def segment(
    fed: Federation, start: int, end: int, seconds: float, chunk: int | None, state: State
) -> dict[str, Any]:
    """Return what trained the rounds ``start`` to ``end``: commit, versions, processor, time.

    Chunk and threads too, on which the last bits depend; by default the chunk depends on how large
    the ``state`` is.
    """
    how = {
        "chunk": chunk_of(fed, chunk, numbers(state)),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
    }
    return {"rounds": [start, end], **_made_with(fed), **how}


def stages_of(earlier: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return by key the commits that made first stages, and the stages before those.

    ``earlier`` are their keys and provenances.
    """
    found: dict[str, list[str]] = {}
    for key, said in earlier:
        for part in _segments(said):
            found |= part.get("stages", {})
        found[key] = _commits(said)
    return found


def dirty(said: Mapping[str, Any]) -> list[str]:
    """Return the commits of a run, and of the stages that it builds on, that do not hold the code.

    They are those of a checkout with uncommitted changes.
    """
    stages = [part.get("stages", {}) for part in _segments(said)]
    made = {*_commits(said), *(c for part in stages for some in part.values() for c in some)}
    return sorted(c for c in made if c.endswith(DIRTY))


def _commits(said: Mapping[str, Any]) -> list[str]:
    return sorted({str(part["commit"]) for part in (said, *_segments(said)) if "commit" in part})


def _segments(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(said.get("segments", ()))


@cache
def commit() -> str:
    """Return the commit as it was when this process first trained: the code that it runs.

    It ends with "-dirty" if files of the package are changed or new; other files, results for one,
    may differ. An installed copy is of no commit, whatever checkout it lies in or is asked from.
    """
    if not paths.IN_CHECKOUT:
        return "unknown"
    said = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--", "fedlib")
    return (said + (DIRTY if changed else "")) if said else "unknown"


def _git(*words: str) -> str:
    call = ["git", "--no-optional-locks", "-C", str(paths.ROOT), *words]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


@cache
def processor() -> str:
    """Return the model of the processor, on which the last bits of sums depend."""
    with suppress(OSError):
        for line in CPUINFO.read_text(errors="replace").splitlines():
            name, _, model = line.partition(":")
            if name.strip().lower() in _MODEL and model.strip():
                return model.strip()
    return platform.processor() or platform.machine() or "unknown"


def instructions() -> str:
    """Return the vector instructions that torch uses here, "AVX2" for one."""
    return str(torch.backends.cpu.get_cpu_capability())


def _made_with(fed: Federation) -> dict[str, str]:
    cuda = fed.device.type == "cuda"
    device = torch.cuda.get_device_name(fed.device) if cuda else platform.machine()
    try:
        own = version("fedlib")
    except PackageNotFoundError:
        own = "not installed"
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "fedlib": own,
        "device": device,
        "processor": processor(),
        "instructions": instructions(),
    }
