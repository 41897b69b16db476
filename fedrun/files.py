"""Checksums, and the errors of the store."""

import errno
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedlib import files, paths

LONGEST_REASON = 500  # characters of a decoder's message, which may quote the whole file
CHECKSUM = "crc32"  # safetensors has none, so a flipped bit would go unnoticed
# safetensors sorts names; sums over parameters have the same bits only in the original order.
ORDER = "order"


class StoreError(RuntimeError):
    """A run cannot be stored; the message says what is stored already and what to do.

    >>> import os
    >>> from unittest.mock import patch
    >>> try:
    ...     with patch.dict(os.environ, FEDLIB_RUNS=os.devnull):  # a file, which holds no folder
    ...         run(tiny, progress=False)
    ... except StoreError as error:
    ...     "set FEDLIB_RUNS to a copy" in str(error)
    True
    """


class Damaged(ValueError):
    """A stored file cannot be read, or has unexpected contents."""


class Mismatch(Damaged):
    """A stored file is intact, but its data set or first stage differs from the one present."""


class DamagedWarning(UserWarning):
    """A run that is damaged or does not match was skipped, or moved to ``damaged/``."""


def write(target: Path, put: Callable[[Path], Any], what: str) -> None:
    """Write a file atomically: readers, also after a crash, see the old file or the new one.

    Args:
        target: the path of the file.
        put: writes the contents to the (temporary) path that it is called with.
        what: what the file is, for error messages.

    Raises:
        StoreError: if the file cannot be written, for instance because the disk is full. The old
            file is then unchanged.
    """
    with _refused(target, what):
        files.write(target, put)


@contextmanager
def _refused(target: Path, what: str) -> Iterator[None]:
    """Raise a StoreError with advice for any OSError while ``target`` is written."""
    try:
        yield
    except OSError as error:
        homes = {"RESULTS": paths.results(), "FIGURES": paths.figures()}
        inside = (name for name, home in homes.items() if target.is_relative_to(home))
        variable = f"FEDLIB_{next(inside, 'RUNS')}"
        safe = "What was stored before is intact, and the same call continues from there"
        now = f"Free some space, make the folder writable, or set {variable} to a copy of it"
        why = f"cannot write {what} to {target}: {error.strerror or error}"
        raise StoreError(f"{why}. {safe}. {now}.") from error


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Raise Damaged if the stored file ``path`` is missing or cannot be read as a ``what``.

    An OSError or MemoryError of the system is not converted: a damaged run is quarantined and
    trained again, but one that cannot be read at the moment must not be.
    """
    try:
        path.open("rb").close()  # safetensors hides the reason why it cannot open a file
        yield
    except Exception as error:  # decoders raise errors of any type for garbage
        # OSErrors of decoders, unlike those of the system, have no errno.
        refused = getattr(error, "errno", None) not in (None, errno.ENOENT)
        if refused or isinstance(error, MemoryError | Damaged):
            raise
        why = " ".join(f"{error}".split())[:LONGEST_REASON] or type(error).__name__
        raise Damaged(f"{path} is no {what}: {why}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file; raise Damaged if it is not a JSON object."""
    with reading(path, "JSON object"):
        read = json.loads(path.read_bytes())
        if not isinstance(read, dict):
            raise ValueError(f"it holds a {type(read).__name__}")
        return read


def quarantine(home: Path, why: Damaged) -> None:
    """Move a run folder to ``damaged/`` next to it, with a warning; nothing is deleted."""
    place = home.with_name("damaged")
    place.mkdir(exist_ok=True)
    target = tempfile.mkdtemp(prefix=f"{home.name}-", dir=place)
    os.replace(home, target)
    warnings.warn(f"{why}; the run was moved to {target}", DamagedWarning, stacklevel=2)


@contextmanager
def file_lock(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file, waiting for other processes; reentrant within this process.

    Args:
        lock: the path of the lock file.
        what: what it is, for error messages.

    Raises:
        StoreError: if the lock file cannot be created.
    """
    with ExitStack() as held:
        with _refused(lock, what):
            held.enter_context(files.lock(lock))
        yield


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata to a safetensors file, with a checksum."""
    whole = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    metadata = {**metadata, ORDER: json.dumps([*whole])}
    path.write_bytes(save(whole, {**metadata, CHECKSUM: _checksum(whole, metadata)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file in their original order, and its metadata.

    Raises:
        Damaged: if the file cannot be read or its checksum differs. A file without a checksum, of
            an older version, is accepted.
    """
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        written = metadata.pop(CHECKSUM, None)
        if written is not None and written != _checksum(tensors, metadata):
            raise ValueError("its checksum differs")
        order = json.loads(metadata.pop(ORDER, "null")) or [*tensors]
        # Cloned because the bits of some sums depend on the alignment of tensors in memory.
        return {n: tensors[n].clone() for n in order}, metadata


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 ``[bytes]``, without a copy if it is contiguous.

    ``as_strided`` is needed: a tensor of one element may have stride 0, which ``view`` rejects.
    """
    whole = tensor.detach().cpu().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return the CRC-32 of the metadata and of the names, dtypes, shapes and bytes of tensors."""
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(raw(tensor).numpy().data, checksum)
    return f"{checksum:08x}"
