"""Small and read-only file systems, as far as this process may mount them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def mounted(place: Path, options: str) -> Iterator[bool]:
    """Mount a tmpfs with some options; yields whether that was permitted."""
    place.mkdir(parents=True, exist_ok=True)
    done = _mount("-t", "tmpfs", "-o", options, "fedlib-robustness", str(place))
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", str(place)], check=True)


def changed(place: Path, options: str) -> None:
    """Mount again with other options."""
    if not _mount("-o", f"remount,{options}", str(place)):
        raise OSError(f"{place} cannot be mounted again with {options}")


def may_mount(place: Path) -> bool:
    """Return whether a tmpfs can be mounted here."""
    with mounted(place, "size=64k") as done:
        return done


def powerless() -> None:
    """Become a user whom the modes of files bind."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
