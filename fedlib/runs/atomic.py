"""Files that are whole or not there, with checksums, and errors that say what is safe."""

import errno
import json
import os
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedlib import paths
from fedlib.progress import note

MOST_SAID = 500  # characters of what a decoder says of a damaged file, which may quote all of it
CHECKSUM = "crc32"  # safetensors has none, and training would go on from a flipped weight unawares
# A file sorts its names, and a sum over leaves has the bits of an undisturbed run in its order.
ORDER = "order"


class StoreError(RuntimeError):
    """The store of runs cannot be read or written; the message says what is safe."""


class Damaged(ValueError):
    """A stored file is not what it should be."""


class DamagedWarning(UserWarning):
    """A damaged file was ignored or set aside."""


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
            _sync(temporary)
            os.replace(temporary, target)
            with suppress(OSError):  # some file systems cannot sync a folder
                _sync(target.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def _refused(target: Path, what: str) -> Iterator[None]:
    """Write a file: StoreError if that is refused says where, why, what is safe, what now."""
    try:
        yield
    except OSError as error:
        variable = "FEDLIB_RESULTS" if target.parent == paths.results() else "FEDLIB_RUNS"
        raise StoreError(
            f"cannot write {what} to {target}: {error.strerror or error}. What was "
            "stored before is whole, and asking again continues from there. Free some space there, "
            f"or make the folder writable, or set {variable} to another folder (copy what is "
            "stored into it to go on from that)."
        ) from error


def remove(path: Path) -> None:
    """Delete a file if it is there; StoreError if that is refused."""
    with _refused(path, "its removal"):
        path.unlink(missing_ok=True)


def unreadable(path: Path | str | None, error: Exception) -> StoreError:
    """Return the error for a file that is there but cannot be read at the moment."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    return StoreError(f"cannot read {path}: {os.strerror(number or errno.EIO)}")


@contextmanager
def listing() -> Iterator[None]:
    """Look for files: StoreError if a folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise unreadable(error.filename, error) from error


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Read a stored file: Damaged if it is missing or no ``what``, else StoreError.

    The difference matters: a damaged file is moved aside and made again, but not one that the
    machine refuses to read at the moment.
    """
    try:
        path.open("rb").close()  # safetensors does not tell why it cannot open a file
        yield
    except (Damaged, StoreError):
        raise
    except Exception as error:  # there is no list of what decoders raise of garbage
        refused = isinstance(error, OSError) and error.errno not in (None, errno.ENOENT)
        if refused or isinstance(error, MemoryError):
            raise unreadable(path, error) from error
        said = " ".join(f"{error}".split())[:MOST_SAID] or type(error).__name__
        raise Damaged(f"{path} is no {what}: {said}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file of the store says; Damaged if it is no JSON object."""
    with reading(path, "JSON"):
        said = json.loads(path.read_bytes())
    if not isinstance(said, dict):
        raise Damaged(f"{path} holds no JSON object")
    return said


def set_aside(path: Path, why: str) -> None:
    """Rename a file so that nobody reads it again, and say so; nothing is deleted."""
    names = (f"{path.name}.damaged{'' if n == 1 else f'-{n}'}" for n in range(1, 1000))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    with _refused(target, "a damaged file set aside"):
        os.replace(path, target)
    warn(f"{path} {why}; it was moved to {target.name}")


def warn(text: str) -> None:
    """Warn of a damaged file."""
    warnings.warn(text, DamagedWarning, stacklevel=4)


def clean(folder: Path) -> None:
    """Delete what killed processes left half-written; only for whoever holds the claim."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()


@contextmanager
def alone(lock: Path, what: str, *, show: bool = False) -> Iterator[None]:
    """Hold a lock; ``show`` says whom it waits for. StoreError if there is no place for it."""
    held = FileLock(lock)
    with _refused(lock, what):
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout:
            note(f"another process holds {lock}: waiting for it", show=show)
            held.acquire()
    try:
        yield
    finally:
        held.release()


def save_tensors(path: Path, tensors: dict[str, Tensor], said: dict[str, str]) -> None:
    """Write tensors, and what is said of them, with their checksum."""
    whole = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    said = {**said, ORDER: json.dumps([*whole])}
    path.write_bytes(save(whole, {**said, CHECKSUM: _checksum(whole, said)}))


def load_header(path: Path) -> tuple[int, dict[str, str]]:
    """Return how many rounds a checkpoint is of, and what else it says; Damaged if it is none."""
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        said = file.metadata() or {}
        return int(said["completed"]), said


def load_tensors(path: Path) -> tuple[dict[str, Tensor], int, dict[str, str]]:
    """Return the tensors of a checkpoint, its rounds, and what else it says.

    Damaged unless they are those that were written; a file without a checksum is believed.
    """
    completed, said = load_header(path)
    with reading(path, "readable checkpoint"), safe_open(path, framework="pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
        written = said.pop(CHECKSUM, None)
        if written is not None and written != _checksum(tensors, said):
            raise ValueError("its checksum differs")
        order = json.loads(said.pop(ORDER, "null")) or [*tensors]
        # Copies begin where torch puts tensors, not where the file does: some sums hang on that.
        return {n: tensors[n].clone() for n in order}, completed, said


def _checksum(tensors: dict[str, Tensor], said: dict[str, str]) -> str:
    """Return the CRC-32 of names, kinds, shapes and bytes, and of what is said."""
    checksum = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
