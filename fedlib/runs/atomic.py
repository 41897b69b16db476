"""Files that are whole or not there, and errors that say what is safe."""

from __future__ import annotations

import errno
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
MOST_SAID = 500  # characters of what a decoder says of a damaged file, which may quote all of it


class StoreError(RuntimeError):
    """The store of runs cannot be read or written; the message says what is safe."""


class Damaged(ValueError):
    """A stored file is not what it should be."""


class DamagedWarning(UserWarning):
    """A damaged file was ignored or set aside."""


def write(
    target: Path, put: Callable[[Path], Any], what: str, variable: str = "FEDLIB_RUNS"
) -> None:
    """Let ``put`` write a file and give it its name only when it is whole and on the disk.

    A reader, a killed process or a crash of the machine sees the old file or the new one.
    StoreError if the disk is full or cannot be written; the old file is then still there.
    ``variable`` is the environment variable that names another place.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put(temporary)
        with suppress(OSError):  # some file systems have no modes
            os.chmod(temporary, target.parent.stat().st_mode & 0o666)  # as open as its folder
        _sync(temporary)
        os.replace(temporary, target)
        with suppress(OSError):  # some file systems cannot sync a folder
            _sync(target.parent)
    except (OSError, SafetensorError) as error:
        raise unwritable(target, what, error, variable) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def unwritable(
    target: Path, what: str, error: Exception, variable: str = "FEDLIB_RUNS"
) -> StoreError:
    """Return the error for a file that could not be written: where, why, what is safe, what now."""
    told = re.search(r"os error (\d+)", str(error))  # safetensors writes in Rust
    number = getattr(error, "errno", None) or (told and int(told[1]))
    reason = os.strerror(number) if number else str(error)
    if number in _FULL:
        advice = "Free some space there"
    elif number in _REFUSED:
        advice = "Make the folder writable"
    else:
        advice = "Repair it"
    return StoreError(
        f"cannot write {what} to {target}: {reason}. What was stored before is whole, and asking "
        f"again continues from there. {advice}, or set {variable} to another folder (copy what is "
        "stored into it to go on from that)."
    )


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
    except MemoryError as error:
        raise unreadable(path, OSError(errno.ENOMEM, "")) from error
    except Exception as error:  # there is no list of what decoders raise of garbage
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise unreadable(path, error) from error
        said = " ".join(f"{error}".split())[:MOST_SAID] or type(error).__name__
        raise Damaged(f"{path} is no {what}: {said}") from error


def unreadable(path: Path, error: OSError) -> StoreError:
    """Return the error for a file that is there but cannot be read."""
    return StoreError(f"cannot read {path}: {os.strerror(error.errno or errno.EIO)}")


def set_aside(path: Path, why: str) -> Path:
    """Rename a file so that nobody reads it again, and say so; nothing is deleted."""
    names = (f"{path.name}.damaged{'' if n == 1 else f'-{n}'}" for n in range(1, 1000))
    target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    try:
        os.replace(path, target)
    except OSError as error:
        raise unwritable(target, "a damaged file set aside", error) from error
    warn(f"{path} {why}; it was moved to {target.name}")
    return target


def warn(text: str) -> None:
    """Warn of a damaged file."""
    warnings.warn(text, DamagedWarning, stacklevel=3)


def clean(folder: Path) -> None:
    """Delete what killed processes left half-written; only for whoever holds the claim."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()


@contextmanager
def alone(folder: Path, what: str, variable: str) -> Iterator[None]:
    """Be the only one who writes into a folder, and delete what killed ones left half-written."""
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise unwritable(folder, what, error, variable) from error
    try:
        clean(folder)
        yield
    finally:
        lock.release()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
