"""Decoded splits as .npy files in the user's cache: written once, checked, memory-mapped.

An entry is a folder `<name>-<key>`. It is written under another name and renamed when it is
complete, so a reader sees all of it or nothing; a lock beside it keeps two processes from doing
the same work. `meta.json` holds size, checksum and time of every file. Opening an entry compares
sizes and times, and only where a time differs the checksum; what does not match is rebuilt.
"""

import hashlib
import json
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from fedlib import paths
from fedlib.data.records import DatasetError, Split

# Raise it when what is stored, or how it is decoded, changes.
VERSION = 2
KEY_LENGTH = 16
# Before the names of columns that are neither features nor labels.
EXTRA = "column."
VOCABULARY = "vocabulary.json"

# What files provoke that are damaged, or were never those of an entry.
_DAMAGED = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip

# Fills an empty folder; returns what readers shall know besides.
Build = Callable[[Path], dict[str, Any]]


class Entry(NamedTuple):
    """A decoded dataset. meta: name, source, fingerprint and whatever its build returned."""

    train: Split
    test: Split
    vocabulary: tuple[str, ...]
    meta: dict[str, Any]


def folder() -> Path:
    """Where decoded datasets are kept."""
    return paths.cache() / "datasets"


def key_of(*parts: object) -> str:
    """A short name for whatever an entry was made from."""
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()[:KEY_LENGTH]


def save(folder: Path, split: str, column: str, values: NDArray[Any]) -> None:
    """Write one array of a split into an entry under construction."""
    with path_of(folder, split, column).open("wb") as file:
        # Not numpy.save: on a full disk it loses the last bytes and does not say so.
        write_header(file, values.dtype, values.shape)
        file.write(np.ascontiguousarray(values).data)


def write_header(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Begin an .npy file, which the bytes of an array in C order complete."""
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def path_of(folder: Path, split: str, column: str) -> Path:
    """The file of one array of a split."""
    return folder / f"{split}.{column}.npy"


def save_vocabulary(folder: Path, vocabulary: tuple[str, ...]) -> None:
    """Write what token ids stand for into an entry under construction."""
    (folder / VOCABULARY).write_text(json.dumps(vocabulary), "utf-8")


def entries(name: str) -> list[Path]:
    """The complete entries of a dataset, whatever they were made from, newest first."""
    found = []
    for meta in folder().glob(f"{name}-{'?' * KEY_LENGTH}/meta.json"):
        with suppress(OSError):  # another process replaces it just now
            found.append((meta.stat().st_mtime_ns, meta.parent))
    return [entry for _, entry in sorted(found, reverse=True)]


def find(name: str, thorough: bool = False) -> Entry | None:
    """The newest sound entry of a dataset, whatever it was made from."""
    for entry in entries(name):
        if found := read(entry, thorough):
            return found
    return None


def place(name: str, key: str) -> Path:
    """Where the entry of a dataset under a key is, or would be."""
    return folder() / f"{name}-{key}"


def get(
    name: str, key: str, source: str, origin: str, build: Build, thorough: bool = False
) -> Entry:
    """The entry of a dataset under a key, built first when it is missing or damaged.

    source: what readers are told, the same on every machine. origin: where exactly the data lay;
    what was made from earlier states of it is deleted. thorough: compare all checksums.
    DatasetError when the cache cannot be written.
    """
    final = place(name, key)
    if entry := read(final, thorough):
        # Whoever made it may have been killed before it had deleted what it replaces.
        _forget_older(name, origin, final)
        return entry
    with _writing(final):
        if entry := read(final, thorough):  # another process was faster
            return entry
        partial = final.with_name(f"{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            partial.mkdir()
            extra = build(partial)
            _describe(partial, {"name": name, "source": source, "origin": origin} | extra)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _forget_older(name, origin, final)
        entry = read(final)
    if entry is None:
        raise DatasetError(f"{final} was written but reads back damaged; is the disk failing?")
    return entry


def read(entry: Path, thorough: bool = False) -> Entry | None:
    """What an entry holds; None unless it is complete and sound."""
    if faults(entry, thorough):
        return None
    try:
        meta = json.loads((entry / "meta.json").read_text())
        columns: dict[str, dict[str, NDArray[Any]]] = {"train": {}, "test": {}}
        for name in meta["files"].keys() - {VOCABULARY}:
            split, column = name.removesuffix(".npy").split(".", 1)
            columns[split][column] = np.load(entry / name, mmap_mode="r", allow_pickle=False)
        vocabulary = entry / VOCABULARY
        words = json.loads(vocabulary.read_text("utf-8")) if VOCABULARY in meta["files"] else ()
        return Entry(_split(columns["train"]), _split(columns["test"]), tuple(words), meta)
    except _DAMAGED:
        return None


def faults(entry: Path, thorough: bool) -> list[str]:
    """What is wrong with the files of an entry, [] when they are as they were written.

    thorough: compare every checksum, not only where a file's time differs from the recorded one.
    """
    try:
        meta = json.loads((entry / "meta.json").read_text())
        if not meta.keys() >= {"name", "source", "origin", "fingerprint", "files"}:
            return [f"{entry / 'meta.json'} is incomplete"]
        if meta["version"] != VERSION:
            return [f"{entry} is of another version of this library"]
        found = [_fault(entry / name, thorough, *known) for name, known in meta["files"].items()]
        if not any(found):
            _note_times(entry, meta)
        return [fault for fault in found if fault]
    except _DAMAGED as error:
        return [f"{entry} is damaged: {error!r}"]


def _fault(path: Path, thorough: bool, size: int, checksum: int, time: int) -> str:
    """What is wrong with a file, "" when nothing is."""
    if not path.is_file():
        return f"{path} is gone"
    now = path.stat()
    if now.st_size != size:
        return f"{path} has {now.st_size:,} bytes, not {size:,}"
    if (thorough or now.st_mtime_ns != time) and _checksum(path) != checksum:
        return f"{path} has changed: its checksum differs"
    return ""


def _note_times(entry: Path, meta: dict[str, Any]) -> None:
    """Record the times of files that were copied, so that they are not read whole again."""
    now = {
        name: [size, checksum, (entry / name).stat().st_mtime_ns]
        for name, (size, checksum, _) in meta["files"].items()
    }
    if now != meta["files"]:
        with suppress(OSError):  # a cache that is shared may be read-only
            _write_meta(entry, meta | {"files": now})


def _split(arrays: dict[str, NDArray[Any]]) -> Split:
    extra = {n.removeprefix(EXTRA): a for n, a in arrays.items() if n.startswith(EXTRA)}
    return Split(arrays["features"], arrays["labels"], dict(sorted(extra.items())))


@contextmanager
def _writing(final: Path) -> Iterator[None]:
    """Hold the lock of an entry; turn failures of the disk into an error that names the place."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{final}.lock"):
            yield
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(
            f"cannot write decoded data to {final.parent}: {error}. Free some space, or set "
            "FEDLIB_CACHE to a folder that can be written."
        ) from error


