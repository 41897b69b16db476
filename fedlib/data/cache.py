"""Decoded datasets as .npy files in the user's cache: written once, memory-mapped ever after.

An entry is a folder with the name of its dataset. It is written under another name and renamed when
it is complete, so a reader sees all of it or nothing; a lock next to it keeps two processes from
doing the same work. `meta.json` says what the dataset is, from which `state` of its source it was
made, and size and time of every file. An entry that is not as it was written is made again.
"""

import hashlib
import json
import re
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
from fedlib.data.records import Dataset, DatasetError, Split, reading

# Raise it when what is stored, or how it is decoded, changes.
VERSION = 5
ADDED = 4  # the oldest version of which data of one's own, which nobody can decode again, are read
OWN = "arrays of one's own"
META = "meta.json"
SPLITS = ("train", "test")
# Before the names of columns that are neither features nor labels.
EXTRA = "column."
PUNYCODE = "xn--"  # before names that are no ASCII, as in names of hosts
# The splits of a dataset, "train" and perhaps "test", and its vocabulary, () if it has none.
Made = tuple[dict[str, Split], tuple[str, ...]]


def folder() -> Path:
    """Where decoded datasets are kept."""
    return paths.cache() / "datasets"


def get(name: str, state: Any, about: dict[str, Any], build: Callable[[], Made]) -> Dataset:
    """The dataset made from a source in this state, built first when it is not there.

    state: of where its examples lie, as JSON; None builds it in any case. about: its source, class
    names, mean and standard deviation, the same on every machine. DatasetError when the cache
    cannot be written.
    """
    if state and (found := sound(name, state)):
        return found
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with FileLock(folder() / f"{name}.lock"):
            if state and (found := sound(name, state)):
                return found  # another process was faster
            _write(name, state, about, build())
            return read(name)
    except OSError as error:
        now = "free some space, or set FEDLIB_CACHE to a folder that can be written"
        raise DatasetError(f"cannot write decoded data to {folder()}: {error}; {now}") from error


def sound(name: str, state: Any = None) -> Dataset | None:
    """The dataset of an entry if there is a sound one, made from a source in a state if given."""
    with suppress(DatasetError):
        if state is None or meta_of(name)["state"] == state:
            return read(name)
    return None


def stamp(path: Path) -> list[int]:
    """The size and the time of a file, which tell whether it is the one that it was."""
    now = path.stat()
    return [now.st_size, now.st_mtime_ns]


def _write(name: str, state: Any, about: dict[str, Any], made: Made) -> None:
    """Write an entry in place of the one that there was; a test split that is left out is empty."""
    splits, vocabulary = made
    train, partial = splits["train"], folder() / f"{name}.partial"
    nothing = {n: values[:0] for n, values in train.columns.items()}
    splits.setdefault("test", Split(train.features[:0], train.labels[:0], nothing))
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        partial.mkdir()
        for split, part in splits.items():
            _save(partial / f"{split}.features.npy", part.features)
            _save(partial / f"{split}.labels.npy", part.labels)
            for column, values in part.columns.items():
                if not re.fullmatch(r"[\w.-]+", column):
                    raise DatasetError(f"column {column!r} cannot be kept, it would name a file")
                _save(partial / f"{split}.{EXTRA}{_in_ascii(column)}.npy", values)
        meta = {"state": state, **about} | {
            "version": VERSION,
            "vocabulary": vocabulary,
            "fingerprint": _fingerprint(splits, vocabulary, None if state else about),
            "files": {path.name: stamp(path) for path in sorted(partial.iterdir())},
        }
        meta["sum"] = zlib.crc32(json.dumps(meta).encode())
        (partial / META).write_text(json.dumps(meta), "utf-8")
        shutil.rmtree(folder() / name, ignore_errors=True)
        partial.rename(folder() / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _in_ascii(column: str) -> str:
    """A column's name as part of a file's, in letters that every machine's encoding has."""
    return column if column.isascii() else PUNYCODE + column.encode("punycode").decode()


def _column_of(file: str) -> str:
    """The column whose values a file holds, by the file's name without its split and suffix."""
    name = file.removeprefix(EXTRA)
    code = name.removeprefix(PUNYCODE)
    return name if code == name else code.encode().decode("punycode")


def _save(path: Path, values: NDArray[Any]) -> None:
    descr = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": values.shape}
    with path.open("wb") as file:
        # Not numpy.save: on a full disk it loses the last bytes and does not say so.
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(values).data)


def _fingerprint(
    splits: dict[str, Split], vocabulary: tuple[str, ...], own: dict[str, Any] | None
) -> str:
    """SHA-256, in hex, of what training sees: features, labels, and what token ids stand for.

    Of one's ``own`` also further columns and how they look, which no official set says.
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
    """What is told of an entry. DatasetError unless it is as it was written."""
    path = folder() / name / META
    with reading(path):
        meta: dict[str, Any] = json.loads(path.read_text("utf-8"))
        same = meta.pop("sum") == zlib.crc32(json.dumps(meta).encode())
        if not same or meta["version"] < (ADDED if meta["source"] == OWN else VERSION):
            raise ValueError("it is damaged, or of another version of this library")
        return meta


def read(name: str) -> Dataset:
    """The dataset of an entry. DatasetError unless it is complete and sound."""
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
        if meta["version"] == ADDED and any(mean):  # of all examples, whoever trains on them
            return Dataset(name, train, test, names, (), (), *source, fit=True)
        return Dataset(name, train, test, names, mean, std, *source, meta["fit"], features)


def _split(arrays: dict[str, NDArray[Any]]) -> Split:
    extra = {_column_of(n): a for n, a in arrays.items() if n.startswith(EXTRA)}
    return Split(arrays["features"], arrays["labels"], dict(sorted(extra.items())))
