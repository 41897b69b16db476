"""Decoded datasets as .npy files in the user's cache: written once, checked, memory-mapped.

An entry is a folder `<name>-<hash of where its examples lay>`. It is written under another name and
renamed when it is complete, so a reader sees all of it or nothing; a lock beside it keeps two
processes from doing the same work. `meta.json` says what the dataset is, from which state of its
source it was made (`key`), and size, checksum and time of every file. Opening an entry compares
sizes and times, and only where a time differs the checksum; what does not match is made anew.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

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


def place(name: str, origin: str) -> Path:
    """Where the entry of a dataset is, or would be. origin: where exactly its examples lie."""
    return folder() / f"{name}-{key_of(name, origin)}"


def path_of(folder: Path, split: str, column: str) -> Path:
    """The file of one array of a split."""
    return folder / f"{split}.{column}.npy"


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


def save_vocabulary(folder: Path, vocabulary: tuple[str, ...]) -> None:
    """Write what token ids stand for into an entry under construction."""
    save(folder, "train", "vocabulary", np.frombuffer(json.dumps(vocabulary).encode(), np.uint8))


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
    name: str, origin: str, key: str, told: dict[str, Any], build: Callable[[Path], None]
) -> Dataset:
    """The dataset made from an origin in the state `key`, built first when it is not there.

    told: its source, class names, mean and standard deviation, the same on every machine. build:
    fills an empty folder; a test split that it leaves out is empty. DatasetError when the cache
    cannot be written.
    """
    final = place(name, origin)
    with suppress(DatasetError):
        return read(final, key)
    with _writing(final):
        with suppress(DatasetError):
            return read(final, key)  # another process was faster
        partial = final.with_name(f"{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            partial.mkdir()
            build(partial)
            _describe(partial, {"name": name, "origin": origin, "key": key} | told)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return read(final)


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

    thorough: compare every checksum, not only where a file's time differs from the recorded one.
    """
    meta = meta_of(entry)
    if key and meta["key"] != key:
        raise DatasetError(f"{entry} was made from other files than are there now")
    arrays: dict[str, dict[str, NDArray[Any]]] = {split: {} for split in SPLITS}
    try:
        for name, known in meta["files"].items():
            _check(entry / name, thorough, *known)
            split, column = name.removesuffix(".npy").split(".", 1)
            arrays[split][column] = np.load(entry / name, mmap_mode="r", allow_pickle=False)
        words = arrays["train"].pop("vocabulary", np.frombuffer(b"[]", np.uint8))
        names, mean, std = (tuple(meta[part]) for part in ("class_names", "mean", "std"))
        train, test = (_split(arrays[split]) for split in SPLITS)
        told = meta["source"], meta["fingerprint"], tuple(json.loads(words.tobytes()))
        return Dataset(meta["name"], train, test, names, mean, std, *told)
    except _DAMAGED as error:
        raise DatasetError(f"{entry} is damaged: {error!r}") from error


def _check(path: Path, thorough: bool, size: int, checksum: int, time: int) -> None:
    now = path.stat()
    if now.st_size != size:
        raise DatasetError(f"{path} has {now.st_size:,} bytes, not {size:,}")
    if (thorough or now.st_mtime_ns != time) and _checksum(path) != checksum:
        raise DatasetError(f"{path} has changed: its checksum differs")


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


def _describe(entry: Path, told: dict[str, Any]) -> None:
    """Write the meta data of an entry: what is told, the fingerprint, and the state of its files.

    The fingerprint covers what training sees: features, labels, and what token ids stand for.
    """
    if not path_of(entry, "test", "labels").exists():
        for path in list(entry.glob("train.*.npy")):
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            save(entry, "test", path.name.removeprefix("train.").removesuffix(".npy"), values[:0])
    content = hashlib.sha256()
    seen = [path_of(entry, split, part) for split in SPLITS for part in ("features", "labels")]
    for path in [*seen, *entry.glob("train.vocabulary.npy")]:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if path in seen:
            content.update(f"{array.dtype.str}{array.shape}".encode())
        content.update(array.data)
    files = {
        path.name: [path.stat().st_size, _checksum(path), path.stat().st_mtime_ns]
        for path in sorted(entry.iterdir())
    }
    known = {"version": VERSION, "fingerprint": content.hexdigest(), "files": files}
    meta = told | known
    meta["sum"] = zlib.crc32(json.dumps(meta).encode())
    (entry / META).write_text(json.dumps(meta, indent=1), "utf-8")


def _checksum(path: Path) -> int:
    """CRC-32 of a file: half a second for a gigabyte, and it catches what disks do."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
