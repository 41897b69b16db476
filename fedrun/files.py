"""Files that are whole or not there, with checksums, and errors that say what is safe."""

import errno
import json
import os
import secrets
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedlib import paths
from fedlib.progress import quiet

LONGEST_REASON = 500  # characters of a decoder's complaint, which may quote the whole file
CHECKSUM = "crc32"  # safetensors has none, and training would go on from a flipped weight unawares
# A file sorts its names, and a sum over leaves has the bits of an undisturbed run in its order.
ORDER = "order"


class StoreError(RuntimeError):
    """A run cannot be stored; the message says what is safe."""


class Damaged(ValueError):
    """A stored file is not what it should be."""


class Mismatch(Damaged):
    """What is stored is sound, and of other data or another first stage than are here."""


class DamagedWarning(UserWarning):
    """A run that is damaged, or is of something else than is here, was passed over or set aside."""


def write(target: Path, put: Callable[[Path], Any], what: str) -> None:
    """Let ``put`` write a file and give it its name only when it is whole and on the disk.

    A reader, a killed process or a crash of the machine sees the old file or the new one.
    StoreError if the disk is full or cannot be written; the old file is then still there.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with _refused(target, what):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            put(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _refused(target: Path, what: str) -> Iterator[None]:
    """Write a file: StoreError if that is refused says where, why, what is safe, what now."""
    try:
        yield
    except OSError as error:
        homes = {"RESULTS": paths.results(), "FIGURES": paths.figures()}
        inside = (name for name, home in homes.items() if target.is_relative_to(home))
        variable = f"FEDLIB_{next(inside, 'RUNS')}"
        safe = "What was stored before is whole, and asking again continues from there"
        now = f"Free some space, make the folder writable, or set {variable} to a copy of it"
        why = f"cannot write {what} to {target}: {error.strerror or error}"
        raise StoreError(f"{why}. {safe}. {now}.") from error


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Read a stored file: Damaged if it is missing or no ``what``.

    The difference matters: a damaged run is set aside and made again, but not one that the machine
    refuses to read at the moment, which stays an OSError or a MemoryError.
    """
    try:
        path.open("rb").close()  # safetensors does not tell why it cannot open a file
        yield
    except Exception as error:  # there is no list of what decoders raise of garbage
        # They raise OSErrors, too, but these have no number.
        refused = getattr(error, "errno", None) not in (None, errno.ENOENT)
        if refused or isinstance(error, MemoryError | Damaged):
            raise
        why = " ".join(f"{error}".split())[:LONGEST_REASON] or type(error).__name__
        raise Damaged(f"{path} is no {what}: {why}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file of the store says; Damaged if it is no JSON object."""
    with reading(path, "JSON object"):
        read = json.loads(path.read_bytes())
        if not isinstance(read, dict):
            raise ValueError(f"it holds a {type(read).__name__}")
        return read


def quarantine(home: Path, why: Damaged) -> None:
    """Move a run folder to ``damaged/`` next to it, and say so; nothing is deleted."""
    place = home.with_name("damaged")
    place.mkdir(exist_ok=True)
    target = tempfile.mkdtemp(prefix=f"{home.name}-", dir=place)
    os.replace(home, target)
    warnings.warn(f"{why}; the run was moved to {target}", DamagedWarning, stacklevel=2)


def clean(folder: Path) -> None:
    """Delete what killed processes left half-written; only for whoever holds the claim."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def file_lock(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock, again if this process has it; StoreError if there is no place for it."""
    the_lock = FileLock(lock, is_singleton=True)
    with _refused(lock, what):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            claim = the_lock.acquire(timeout=0)
        except Timeout:
            if not quiet():
                print(f"fedlib: another process holds {lock}: waiting for it", file=sys.stderr)
            claim = the_lock.acquire()
    with claim:
        yield


def is_locked(lock: Path) -> bool:
    """Return whether another process, or another part of this one, holds a lock now."""
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata, with their checksum."""
    whole = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    metadata = {**metadata, ORDER: json.dumps([*whole])}
    path.write_bytes(save(whole, {**metadata, CHECKSUM: _checksum(whole, metadata)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, and its metadata.

    Damaged unless they are those that were written; a file without a checksum is believed.
    """
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        written = metadata.pop(CHECKSUM, None)
        if written is not None and written != _checksum(tensors, metadata):
            raise ValueError("its checksum differs")
        order = json.loads(metadata.pop(ORDER, "null")) or [*tensors]
        # Copies begin where torch puts tensors, not where the file does: some sums hang on that.
        return {n: tensors[n].clone() for n in order}, metadata


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 ``[bytes]``, without a copy if it is contiguous.

    One number may have the stride 0, which ``view`` refuses.
    """
    whole = tensor.detach().cpu().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return the CRC-32 of names, kinds, shapes and bytes, and of the metadata."""
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(raw(tensor).numpy().data, checksum)
    return f"{checksum:08x}"
