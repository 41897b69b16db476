"""The cache of decoded datasets, as memory-mapped .npy files.

An entry is a folder with the name of its dataset. It is written under another name and renamed when
it is complete, so that readers never see a partial entry; a lock file keeps two processes from
decoding the same dataset. `meta.json` describes the dataset, the `state` of the source from which
it was decoded, and size and time of every file. Entries whose files changed are decoded again.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib import files, paths
from fedlib.data.records import Dataset, DatasetError, Split, reading

# Increase this when the format or the decoding changes: official datasets are then decoded again.
VERSION = 5
ADDED = 4  # oldest readable version of user-defined datasets, which cannot be decoded again
OWN = "arrays of one's own"
META = "meta.json"
SPLITS = ("train", "test")
# Prefix of the files of columns that are neither features nor labels.
EXTRA = "column."
PUNYCODE = "xn--"  # prefix of encoded names that are not ASCII, as in host names
# The splits of a dataset, "train" and perhaps "test", and its vocabulary, () if it has none.
Made = tuple[dict[str, Split], tuple[str, ...]]


def folder() -> Path:
    """Return the folder of the cache."""
    return paths.cache() / "datasets"


def get(name: str, state: Any, about: dict[str, Any], build: Callable[[], Made]) -> Dataset:
    """Return a dataset from the cache; build it if it is missing or its source has changed.

    Args:
        name: name of the dataset.
        state: state of the source, as JSON; None always builds the dataset.
        about: source, class names, mean and standard deviation, which do not depend on the machine.
        build: returns the splits and the vocabulary.

    Raises:
        DatasetError: if the cache cannot be written.
    """
    if state and (found := sound(name, state)):
        return found
    try:
        with files.lock(folder() / f"{name}.lock"):
            if state and (found := sound(name, state)):
                return found  # another process has built it meanwhile
            files.clean(folder(), name)
            splits, vocabulary = build()
            meta = _meta(state, about, _with_test(splits), vocabulary)
            if state or not _holds(name, meta):  # other processes may be reading the same arrays
                files.write(folder() / name, partial(_write, splits, meta))
            return read(name)
    except OSError as error:
        now = "free some space, or set FEDLIB_CACHE to a folder that can be written"
        raise DatasetError(f"cannot write decoded data to {folder()}: {error}; {now}") from error


def sound(name: str, state: Any = None) -> Dataset | None:
    """Return the dataset of an intact entry, built from ``state`` unless that is None, or None."""
    with suppress(DatasetError):
        if state is None or meta_of(name)["state"] == state:
            return read(name)
    return None


def restore() -> None:
    """Wait for processes that replace an entry, and restore those of processes that were killed."""
    for old in folder().glob(files.OLD.format("*")):
        settled(old.name.removeprefix(".").removesuffix(".old"))


def settled(name: str) -> Dataset | None:
    """Return the dataset of an intact entry, or None, when no process is writing it any more."""
    with suppress(OSError), files.lock(folder() / f"{name}.lock"):
        files.clean(folder(), name)
    return sound(name)


def stamp(path: Path) -> list[int]:
    """Return size and modification time of a file, by which changes are detected."""
    now = path.stat()
    return [now.st_size, now.st_mtime_ns]


def _with_test(splits: dict[str, Split]) -> dict[str, Split]:
    """Return splits with a test split, an empty one if there is none."""
    train = splits["train"]
    nothing = {n: values[:0] for n, values in train.columns.items()}
    splits.setdefault("test", Split(train.features[:0], train.labels[:0], nothing))
    return splits


def _meta(
    state: Any, about: dict[str, Any], splits: dict[str, Split], vocabulary: tuple[str, ...]
) -> dict[str, Any]:
    """Return the description of an entry, without its files."""
    made = _fingerprint(splits, vocabulary, None if state else about)
    own = {"version": VERSION, "vocabulary": vocabulary, "fingerprint": made}
    return {"state": state, **about} | own


def _holds(name: str, meta: dict[str, Any]) -> bool:
    """Return whether an intact entry has a description already."""
    wanted = json.loads(json.dumps(meta))
    with suppress(DatasetError):
        now = meta_of(name)
        return read(name) is not None and {n: now.get(n) for n in wanted} == wanted
    return False


def _write(splits: dict[str, Split], meta: dict[str, Any], entry: Path) -> None:
    """Write an entry into a new folder."""
    entry.mkdir()
    for split, part in splits.items():
        _save(entry / f"{split}.features.npy", part.features)
        _save(entry / f"{split}.labels.npy", part.labels)
        for column, values in part.columns.items():
            if not re.fullmatch(r"[\w.-]+", column):
                raise DatasetError(f"column {column!r}: a name may have letters, digits and _.-")
            _save(entry / f"{split}.{EXTRA}{_in_ascii(column)}.npy", values)
    meta = meta | {"files": {path.name: stamp(path) for path in sorted(entry.iterdir())}}
    meta["sum"] = zlib.crc32(json.dumps(meta).encode())
    (entry / META).write_text(json.dumps(meta), "utf-8")


def _in_ascii(column: str) -> str:
    """Return the name of a column in ASCII, since not all file systems support other letters."""
    return column if column.isascii() else PUNYCODE + column.encode("punycode").decode()


def _column_of(file: str) -> str:
    """Return the name of a column from its file name without split and suffix."""
    name = file.removeprefix(EXTRA)
    code = name.removeprefix(PUNYCODE)
    return name if code == name else code.encode().decode("punycode")


def _save(path: Path, values: NDArray[Any]) -> None:
    descr = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": values.shape}
    with path.open("wb") as file:
        # Not numpy.save, which silently loses the last bytes if the disk is full.
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(values).data)


def _fingerprint(
    splits: dict[str, Split], vocabulary: tuple[str, ...], own: dict[str, Any] | None
) -> str:
    """Return the SHA-256, in hexadecimal, of features, labels and vocabulary.

    Args:
        splits: the splits.
        vocabulary: the token of every token id.
        own: ``about`` of a user-defined dataset, whose further columns, mean and std are hashed
            too; None for an official dataset.
    """
    content = hashlib.sha256()
    if own:
        columns = [sorted(part.columns) for part in splits.values()]
        content.update(json.dumps([own["mean"], own["std"], columns]).encode())
    for part in splits.values():
        extra = [part.columns[name] for name in sorted(part.columns)] if own else []
        for values in (part.features, part.labels, *extra):
            content.update(f"{values.dtype.str}{values.shape}".encode())
            content.update(np.ascontiguousarray(values).data)
    content.update(json.dumps(vocabulary).encode() if vocabulary else b"")
    return content.hexdigest()


def meta_of(name: str) -> dict[str, Any]:
    """Return the description of an entry; raise DatasetError if it is damaged or outdated."""
    path = folder() / name / META
    with reading(path):
        meta: dict[str, Any] = json.loads(path.read_text("utf-8"))
        same = meta.pop("sum") == zlib.crc32(json.dumps(meta).encode())
        if not same or meta["version"] < (ADDED if meta["source"] == OWN else VERSION):
            raise ValueError("it is damaged, or of another version of this library")
        return meta


def read(name: str) -> Dataset:
    """Return the dataset of an entry; raise DatasetError if a file is missing or has changed."""
    meta, entry = meta_of(name), folder() / name
    arrays: dict[str, dict[str, NDArray[Any]]] = {split: {} for split in SPLITS}
    with reading(entry):
        for file, state in meta["files"].items():
            if stamp(entry / file) != state:
                raise ValueError(f"{file} has changed")
            split, column = file.removesuffix(".npy").split(".", 1)
            arrays[split][column] = np.load(entry / file, mmap_mode="r", allow_pickle=False)
        train, test = (_split(arrays[split]) for split in SPLITS)
        names, mean, std = (tuple(meta[part]) for part in ("class_names", "mean", "std"))
        source = meta["source"], meta["fingerprint"], tuple(meta["vocabulary"])
        features = tuple(meta.get("feature_names", ()))
        if meta["version"] == ADDED and any(mean):  # its mean was that of all examples: refit it
            return Dataset(name, train, test, names, (), (), *source, fit=True)
        return Dataset(name, train, test, names, mean, std, *source, meta["fit"], features)


def _split(arrays: dict[str, NDArray[Any]]) -> Split:
    extra = {_column_of(n): a for n, a in arrays.items() if n.startswith(EXTRA)}
    return Split(arrays["features"], arrays["labels"], dict(sorted(extra.items())))
