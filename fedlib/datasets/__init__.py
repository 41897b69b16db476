"""Where examples come from: a name in, the train and test arrays of a dataset out.

A dataset is looked for inside the installed libraries (digits), in `$FEDLIB_DATA` (Parquet
files in the Hugging Face layout, `<name>/<split>-00000-of-00001.parquet`), among what has been
decoded before, and is else downloaded with torchvision unless FEDLIB_DOWNLOAD=0. Decoded arrays
stay in the user's cache (FEDLIB_CACHE), so every later opening takes a fraction of a second.
"""

import os
from pathlib import Path

from fedlib.datasets import cache, digits, parquet, vision
from fedlib.datasets.records import (
    RECORDS,
    Dataset,
    DatasetError,
    MissingDataError,
    Record,
    Split,
)
from fedlib.values import one_of

__all__ = ["Dataset", "DatasetError", "MissingDataError", "Split", "class_names", "load", "names"]


def names() -> tuple[str, ...]:
    """The datasets that `load` knows."""
    return ("digits", *RECORDS)


def class_names(name: str) -> tuple[str, ...]:
    """The names of a dataset's labels, in order, without looking for its examples."""
    one_of("dataset", name, names())
    return digits.DIGIT_NAMES if name == "digits" else RECORDS[name].class_names


def load(name: str) -> Dataset:
    """The dataset of that name: uint8 pictures [N, H, W, C] and int64 labels [N], read-only.

    ValueError for an unknown name; MissingDataError (a FileNotFoundError) when it is nowhere;
    DatasetError when its files are damaged or a download fails.
    """
    one_of("dataset", name, names())
    if name == "digits":
        return digits.load()
    record = RECORDS[name]
    train, test, meta = (
        _from_parquet(name, record) or cache.find(name) or _from_download(name, record)
    )
    return Dataset(
        name, train, test, record.class_names, record.mean, record.std,
        source=meta["source"], fingerprint=meta["fingerprint"],
    )  # fmt: skip


def _from_parquet(name: str, record: Record) -> cache.Entry | None:
    """What `$FEDLIB_DATA` holds of a dataset, None when that is nothing."""
    folder = _parquet_folder(name)
    if folder is None:
        return None
    files = {
        "train": parquet.files_of(folder, "train"),
        "test": parquet.files_of(folder, record.test),
    }
    if not any(files.values()):
        return None
    if not all(files.values()):
        lost = "train" if not files["train"] else record.test
        raise MissingDataError(f"{folder} has no {lost}-00000-of-00001.parquet, only the other")

    def build(target: Path) -> None:
        for split, paths in files.items():
            features = cache.path_of(target, split, "features")
            labels, extra = parquet.decode(paths, record, features, f"{name} {split}")
            cache.save(target, split, "labels", labels)
            for column, values in extra.items():
                cache.save(target, split, cache.EXTRA + column, values)

    stats = [
        [path.name, path.stat().st_size, path.stat().st_mtime_ns]
        for paths in files.values()
        for path in paths
    ]
    source = f"Parquet files of $FEDLIB_DATA/{name}"
    return cache.get(name, cache.key_of(name, stats), source, str(folder), build)


def _from_download(name: str, record: Record) -> cache.Entry:
    """A dataset by way of torchvision, or the error that says where it was looked for."""
    looked = _parquet_folder(name)
    where = str(looked / "train-00000-of-00001.parquet") if looked else "$FEDLIB_DATA (not set)"
    advice = (
        f"Set FEDLIB_DATA to a folder that holds {name}/train-00000-of-00001.parquet and "
        f"{name}/{record.test}-00000-of-00001.parquet (Hugging Face layout)"
    )
    if not vision.download_allowed() or record.torchvision is None:
        how = " or unset FEDLIB_DOWNLOAD to let it be downloaded" if record.torchvision else ""
        raise MissingDataError(
            f"dataset {name!r} was not found: looked for {where} and for decoded arrays in "
            f"{cache.folder()}. {advice}{how}."
        )

    def build(target: Path) -> None:
        vision.download(name, record, target, f"{advice}, or try again.")

    key = cache.key_of(name, "torchvision")
    return cache.get(name, key, "downloaded by torchvision", "torchvision", build)


def _parquet_folder(name: str) -> Path | None:
    root = os.environ.get("FEDLIB_DATA")
    if not root:
        return None
    folder = Path(root).expanduser().resolve()
    if not folder.is_dir():
        raise MissingDataError(f"FEDLIB_DATA is {root!r}, but there is no such folder")
    return folder / name
