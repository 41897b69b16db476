"""What there is of each dataset, and whether it is sound."""

from dataclasses import dataclass

import numpy as np

from fedlib.data import cache, digits, hub, parquet
from fedlib.data.known import SAMPLE, official_sizes, record_of, require
from fedlib.data.opening import dataset, decoded_entry, found_in_folder, from_parquet
from fedlib.data.records import Dataset, DatasetError


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


def describe(name: str) -> Availability:
    """Where a dataset would come from now, without decoding or downloading anything."""
    require(name)
    if name == "digits":
        sizes = digits.TRAIN_SIZE, digits.TEST_SIZE
        return Availability(name, "embedded", "scikit-learn", True, digits.SHAPE, 10, *sizes)
    record, sample = record_of(name), name.endswith(SAMPLE)
    place, where, decoded = "missing", "neither in $FEDLIB_DATA nor in the cache", False
    sizes_found: tuple[int | None, int | None] = official_sizes(name) or (None, None)
    try:
        decoded = decoded_entry(name) is not None
        if found := found_in_folder(name):
            if not decoded and not sample:
                parquet.require_official(name, record, found.files, found.folder)
            sizes_found = parquet.sizes(found.files, record)
            place, where = "parquet", str(found.folder)
        elif entry := cache.find(name):
            place, where = "cache", str(cache.folder())
            sizes_found = len(entry.train), len(entry.test)
        elif not sample and hub.allowed():
            place, where = "download", record.hub
    except DatasetError as error:
        where = str(error)
    classes = len(record.class_names)
    return Availability(name, place, where, decoded, record.shape, classes, *sizes_found)


def verify(name: str) -> list[str]:
    """What is wrong with the decoded arrays of a dataset, a sentence each; [] when it is sound.

    Compares all checksums, then sizes, labels and token ids with what they must be. Parquet files
    that were not decoded yet are decoded; nothing is downloaded. ValueError for an unknown name.
    """
    require(name)
    if name == "digits":
        return _content_faults("digits", digits.load(), None)
    try:
        entry = decoded_entry(name)
        if entry is None and found_in_folder(name) is None:
            return [f"{name} is neither in the cache ({cache.folder()}) nor in $FEDLIB_DATA"]
        if entry and (faults := cache.faults(entry, thorough=True)):
            return faults
        found = cache.read(entry) if entry else from_parquet(name)
    except DatasetError as error:
        return [str(error)]
    if found is None:
        return [f"{entry} cannot be read: its files are not those of a dataset"]
    return _content_faults(name, dataset(name, found), official_sizes(name))


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
