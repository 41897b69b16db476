"""Decoded datasets as .npy files in the user's cache: written once, checked, memory-mapped.

An entry is a folder `<name>-<hash of where its examples lay>`. It is written under another name and
renamed when it is complete, so a reader sees all of it or nothing; a lock beside it keeps two
processes from doing the same work. `meta.json` says what the dataset is, from which state of its
source it was made (`key`), and size, checksum and time of every file. Opening an entry compares
sizes and times, and only where one differs the checksum; what does not match is made anew.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedlib import paths
from fedlib.data.records import Dataset, DatasetError, Split

# Raise it when what is stored, or how it is decoded, changes.
VERSION = 3
META = "meta.json"
KEY_LENGTH = 16
SPLITS = ("train", "test")
# Before the names of columns that are neither features nor labels.
EXTRA = "column."
# The arrays of each split: "features", "labels", further columns; in "train" also "vocabulary".
Arrays = dict[str, dict[str, NDArray[Any]]]

# What files provoke that are damaged, or were never those of an entry.
_DAMAGED = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


def folder() -> Path:
    """Where decoded datasets are kept."""
    return paths.cache() / "datasets"


def key_of(*parts: object) -> str:
    """A short name for whatever an entry was made from."""
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()[:KEY_LENGTH]


def fingerprint(arrays: Arrays) -> str:
    """SHA-256, in hex, of what training sees: features, labels, and what token ids stand for."""
    content = hashlib.sha256()
    for part in arrays.values():
        for values in (part["features"], part["labels"]):
            content.update(f"{values.dtype.str}{values.shape}".encode())
            content.update(np.ascontiguousarray(values).data)
    content.update(arrays["train"].get("vocabulary", np.zeros(0)).data)
    return content.hexdigest()


def path_of(folder: Path, split: str, column: str) -> Path:
    """The file of one array of a split."""
    return folder / f"{split}.{column}.npy"


def save(folder: Path, split: str, column: str, values: NDArray[Any]) -> None:
    """Write one array of a split into an entry under construction."""
    descr = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": values.shape}
    with path_of(folder, split, column).open("wb") as file:
        # Not numpy.save: on a full disk it loses the last bytes and does not say so.
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(values).data)


def entries(name: str) -> list[Path]:
    """The complete entries of a dataset, whatever they were made from, newest first."""
    found = []
    for meta in folder().glob(f"{name}-{'?' * KEY_LENGTH}/{META}"):
        with suppress(OSError):  # another process replaces it just now
            found.append((meta.stat().st_mtime_ns, meta.parent))
    return [entry for _, entry in sorted(found, reverse=True)]


def find(name: str) -> Dataset | None:
    """The newest sound entry of a dataset, whatever it was made from."""
    for entry in entries(name):
        with suppress(DatasetError):
            return read(entry)
    return None


def get(
    name: str, origin: str, key: str, told: dict[str, Any], build: Callable[[], Arrays]
) -> Dataset:
    """The dataset made from an origin in the state `key`, built first when it is not there.

    origin: where exactly its examples lie. told: its source, class names, mean and standard
    deviation, the same on every machine. build: makes its arrays; a test split that it leaves out
    is empty. DatasetError when the cache cannot be written.
    """
    final = folder() / f"{name}-{key_of(name, origin)}"
    with suppress(DatasetError):
        return read(final, key)
    partial = final.with_name(f"{final.name}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{final}.lock"):
            with suppress(DatasetError):
                return read(final, key)  # another process was faster
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            try:
                partial.mkdir()
                _write(partial, build(), {"name": name, "origin": origin, "key": key} | told)
                shutil.rmtree(final, ignore_errors=True)
                partial.rename(final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            return read(final)
    except OSError as error:
        raise DatasetError(
            f"cannot write decoded data to {final.parent}: {error}. Free some space, or set "
            "FEDLIB_CACHE to a folder that can be written."
        ) from error


def _write(entry: Path, arrays: Arrays, told: dict[str, Any]) -> None:
    """Write arrays, and the meta data: what is told, the fingerprint, and the state of files."""
    arrays.setdefault("test", {name: part[:0] for name, part in arrays["train"].items()})
    for split, part in arrays.items():
        for column, values in part.items():
            save(entry, split, column, values)
    files = {
        path.name: [path.stat().st_size, _checksum(path), path.stat().st_mtime_ns]
        for path in sorted(entry.iterdir())
    }
    meta = told | {"version": VERSION, "fingerprint": fingerprint(arrays), "files": files}
    meta["sum"] = zlib.crc32(json.dumps(meta).encode())
    (entry / META).write_text(json.dumps(meta, indent=1), "utf-8")


def meta_of(entry: Path) -> dict[str, Any]:
    """What is told of an entry. DatasetError unless it is as it was written."""
    try:
        meta: dict[str, Any] = json.loads((entry / META).read_text("utf-8"))
        if meta.pop("sum") != zlib.crc32(json.dumps(meta).encode()) or meta["version"] != VERSION:
            raise DatasetError(f"{entry / META} is damaged, or of another version of this library")
        return meta
    except _DAMAGED as error:
        raise DatasetError(f"{entry} is damaged: {error!r}") from error


def read(entry: Path, key: str = "", thorough: bool = False) -> Dataset:
    """The dataset of an entry. DatasetError unless it is complete, sound, and of a key if given.

    thorough: compare every checksum, not only where a file's size or time is not as recorded.
    """
    meta = meta_of(entry)
    if key and meta["key"] != key:
        raise DatasetError(f"{entry} was made from other files than are there now")
    arrays: Arrays = {split: {} for split in SPLITS}
    try:
        for name, (size, checksum, time) in meta["files"].items():
            now = (path := entry / name).stat()
            same = (now.st_size, now.st_mtime_ns) == (size, time) and not thorough
            if not same and _checksum(path) != checksum:
                raise DatasetError(f"{path} has changed: its checksum differs")
            split, column = name.removesuffix(".npy").split(".", 1)
            arrays[split][column] = np.load(path, mmap_mode="r", allow_pickle=False)
        words = arrays["train"].pop("vocabulary", np.frombuffer(b"[]", np.uint8))
        names, mean, std = (tuple(meta[part]) for part in ("class_names", "mean", "std"))
        train, test = (_split(arrays[split]) for split in SPLITS)
        told = meta["source"], meta["fingerprint"], tuple(json.loads(words.tobytes()))
        return Dataset(meta["name"], train, test, names, mean, std, *told)
    except _DAMAGED as error:
        raise DatasetError(f"{entry} is damaged: {error!r}") from error


def _split(arrays: dict[str, NDArray[Any]]) -> Split:
    extra = {n.removeprefix(EXTRA): a for n, a in arrays.items() if n.startswith(EXTRA)}
    return Split(arrays["features"], arrays["labels"], dict(sorted(extra.items())))


def _checksum(path: Path) -> int:
    """CRC-32 of a file: half a second for a gigabyte, and it catches what disks do."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
