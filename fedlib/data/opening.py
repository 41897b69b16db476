"""Where a dataset is found, and how it is opened: Parquet files, decoded arrays, a download."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from fedlib.data import cache, digits, hub, parquet
from fedlib.data.known import BUILT_IN, SAMPLE, record_of, require
from fedlib.data.records import Dataset, DatasetError, MissingDataError


class Found(NamedTuple):
    """The Parquet files of a dataset in `$FEDLIB_DATA`. key: of the entry made from them."""

    folder: Path
    files: parquet.Files
    key: str


def opened(name: str, thorough: bool) -> Dataset:
    """The dataset of that name; ``thorough`` compares checksums and makes anew what is damaged."""
    require(name)
    if name == "digits":
        return digits.load()
    entry = (
        from_parquet(name, thorough) or cache.find(name, thorough) or _from_download(name, thorough)
    )
    return dataset(name, entry)


def dataset(name: str, entry: cache.Entry) -> Dataset:
    """The dataset that a cache entry holds."""
    record, meta = record_of(name), entry.meta
    return Dataset(
        name, entry.train, entry.test, tuple(meta.get("class_names", record.class_names)),
        record.mean, record.std, source=meta["source"], fingerprint=meta["fingerprint"],
        vocabulary=entry.vocabulary,
    )  # fmt: skip


def decoded_entry(name: str) -> Path | None:
    """The cache entry that opening a dataset would look at first, if there is one."""
    if found := found_in_folder(name):
        entry = cache.place(name, found.key)
        return entry if entry.exists() else None
    return next(iter(cache.entries(name)), None)


def from_parquet(name: str, thorough: bool = False) -> cache.Entry | None:
    """What `$FEDLIB_DATA` holds of a dataset, None when that is nothing."""
    found, record = found_in_folder(name), record_of(name)
    if found is None:
        return None

    def build(target: Path) -> dict[str, Any]:
        if not name.endswith(SAMPLE):
            parquet.require_official(name, record, found.files, found.folder)
        return parquet.store(found.files, record, target, name)

    source = f"Parquet files of $FEDLIB_DATA/{found.folder.name}"
    return cache.get(name, found.key, source, str(found.folder), build, thorough)


def found_in_folder(name: str) -> Found | None:
    """What `$FEDLIB_DATA` holds of a dataset, None when that is nothing."""
    folder = _data_folder(name) if name in BUILT_IN else None
    if folder is None:
        return None
    try:
        files = parquet.files_of(folder, record_of(name))
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
    return Found(folder, files, cache.key_of(name, stats))


def _from_download(name: str, thorough: bool) -> cache.Entry:
    """An official set from the web, or the error that says where it was looked for."""
    if name not in BUILT_IN:
        raise DatasetError(f"{name!r} in {cache.folder()} is damaged: add its arrays again")
    record, looked = record_of(name), _data_folder(name)
    needed = [f"{name}/{split}-00000-of-00001.parquet" for split in record.splits]
    advice = f"Set FEDLIB_DATA to a folder that holds {' and '.join(needed)} (Hugging Face layout)"
    sample = name.endswith(SAMPLE)
    if sample or not hub.allowed():
        where = looked / Path(needed[0]).name if looked else "$FEDLIB_DATA (not set)"
        how = " or unset FEDLIB_DOWNLOAD to let it be downloaded"
        if sample:
            how = "; samples are not downloaded"
        raise MissingDataError(
            f"dataset {name!r} was not found: looked for {where} and for decoded arrays in "
            f"{cache.folder()}. {advice}{how}."
        )

    def build(target: Path) -> dict[str, Any]:
        try:
            return hub.store(name, record, target)
        except DatasetError as error:
            raise DatasetError(
                f"downloading {name!r} failed: {error} {advice}, or HF_ENDPOINT to the address of "
                "a mirror of the hub, or try again."
            ) from error

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
