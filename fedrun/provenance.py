"""The provenance of runs: commit, versions, hardware and cost."""

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
from fedlib.engine import State
from fedlib.engine.protocol import nbytes
from fedlib.engine.width import Width
from fedlib.federation import Federation
from fedlib.values import PACKAGES
from fedrun.files import raw

DIRTY, UNKNOWN = "-dirty", "unknown"
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set by hooks of other repositories
CPUS = {"x86_64", "AMD64", "aarch64", "arm64"}  # values of ``device`` for runs on a CPU


def of_run(
    fed: Federation, segments: list[dict[str, Any]], state: State, ending: State
) -> dict[str, Any]:
    """Return the provenance of a finished run.

    Args:
        fed: the federation.
        segments: the segments of the run, one unless it was interrupted.
        state: the state after the last round.
        ending: the final state, from which a later stage starts.

    Returns:
        commit, versions, device, processor and segments, and ``seconds`` (wall time),
        ``cpu_seconds`` (of the process and its children), ``client_mib`` (MiB of global and
        personal parameters on a client), ``state`` (digest of ``ending``) and ``client_names`` (by
        id, if the clients have names).
    """
    client_bytes = nbytes(state.server_params) + nbytes(state.client_params) / fed.num_clients
    sums = {
        name: round(sum(s[name] for s in segments), 1)
        for name in ("seconds", "cpu_seconds")
        if all(name in s for s in segments)  # older versions and GPUs have no CPU seconds
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
    """Return the provenance of consecutive rounds that this process has trained.

    Args:
        fed: the federation.
        rounds: first and last number of completed rounds.
        chunk: the option of ``run``; None stands for a number that depends on the size of a state.
        state: the state after these rounds.
        since: ``clock()`` at the start of the segment.

    Returns:
        rounds, commit, versions, device, processor, seconds, and chunk and threads, on which
        rounding depends.
    """
    how = {"chunk": Width(fed, state, chunk).program, "threads": torch.get_num_threads()}
    spent = {name: round(now - since[name], 1) for name, now in clock().items()}
    if fed.device.type != "cpu":
        del spent["cpu_seconds"]  # the CPU mostly waits for the GPU
    return {"rounds": rounds, **_made_with(fed), **how, **spent}


def clock() -> dict[str, float]:
    """Return wall time and the CPU time of this process and its finished children, in seconds."""
    return {"seconds": time.monotonic(), "cpu_seconds": sum(os.times()[:4])}


def digest(state: State) -> str:
    """Return a hash of a state, 16 hexadecimal digits, independent of the order of its tensors."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(state.flat().items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        sha256.update(raw(tensor).numpy().data)
    return sha256.hexdigest()[:16]


def began_with(made: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the final states of all earlier stages of a run, by their keys.

    The result is empty for a first stage, and for runs of older versions.
    """
    return _of_stages(made, "began_with")


def data_of(made: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data set of a run; "" if it is not known."""
    return str(made.get("data", "")).rpartition(" ")[2]  # the source of the data ends with it


def following(earlier: Iterable[tuple[str, Mapping[str, Any], State]]) -> dict[str, Any]:
    """Return the part of a segment about earlier stages.

    Args:
        earlier: key, provenance and final state of the stages that the run starts from directly.

    Returns:
        "stages", the commits of all earlier stages by key, and "began_with", the digests of their
        final states by key; empty without stages.
    """
    stages, ends = dict[str, list[str]](), dict[str, str]()
    for key, made, ended in earlier:
        stages |= {**_of_stages(made, "stages"), key: sorted(_commits(made))}
        ends |= {**began_with(made), key: digest(ended)}
    return {"stages": stages, "began_with": ends} if stages else {}


def warn_of_both_kinds(every: Iterable[Mapping[str, Any]], stacklevel: int = 2) -> None:
    """Warn if some runs on a CPU were pinned to AVX2 and others were not.

    Runs of older versions, which did not record this, are ignored.

    Args:
        every: provenances of runs.
        stacklevel: as for ``warnings.warn``. Default: 2, the caller.
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
    """Return the commits of a run and its earlier stages that do not contain the code that ran.

    These are commits with uncommitted changes, "...-dirty", and "unknown".
    """
    commits = _commits(made).union(*_of_stages(made, "stages").values())
    return sorted(c for c in commits if not committed(c))


def committed(commit: str) -> bool:
    """Return whether a commit is known and contains the code that ran."""
    return commit != UNKNOWN and not commit.endswith(DIRTY)


def _commits(made: Mapping[str, Any]) -> set[str]:
    return {str(part["commit"]) for part in (made, *made.get("segments", ())) if "commit" in part}


def _of_stages(made: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field of the segments of a run about earlier stages, by key."""
    parts = (part.get(name, {}) for part in made.get("segments", ()))
    return {key: of_stage for part in parts for key, of_stage in part.items()}


@cache
def commit() -> str:
    """Return the commit of the checkout at the time when this process imported the library.

    It ends with "-dirty" if files of fedlib or fedrun are changed or untracked; other files, such
    as results, do not count. It is "unknown" for an installed copy, and if git is missing or fails,
    which a checkout warns about.
    """
    if not paths.IN_CHECKOUT:
        return UNKNOWN
    try:
        # Fails if the package is in the checkout of another project.
        _git("ls-files", "--error-unmatch", "--", *PACKAGES)
        name = _git("rev-parse", "--short=12", "HEAD")  # a tag may be moved
        changes = _git("status", "--porcelain", "--untracked-files=normal", "--", *PACKAGES)
    except (OSError, subprocess.CalledProcessError) as error:
        why = " ".join(str(getattr(error, "stderr", None) or error).split())
        cloned = any((folder / ".git").exists() for folder in (paths.ROOT, *paths.ROOT.parents))
        if cloned and multiprocessing.parent_process() is None:
            now = "runs are stored, but results without a commit are not exported"
            warnings.warn(f"the commit of {paths.ROOT} is not known: {now}. {why}", stacklevel=2)
        return UNKNOWN
    return name + (DIRTY if changes else "")


def _git(*words: str) -> str:
    """Return the output of a git command in the checkout."""
    call = ["git", "--no-optional-locks", "-C", str(paths.ROOT), *words]
    here = {name: text for name, text in os.environ.items() if name not in ELSEWHERE}
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "env": here}
    return subprocess.run(call, capture_output=True, check=True, **how).stdout.strip()


commit()  # cached now, since the checkout may change while this process runs the loaded code


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
