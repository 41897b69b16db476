"""Atomic writes and locks, which the cache of data sets and the store of runs share."""

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedlib.progress import quiet

OLD = ".{}.old"  # name of a folder while another one takes its place


def write(target: Path, put: Callable[[Path], Any]) -> None:
    """Write a file or a folder atomically: what is at ``target`` is complete, the old or the new.

    Args:
        target: the path of the file or folder.
        put: writes the contents to the (temporary) path that it is called with.

    Raises:
        OSError: if it cannot be written, for instance because the disk is full. The old one is then
            unchanged.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put(temporary)
        if temporary.is_dir():
            _replace_folder(temporary, target)
        else:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
    finally:
        _remove(temporary)


def _replace_folder(new: Path, target: Path) -> None:
    """Rename a folder to ``target``; the old one is deleted afterwards, or restored by ``clean``.

    No system call of Python's replaces a folder that is not empty, so for a moment there is none.
    """
    old = target.with_name(OLD.format(target.name))
    if target.exists():
        _remove(old)
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        _restore(old, target)
        raise
    _remove(old)


def _restore(old: Path, target: Path) -> None:
    if old.exists() and not target.exists():
        os.replace(old, target)


def clean(folder: Path, name: str = "*") -> None:
    """Delete temporary files of killed processes, and restore what they were about to replace.

    The caller must hold the lock.

    Args:
        folder: the folder to clean.
        name: the name of the file that they would have replaced. Default: any.
    """
    for path in folder.glob(f".{name}.*.tmp"):
        _remove(path)
    for old in folder.glob(OLD.format(name)):
        _restore(old, folder / old.name.removeprefix(".").removesuffix(".old"))
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for other processes; reentrant within this process.

    Args:
        path: the path of the lock file.

    Raises:
        OSError: if the lock file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    the_lock = FileLock(path, is_singleton=True)
    try:
        claim = the_lock.acquire(timeout=0)
    except Timeout:
        if not quiet():
            print(f"fedlib: another process holds {path}: waiting for it", file=sys.stderr)
        claim = the_lock.acquire()
    with claim:
        yield


def is_locked(path: Path) -> bool:
    """Return whether a lock is held now, by any process including this one."""
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
