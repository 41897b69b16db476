"""Where examples come from: a name in, the train and test arrays of a dataset out.

A dataset is looked for inside the installed libraries (digits), in `$FEDLIB_DATA` (Parquet
files in the Hugging Face layout, `<name>/<split>-00000-of-00001.parquet`), among what has been
decoded before, and is else downloaded. Decoded arrays stay in the user's cache (FEDLIB_CACHE), so
every later opening takes a fraction of a second and no memory until pixels are used.

A name stands for the official set and nothing else. `<name>_sample` is the name of whatever
`$FEDLIB_DATA/<name>_sample`, or else `$FEDLIB_DATA/<name>`, holds; samples are never downloaded.
`add` makes a dataset of arrays, which lies in the cache and is known by its name from then on.

Downloads are resumed, retried, checked by checksum and kept in FEDLIB_CACHE/downloads; no file is
ever unpickled. What steers them::

    FEDLIB_DOWNLOAD=0      forbids them.
    FEDLIB_HUB             the Hugging Face hub, or a mirror of it: https://huggingface.co.
    FEDLIB_MIRROR_<NAME>   one dataset's files lie under this address: FEDLIB_MIRROR_CIFAR10
                           holds cifar-10-binary.tar.gz, FEDLIB_MIRROR_MNIST
                           train-images-idx3-ubyte.gz and so on, FEDLIB_MIRROR_FEMNIST the hub's
                           Parquet files. Checksums stay those of the original, which for Parquet
                           the hub is asked for.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlib.datasets import cache, digits, download, own, parquet, sources
from fedlib.datasets.records import (
    RECORDS,
    Dataset,
    DatasetError,
    MissingDataError,
    Record,
    Split,
)
from fedlib.values import one_of

__all__ = [
    "Availability",
    "Dataset",
    "DatasetError",
    "MissingDataError",
    "Split",
    "add",
    "class_names",
    "describe",
    "fetch",
    "form",
    "load",
    "names",
    "require",
    "verify",
]

SAMPLE = "_sample"
_LISTED_SAMPLES = ("cifar100_sample", "tiny_imagenet_sample", "femnist_sample")
_KNOWN = ("digits", *RECORDS, *(f"{official}{SAMPLE}" for official in RECORDS))


@dataclass(frozen=True)
class Availability:
    """Where a dataset would come from, and what it is.

    place: "embedded", "parquet" (in $FEDLIB_DATA), "cache", "download" or "missing". where: the
    folder or host, or why it is missing. decoded: whether opening it takes no decoding.
    train, test: examples that are there, else those of the official set; None for an absent sample.
    """

    name: str
    place: str
    where: str
    decoded: bool
    shape: tuple[int, ...]
    classes: int
    train: int | None
    test: int | None


def names() -> tuple[str, ...]:
    """The datasets that `load` knows; any Parquet-backed one may also be a `<name>_sample`."""
    return ("digits", *RECORDS, *_LISTED_SAMPLES, *own.names())


def add(
    name: str, train: own.Arrays, test: own.Arrays | None = None, class_names: Sequence[str] = ()
) -> Dataset:
    """Store pictures and labels in the cache under a name of one's own, for good; return them.

    train, test: pictures uint8 [N, H, W, C], with one channel or three, and labels [N], integers
    0..classes-1; without a test split, tasks can only hold out clients' `Own` examples.
    class_names: of all labels, "0", "1", ... if there are none. What the name held before is
    replaced. ValueError for other arrays and for names that are taken.
    """
    if name in _KNOWN:
        raise ValueError(f"{name!r} is the name of a dataset that is known already")
    return _dataset(name, own.add(name, train, test, class_names))


def require(name: str) -> None:
    """ValueError, with the names that `load` knows, for an unknown one."""
    if name not in _KNOWN and own.record(name) is None:
        one_of("dataset", name, names())


def class_names(name: str) -> tuple[str, ...]:
    """The names of a dataset's labels, in order, without looking for its examples."""
    require(name)
    return digits.DIGIT_NAMES if name == "digits" else _record(name).class_names


