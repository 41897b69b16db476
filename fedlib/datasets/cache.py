"""Decoded splits as .npy files in the user's cache: written once, checked, memory-mapped.

An entry is a folder `<name>-<key>`. It is written under another name and renamed when it is
complete, so a reader sees all of it or nothing; a lock beside it keeps two processes from doing
the same work. `meta.json` holds size and checksum of every file: what does not match is rebuilt.
"""

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedlib import paths
from fedlib.datasets.records import DatasetError, Split

# Raise it when what is stored, or how it is decoded, changes.
VERSION = 1
# Before the names of columns that are neither features nor labels.
EXTRA = "column."

Build = Callable[[Path], None]
Entry = tuple[Split, Split, dict[str, Any]]


def folder() -> Path:
    """Where decoded datasets are kept."""
    return paths.cache() / "datasets"


def key_of(*parts: object) -> str:
    """A short name for whatever an entry was made from."""
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()[:16]


def save(folder: Path, split: str, column: str, values: NDArray[Any]) -> None:
    """Write one array of a split into an entry under construction."""
    np.save(path_of(folder, split, column), values, allow_pickle=False)


def path_of(folder: Path, split: str, column: str) -> Path:
    """The file of one array of a split."""
    return folder / f"{split}.{column}.npy"


def find(name: str) -> Entry | None:
    """The newest sound entry of a dataset, whatever it was made from."""
    entries = sorted(folder().glob(f"{name}-*/meta.json"), key=lambda p: -p.stat().st_mtime)
    for meta in entries:
        if entry := read(meta.parent):
            return entry
    return None


def get(name: str, key: str, source: str, origin: str, build: Build) -> Entry:
    """The entry of a dataset under a key, built first when it is missing or damaged.

    source: what readers are told, the same on every machine. origin: where exactly the data lay;
    what was made from earlier states of it is deleted. build: fills an empty folder. DatasetError
    when the cache cannot be written.
    """
    final = folder() / f"{name}-{key}"
    if entry := read(final):
        return entry
    with _writing(final):
        if entry := read(final):  # another process was faster
            return entry
        for killed in folder().glob(f"{final.name}.*.partial"):
            shutil.rmtree(killed, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{final.name}.", suffix=".partial", dir=folder()))
        try:
            build(partial)
            _describe(partial, name, source, origin)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _forget_older(name, origin, final)
        entry = read(final)
    if entry is None:
        raise DatasetError(f"{final} was written but reads back damaged; is the disk failing?")
    return entry


def read(entry: Path) -> Entry | None:
    """Train split, test split and meta data of an entry; None unless it is complete and sound."""
    try:
        meta = json.loads((entry / "meta.json").read_text())
        if not meta.keys() >= {"name", "source", "origin", "fingerprint"}:
            return None
        columns: dict[str, dict[str, NDArray[Any]]] = {"train": {}, "test": {}}
        for name, (size, checksum) in meta["files"].items():
            path = entry / name
            if path.stat().st_size != size or _checksum(path) != checksum:
                return None
            split, column = name.removesuffix(".npy").split(".", 1)
            columns[split][column] = np.load(path, mmap_mode="r", allow_pickle=False)
        return _split(columns["train"]), _split(columns["test"]), meta
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _split(arrays: dict[str, NDArray[Any]]) -> Split:
    extra = {n.removeprefix(EXTRA): a for n, a in arrays.items() if n.startswith(EXTRA)}
    return Split(arrays["features"], arrays["labels"], extra)


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


def _describe(entry: Path, name: str, source: str, origin: str) -> None:
    files = {p.name: [p.stat().st_size, _checksum(p)] for p in sorted(entry.glob("*.npy"))}
    content = hashlib.sha256()
    for split in ("train", "test"):
        for column in ("features", "labels"):
            array = np.load(path_of(entry, split, column), mmap_mode="r", allow_pickle=False)
            content.update(f"{array.dtype.str}{array.shape}".encode())
            content.update(array.data)
    meta = {
        "name": name,
        "source": source,
        "origin": origin,
        "fingerprint": content.hexdigest(),
        "files": files,
    }
    (entry / "meta.json").write_text(json.dumps(meta, indent=1))


def _forget_older(name: str, origin: str, newest: Path) -> None:
    """Delete what was decoded from earlier states of the same files."""
    for meta in folder().glob(f"{name}-*/meta.json"):
        try:
            old = meta.parent != newest and json.loads(meta.read_text())["origin"] == origin
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if old:
            shutil.rmtree(meta.parent, ignore_errors=True)


def _checksum(path: Path) -> int:
    """CRC-32 of a file: a tenth of a second for CIFAR-10, and it catches what disks do."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
