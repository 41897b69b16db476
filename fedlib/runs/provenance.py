"""Where and with what a run was made."""

import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedlib import paths
from fedlib.algorithms.fedavg import nbytes
from fedlib.engine import State
from fedlib.engine.costs import chunk_of, numbers
from fedlib.federation import Federation

DIRTY = "-dirty"
CPUINFO = Path("/proc/cpuinfo")  # of Linux


def provenance(fed: Federation, segments: list[dict[str, Any]], state: State) -> dict[str, Any]:
    """Return commit, versions, processor, time, and the segments of an interrupted run.

    ``client_mib`` is what a client holds of the final ``state``: all that is shared, and its own.
    """
    held = nbytes(state.shared) + nbytes(state.local) / fed.clients
    return {
        **_made_with(fed),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "threads": torch.get_num_threads(),
        "seconds": round(sum(s["seconds"] for s in segments), 1),
        "client_mib": round(held / 2**20, 4),
        "data": fed.source,
        "segments": segments,
    }


def segment(
    fed: Federation, start: int, end: int, seconds: float, chunk: int | None, state: State
) -> dict[str, Any]:
    """Return what trained the rounds ``start`` to ``end``: commit, versions, processor, time.

    Chunk and threads too, on which the last bits depend; by default the chunk depends on how large
    the ``state`` is.
    """
    how = {"chunk": chunk_of(fed, chunk, numbers(state)), "threads": torch.get_num_threads()}
    return {"rounds": [start, end], **_made_with(fed), **how, "seconds": round(seconds, 1)}


def stages_of(earlier: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return by key the commits that made first stages, and the stages before those.

    ``earlier`` are their keys and provenances.
    """
    found: dict[str, list[str]] = {}
    for key, made in earlier:
        found |= {**_stages(made), key: sorted(_commits(made))}
    return found


def dirty(made: Mapping[str, Any]) -> list[str]:
    """Return the commits of a run, and of the stages that it builds on, that do not hold the code.

    They are those of a checkout with uncommitted changes.
    """
    commits = _commits(made).union(*_stages(made).values())
    return sorted(c for c in commits if c.endswith(DIRTY))


def _commits(made: Mapping[str, Any]) -> set[str]:
    return {str(part["commit"]) for part in (made, *made.get("segments", ())) if "commit" in part}


def _stages(made: Mapping[str, Any]) -> dict[str, list[str]]:
    parts = (part.get("stages", {}) for part in made.get("segments", ()))
    return {key: commits for part in parts for key, commits in part.items()}


@cache
def commit() -> str:
    """Return the commit as it was when this process first trained: the code that it runs.

    It ends with "-dirty" if files of the package are changed or new; other files, results for one,
    may differ. An installed copy is of no commit, whatever checkout it lies in or is asked from.
    """
    name = _git("describe", "--always", "--abbrev=12") if paths.IN_CHECKOUT else ""
    if not name:
        return "unknown"
    return name + (DIRTY if _git("status", "--porcelain", "--", "fedlib") else "")


def _git(*words: str) -> str:
    call = ["git", "--no-optional-locks", "-C", str(paths.ROOT), *words]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


@cache
def processor() -> str:
    """Return the model of the processor, on which the last bits of sums depend."""
    with suppress(OSError, StopIteration):
        lines = (line.partition(":") for line in CPUINFO.read_text().splitlines())
        return next(model.strip() for name, _, model in lines if name.strip() == "model name")
    return platform.processor() or platform.machine()


def _made_with(fed: Federation) -> dict[str, str]:
    cuda = fed.device.type == "cuda"
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(fed.device) if cuda else platform.machine(),
        "processor": processor(),
        # The vector instructions that torch uses here, "AVX2" for one.
        "instructions": str(torch.backends.cpu.get_cpu_capability()),
    }