def form(name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the number of classes, without looking for the examples."""
    require(name)
    shape = digits.SHAPE if name == "digits" else _record(name).shape
    return shape, len(class_names(name))


def load(name: str) -> Dataset:
    """The dataset of that name, read-only: features and int64 labels [N] of both splits.

    ValueError for an unknown name; MissingDataError (a FileNotFoundError) when it is nowhere;
    DatasetError when its files are damaged or not those of the official set, or a download fails.
    """
    return _opened(name, thorough=False)


def fetch(name: str) -> Dataset:
    """The dataset of that name, downloaded and decoded where need be, and checked to the last byte.

    Other than `load`, which trusts a file's size and time, this compares all checksums, and makes
    anew what is damaged. The same errors.
    """
    return _opened(name, thorough=True)


def verify(name: str) -> list[str]:
    """What is wrong with the decoded arrays of a dataset, a sentence each; [] when it is sound.

    Compares all checksums, then sizes, labels and token ids with what they must be. Parquet files
    that were not decoded yet are decoded; nothing is downloaded. ValueError for an unknown name.
    """
    require(name)
    if name == "digits":
        return _content_faults("digits", digits.load(), None)
    try:
        entry = _decoded(name)
        if entry is None and _found(name) is None:
            return [f"{name} is neither in the cache ({cache.folder()}) nor in $FEDLIB_DATA"]
        if entry and (faults := cache.faults(entry, thorough=True)):
            return faults
        found = cache.read(entry) if entry else _from_parquet(name)
    except DatasetError as error:
        return [str(error)]
    if found is None:
        return [f"{entry} cannot be read: its files are not those of a dataset"]
    return _content_faults(name, _dataset(name, found), _official_sizes(name))


def describe(name: str) -> Availability:
    """Where a dataset would come from now, without decoding or downloading anything."""
    require(name)
    if name == "digits":
        sizes = digits.TRAIN_SIZE, digits.TEST_SIZE
        return Availability(name, "embedded", "scikit-learn", True, digits.SHAPE, 10, *sizes)
    record, sample = _record(name), name.endswith(SAMPLE)
    place, where, decoded = "missing", "neither in $FEDLIB_DATA nor in the cache", False
    sizes_found: tuple[int | None, int | None] = _official_sizes(name) or (None, None)
    try:
        decoded = _decoded(name) is not None
        if found := _found(name):
            if not decoded and not sample:
                parquet.require_official(name, record, found.files, found.folder)
            sizes_found = parquet.sizes(found.files, record)
            place, where = "parquet", str(found.folder)
        elif entry := cache.find(name):
            place, where = "cache", str(cache.folder())
            sizes_found = len(entry.train), len(entry.test)
        elif not sample and download.allowed():
            place, where = "download", sources.mirror(name) or record.hub or "torchvision's mirrors"
    except DatasetError as error:
        where = str(error)
    classes = len(record.class_names)
    return Availability(name, place, where, decoded, record.shape, classes, *sizes_found)


def _opened(name: str, thorough: bool) -> Dataset:
    require(name)
    if name == "digits":
        return digits.load()
    entry = (
        _from_parquet(name, thorough)
        or cache.find(name, thorough)
        or _from_download(name, thorough)
    )
    return _dataset(name, entry)


def _record(name: str) -> Record:
    known = RECORDS.get(name.removesuffix(SAMPLE)) or own.record(name)
    assert known is not None, "a name is required to be known first"
    return known


def _official_sizes(name: str) -> tuple[int, int] | None:
    """Training and test examples that a dataset must have, None for a sample."""
    return None if name.endswith(SAMPLE) else _record(name).sizes


def _dataset(name: str, entry: cache.Entry) -> Dataset:
    record, meta = _record(name), entry.meta
    return Dataset(
        name, entry.train, entry.test, tuple(meta.get("class_names", record.class_names)),
        record.mean, record.std, source=meta["source"], fingerprint=meta["fingerprint"],
        vocabulary=entry.vocabulary,
    )  # fmt: skip


def _decoded(name: str) -> Path | None:
    """The cache entry that opening a dataset would look at first, if there is one."""
    if found := _found(name):
        entry = cache.place(name, found.key)
        return entry if entry.exists() else None
    return next(iter(cache.entries(name)), None)


def _from_parquet(name: str, thorough: bool = False) -> cache.Entry | None:
    """What `$FEDLIB_DATA` holds of a dataset, None when that is nothing."""
    found, record = _found(name), _record(name)
    if found is None:
        return None

    def build(target: Path) -> dict[str, Any]:
        if not name.endswith(SAMPLE):
            parquet.require_official(name, record, found.files, found.folder)
        return parquet.store(found.files, record, target, name)

    source = f"Parquet files of $FEDLIB_DATA/{found.folder.name}"
    return cache.get(name, found.key, source, str(found.folder), build, thorough)


class _Found(NamedTuple):
    """The Parquet files of a dataset in `$FEDLIB_DATA`. key: of the entry made from them."""

    folder: Path
    files: parquet.Files
    key: str


def _found(name: str) -> _Found | None:
    """What `$FEDLIB_DATA` holds of a dataset, None when that is nothing."""
    folder = _data_folder(name) if name in _KNOWN else None
    if folder is None:
        return None
    try:
        files = parquet.files_of(folder, _record(name))
        stats = [
            [path.name, path.stat().st_size, path.stat().st_mtime_ns]
            for paths in files.values()
            for path in paths
        ]
    except OSError as error:
        raise DatasetError(f"{folder} cannot be read: {error}") from error
    if not stats:
        return None
    if lacking := [split for split, paths in files.items() if not paths]:
        raise MissingDataError(
            f"{folder} has no {lacking[0]}-00000-of-00001.parquet, only the other"
        )
    return _Found(folder, files, cache.key_of(name, stats))


def _from_download(name: str, thorough: bool) -> cache.Entry:
    """An official set from the web, or the error that says where it was looked for."""
    if name not in _KNOWN:
        raise DatasetError(f"{name!r} in {cache.folder()} is damaged: add its arrays again")
    record, looked = _record(name), _data_folder(name)
    needed = [f"{name}/{split}-00000-of-00001.parquet" for split in record.splits]
    advice = f"Set FEDLIB_DATA to a folder that holds {' and '.join(needed)} (Hugging Face layout)"
    sample = name.endswith(SAMPLE)
    if sample or not download.allowed():
        where = looked / Path(needed[0]).name if looked else "$FEDLIB_DATA (not set)"
        how = " or unset FEDLIB_DOWNLOAD to let it be downloaded"
        if sample:
            how = "; samples are not downloaded"
        raise MissingDataError(
            f"dataset {name!r} was not found: looked for {where} and for decoded arrays in "
            f"{cache.folder()}. {advice}{how}."
        )

    def build(target: Path) -> dict[str, Any]:
        mirror = sources.mirror_variable(name)
        how = f"{advice}, or {mirror} to the address of a mirror, or try again."
        return sources.build(name, record, target, how)

    key = cache.key_of(name, "download")
    return cache.get(name, key, "downloaded", "download", build, thorough)


def _data_folder(name: str) -> Path | None:
    """Where `$FEDLIB_DATA` may hold a dataset; a sample may lie where the official set would."""
    root = os.environ.get("FEDLIB_DATA")
    if not root:
        return None
    folder = Path(root).expanduser().resolve()
    if not folder.is_dir():
        raise MissingDataError(
            f"FEDLIB_DATA is {root!r}, but there is no such folder: name one, or unset it"
        )
    own = folder / name
    return own if own.is_dir() else folder / name.removesuffix(SAMPLE)


def _content_faults(name: str, data: Dataset, official: tuple[int, int] | None) -> list[str]:
    """What is wrong with the arrays of a dataset, whatever their checksums say."""
    found = []
    sizes = len(data.train), len(data.test)
    if official and sizes != official:
        found.append(f"{name} has {sizes} training and test examples, not {official}")
    kind = np.dtype(np.int32 if data.vocabulary else np.uint8)
    for split, part in (("train", data.train), ("test", data.test)):
        if part.features.dtype != kind or part.features.shape[1:] != data.shape:
            found.append(f"{name} {split}: features are {part.features.dtype} {part!r}")
        for what, values, limit in (
            ("label", part.labels, data.classes),
            ("token id", part.features, len(data.vocabulary)),
        ):
            if limit and len(values) and not 0 <= values.min() <= values.max() < limit:
                found.append(f"{name} {split}: a {what} is outside 0..{limit - 1}")
    return found
