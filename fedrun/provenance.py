"""Where and with what a run was made."""

import hashlib
import multiprocessing
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from fedlib import paths, processor
from fedlib.algorithms.fedavg import nbytes
from fedlib.engine import State
from fedlib.engine.costs import chunk_of, numbers
from fedlib.federation import Federation
from fedrun.files import raw

DIRTY, UNKNOWN = "-dirty", "unknown"
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # of the repository whose hook runs us
CPUS = {"x86_64", "AMD64", "aarch64", "arm64"}  # what ``device`` is where no GPU has trained


def of_run(
    fed: Federation, segments: list[dict[str, Any]], state: State, ending: State
) -> dict[str, Any]:
    """Return commit, versions, processor, cost, and the segments of an interrupted run.

    ``client_names`` are those of clients that have some, by id.
    ``client_mib`` is what a client holds of the last ``state``: all that is shared, and its own.
    ``state`` is the digest of the ``ending`` that a later stage begins with, ``seconds`` are wall
    time, and ``cpu_seconds`` what the process and its copies have computed.
    """
    client_bytes = nbytes(state.server_params) + nbytes(state.client_params) / fed.num_clients
    sums = {
        name: round(sum(s[name] for s in segments), 1)
        for name in ("seconds", "cpu_seconds")
        if all(name in s for s in segments)  # no CPU seconds: of an older version, or of a GPU
    }
    return {
        **_made_with(fed),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "threads": torch.get_num_threads(),
        **sums,
        "client_mib": round(client_bytes / 2**20, 4),
        "data": fed.source,
        "state": digest(ending),
        **({"client_names": [*fed.client_names]} if fed.client_names else {}),
        "segments": segments,
    }


def segment(
    fed: Federation, rounds: list[int], chunk: int | None, state: State, since: dict[str, float]
) -> dict[str, Any]:
    """Return what trained some rounds: commit, versions, processor, and the seconds ``since`` then.

    Chunk and threads too, on which the last bits depend; by default the chunk depends on how large
    the ``state`` is.
    """
    how = {"chunk": chunk_of(fed, chunk, numbers(state)), "threads": torch.get_num_threads()}
    spent = {name: round(now - since[name], 1) for name, now in clock().items()}
    if fed.device.type != "cpu":
        del spent["cpu_seconds"]  # what waits for a GPU is no cost of a CPU
    return {"rounds": rounds, **_made_with(fed), **how, **spent}


def clock() -> dict[str, float]:
    """Return the time, and what this process and its copies that have ended have computed so far.

    Both in seconds.
    """
    return {"seconds": time.monotonic(), "cpu_seconds": sum(os.times()[:4])}


def digest(state: State) -> str:
    """Return 16 hex digits that stand for all bits of a state, whatever the order of its leaves."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(state.flat().items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        sha256.update(raw(tensor).numpy().data)
    return sha256.hexdigest()[:16]


def began_with(made: Mapping[str, Any]) -> dict[str, str]:
    """Return by the keys of all stages before a run the digest of the state that each ended with.

    Empty for a first stage, and for a run that was trained before digests were noted.
    """
    return _of_stages(made, "began_with")


def following(earlier: Iterable[tuple[str, Mapping[str, Any], State]]) -> dict[str, Any]:
    """Return what a segment tells of the stages before it: by key their commits, and their ends.

    ``earlier`` are the keys, provenances and final states of the last ones.
    """
    stages, ends = dict[str, list[str]](), dict[str, str]()
    for key, made, ended in earlier:
        stages |= {**_of_stages(made, "stages"), key: sorted(_commits(made))}
        ends |= {**began_with(made), key: digest(ended)}
    return {"stages": stages, "began_with": ends} if stages else {}


def warn_of_both_kinds(every: Iterable[Mapping[str, Any]], stacklevel: int = 2) -> None:
    """Warn, in one line, if of some runs on a CPU some were pinned and some not.

    Runs of older versions do not say.
    """
    kinds = []
    for made in every:
        parts = (made, *made.get("segments", ()))
        kinds.append({part.get("pinned") for part in parts if part.get("device") in CPUS})
    free = sum(False in kind for kind in kinds)
    if free and any(True in kind for kind in kinds):
        told = f"{free} of {len(kinds)} runs were trained with the instructions that torch chose"
        why = "others pinned to AVX2: equal runs of both kinds differ by rounding"
        warnings.warn(f"{told}, {why} (FEDLIB_PIN=1 pins)", stacklevel=stacklevel + 1)


def dirty(made: Mapping[str, Any]) -> list[str]:
    """Return the commits of a run, and of the stages that it builds on, that do not hold the code.

    They are those of a checkout with uncommitted changes, and "unknown".
    """
    commits = _commits(made).union(*_of_stages(made, "stages").values())
    return sorted(c for c in commits if not committed(c))


def committed(commit: str) -> bool:
    """Return whether a commit is known, and held the code as it ran."""
    return commit != UNKNOWN and not commit.endswith(DIRTY)


def _commits(made: Mapping[str, Any]) -> set[str]:
    return {str(part["commit"]) for part in (made, *made.get("segments", ())) if "commit" in part}


def _of_stages(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the segments of a run tell of the stages before, by key."""
    parts = (part.get(name, {}) for part in made.get("segments", ()))
    return {key: of_stage for part in parts for key, of_stage in part.items()}


@cache
def commit() -> str:
    """Return the commit as it was when this process imported the library: the code that it runs.

    It ends with "-dirty" if files of the package are changed or new; other files, results for one,
    may differ. An installed copy is of no commit, whatever checkout it lies in or is asked from. It
    is "unknown" also where git cannot be asked, or refuses; a checkout then says why.
    """
    if not paths.IN_CHECKOUT:
        return UNKNOWN
    try:
        _git("ls-files", "--error-unmatch", "--", "fedlib")  # what it lies in may be of others
        name = _git("describe", "--always", "--abbrev=12")
        changes = _git("status", "--porcelain", "--untracked-files=normal", "--", "fedlib")
    except (OSError, subprocess.CalledProcessError) as error:
        why = " ".join(str(getattr(error, "stderr", None) or error).split())
        cloned = any((folder / ".git").exists() for folder in (paths.ROOT, *paths.ROOT.parents))
        if cloned and multiprocessing.parent_process() is None:
            now = "runs are stored, but results without a commit are not exported"
            warnings.warn(f"the commit of {paths.ROOT} is not known: {now}. {why}", stacklevel=2)
        return UNKNOWN
    return name + (DIRTY if changes else "")


def _git(*words: str) -> str:
    """Return what git says of the checkout; CalledProcessError if it refuses, OSError if lost."""
    call = ["git", "--no-optional-locks", "-C", str(paths.ROOT), *words]
    here = {name: text for name, text in os.environ.items() if name not in ELSEWHERE}
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "env": here}
    return subprocess.run(call, capture_output=True, check=True, **how).stdout.strip()


commit()  # remembered now: the checkout may move on while this process runs what it has loaded


def _made_with(fed: Federation) -> dict[str, str | bool]:
    cuda = fed.device.type == "cuda"
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(fed.device) if cuda else platform.machine(),
        "processor": processor.model(),
        # The vector instructions that torch uses here, "AVX2" for one.
        "instructions": str(torch.backends.cpu.get_cpu_capability()),
        "pinned": processor.pinned(),
    }