def _describe(entry: Path, known: dict[str, Any]) -> None:
    """Write the meta data of an entry: what is known, the fingerprint, and the state of its files.

    The fingerprint covers what training sees: features, labels, and what token ids stand for.
    """
    files = {
        path.name: [path.stat().st_size, _checksum(path), path.stat().st_mtime_ns]
        for path in sorted(entry.iterdir())
    }
    content = hashlib.sha256()
    for split in ("train", "test"):
        for column in ("features", "labels"):
            array = np.load(path_of(entry, split, column), mmap_mode="r", allow_pickle=False)
            content.update(f"{array.dtype.str}{array.shape}".encode())
            content.update(array.data)
    if VOCABULARY in files:
        content.update((entry / VOCABULARY).read_bytes())
    meta = {"version": VERSION, **known, "fingerprint": content.hexdigest(), "files": files}
    _write_meta(entry, meta)


def _write_meta(entry: Path, meta: dict[str, Any]) -> None:
    # Not tempfile's, which only its maker may read: a cache may be shared.
    new = entry / f"meta.{secrets.token_hex(4)}.tmp"
    try:
        new.write_text(json.dumps(meta, indent=1))
        new.replace(entry / "meta.json")
    finally:
        new.unlink(missing_ok=True)


def _forget_older(name: str, origin: str, newest: Path) -> None:
    """Delete what was decoded from earlier states of the same files, or never came to an end.

    What an entry is made of goes before ``meta.json``: one half deleted is still known as an entry.
    """
    for entry in set(entries(name)) - {newest}:
        with suppress(*_DAMAGED):
            if json.loads((entry / "meta.json").read_text())["origin"] == origin:
                for path in set(entry.iterdir()) - {entry / "meta.json"}:
                    path.unlink()
                shutil.rmtree(entry)
    for entry in folder().glob(f"{name}-{'?' * KEY_LENGTH}"):
        with suppress(OSError):
            entry.rmdir()  # only if it is empty: a process was killed while it deleted it
    for partial in folder().glob(f"{name}-{'?' * KEY_LENGTH}.partial"):
        with suppress(Timeout, OSError), FileLock(partial.with_suffix(".lock"), timeout=0):
            shutil.rmtree(partial, ignore_errors=True)


def _checksum(path: Path) -> int:
    """CRC-32 of a file: half a second for a gigabyte, and it catches what disks do."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
