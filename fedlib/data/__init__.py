"""Where examples come from: a name in, the train and test arrays of a dataset out.

A dataset is looked for inside the installed libraries (digits), in `$FEDLIB_DATA` (Parquet
files in the Hugging Face layout, `<name>/<split>-00000-of-00001.parquet`), among what has been
decoded before, and is else downloaded. Decoded arrays stay in the user's cache (FEDLIB_CACHE), so
every later opening takes a fraction of a second and no memory until pixels are used.

A name stands for the official set and nothing else. `<name>_sample` is the name of whatever
`$FEDLIB_DATA/<name>_sample`, or else `$FEDLIB_DATA/<name>`, holds; samples are never downloaded.
`add` makes a dataset of arrays, `add_from_hub` of columns of one on the Hugging Face hub; it lies
in the cache and is known by its name from then on.

Downloads come from the Hugging Face hub, each set at a commit of its own, and are kept in
FEDLIB_CACHE/downloads; `huggingface_hub` resumes and retries them, and their SHA-256 is compared
with the hub's. No file is ever unpickled. What steers them::

    FEDLIB_DOWNLOAD=0      forbids them.
    HF_ENDPOINT            a mirror of the hub, in place of https://huggingface.co.
    HF_HUB_OFFLINE=1       asks nobody: what was downloaded before is all that there is.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedlib import paths, progress
from fedlib.data import arrays, cache, parquet
from fedlib.data.arrays import add
from fedlib.data.records import RECORDS, Dataset, DatasetError, MissingDataError, Record, Split
from fedlib.values import one_of

SAMPLE = "_sample"
LISTED_SAMPLES = ("cifar100_sample", "tiny_imagenet_sample", "femnist_sample")
NO_SAMPLES = "; samples are not downloaded"
DIGITS = "digits"
# Failures of the disk: no fault of the hub, and another attempt will not help.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}

Sizes = tuple[int | None, int | None]


def names() -> tuple[str, ...]:
    """The datasets that `load` knows; any Parquet-backed one may also be a `<name>_sample`."""
    return (*RECORDS, *LISTED_SAMPLES, *arrays.added())


def require(name: str) -> None:
    """ValueError, with the names that `load` knows, for an unknown one."""
    if _record(name) is None:
        one_of("dataset", name, names())


def _record(name: str) -> Record | None:
    """What is known of an official set, or of a sample of one; None for other names."""
    return RECORDS.get(name if name.startswith(DIGITS) else name.removesuffix(SAMPLE))


def class_names(name: str) -> tuple[str, ...]:
    """The names of a dataset's labels, in order, without looking for its examples."""
    return (_record(name) or load(name)).class_names


def form(name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the number of classes, without looking for the examples."""
    return (_record(name) or load(name)).shape, len(class_names(name))


def _place(name: str) -> tuple[str, str, Sizes, Callable[[], Dataset]]:
    """Where a dataset would come from now, see `Availability`, and how it is opened."""
    require(name)
    record = _record(name)
    if name == DIGITS:
        return "embedded", "scikit-learn", _official(name), arrays.digits
    if record and (found := _found(name, record)):
        opened = partial(_decoded, name, record, *found)
        return "parquet", str(found[0]), parquet.sizes(found[1]), opened
    if data := cache.find(name):
        return "cache", str(cache.folder()), (len(data.train), len(data.test)), lambda: data
    if not record:
        raise DatasetError(f"{name!r} in {cache.folder()} is damaged: add its arrays again")
    place, where = "missing", "neither in $FEDLIB_DATA nor in the cache"
    if _allowed() and not name.endswith(SAMPLE):
        place, where = "download", record.hub
    return place, where, _official(name), partial(_downloaded, name, record)


def _official(name: str) -> Sizes:
    return RECORDS[name].sizes if name in RECORDS else (None, None)


def load(name: str) -> Dataset:
    """The dataset of that name, read-only: features and int64 labels [N] of both splits.

    ValueError for an unknown name; MissingDataError (a FileNotFoundError) when it is nowhere;
    DatasetError when its files are damaged or not those of the official set, or a download fails.
    """
    return _place(name)[-1]()


def fetch(name: str) -> Dataset:
    """The dataset of that name, downloaded and decoded where need be, and checked to the last byte.

    Other than `load`, which trusts a file's size and time, this compares all checksums, and makes
    anew what is damaged. The same errors.
    """
    if verify(name):
        for entry in cache.entries(name):
            (entry / cache.META).unlink(missing_ok=True)
    return load(name)


def _found(name: str, record: Record) -> tuple[Path, parquet.Files] | None:
    """The Parquet files of a dataset in `$FEDLIB_DATA`, and their folder; None without any."""
    folder = _data_folder(name)
    files = parquet.files_of(folder, record) if folder else {}
    if not folder or not files:
        return None
    if name in RECORDS:
        parquet.require_official(name, record, files, folder)
    return folder, files


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


def _decoded(name: str, record: Record, folder: Path, files: parquet.Files) -> Dataset:
    states = [(path, path.stat()) for part in files.values() for path in part]
    key = cache.key_of([[path.name, now.st_size, now.st_mtime_ns] for path, now in states])
    told = _told(record, f"Parquet files of $FEDLIB_DATA/{folder.name}")
    return cache.get(name, str(folder), key, told, lambda: parquet.store(files, record, name))


def _told(record: Record, source: str) -> dict[str, object]:
    look = {"class_names": record.class_names, "mean": record.mean, "std": record.std}
    return {"source": source, **look}


def _downloaded(name: str, record: Record) -> Dataset:
    """An official set from the hub, or the error that says where it was looked for."""
    needed = [f"{name}/{split}-00000-of-00001.parquet" for split in record.splits]
    advice = f"Set FEDLIB_DATA to a folder that holds {' and '.join(needed)} (Hugging Face layout)"
    if name.endswith(SAMPLE) or not _allowed():
        looked = _data_folder(name) or "$FEDLIB_DATA (not set)"
        how = " or unset FEDLIB_DOWNLOAD to let it be downloaded"
        raise MissingDataError(
            f"dataset {name!r} was not found: looked in {looked} and for decoded arrays in "
            f"{cache.folder()}. {advice}{NO_SAMPLES if name.endswith(SAMPLE) else how}."
        )
    repository, _, folder = record.hub.rpartition("/")

    def build() -> cache.Arrays:
        try:
            files = _fetched(repository, folder, record)
            parquet.require_official(name, record, files, repository)
            return parquet.store(files, record, name)
        except DatasetError as error:
            raise DatasetError(
                f"downloading {name!r} failed: {str(error).rstrip('.')}. {advice}, or HF_ENDPOINT "
                "to the address of a mirror of the hub, or try again."
            ) from error

    told = _told(record, f"downloaded from the Hugging Face hub, {repository}")
    return cache.get(name, "download", record.revision, told, build)


def add_from_hub(
    name: str,
    repository: str,
    features: str | Sequence[str] = "image",
    label: str = "label",
    columns: Sequence[str] = (),
    *,
    splits: Sequence[str] = ("train", "test"),
    folder: str = "data",
    revision: str = "main",
    class_names: Sequence[str] = (),
    scale: str = "channel",
) -> Dataset:
    """Store a dataset of the Hugging Face hub under a name of one's own, as `add` does.

    repository: owner/name; folder: where its files <split>-00000-of-0000N.parquet lie. features: a
    column of pictures, texts (200 tokens of each are kept) or lists of numbers, or some columns of
    numbers; label: of class numbers; columns: others to keep, such as whose an example is. splits:
    the one for training and, if there is one, the one for tests. The errors of `add`, and
    DatasetError when files cannot be had or are of another kind.
    """
    if not _allowed():
        raise MissingDataError("downloads are forbidden: unset FEDLIB_DOWNLOAD")
    chosen = (features,) if isinstance(features, str) else tuple(features)
    record = Record((), (), (), (), (0, 0), revision=revision, splits=tuple(splits),
                    features=chosen, label=label, columns=tuple(columns))  # fmt: skip
    stored = parquet.store(_fetched(repository, folder, record), record, name)
    words = stored["train"].get("vocabulary", np.frombuffer(b"[]", np.uint8)).tobytes()
    train, *tests = (
        (part["features"], part["labels"], {n: part[cache.EXTRA + n] for n in columns})
        for part in stored.values()
    )
    test = tests[0] if tests else None
    return add(name, train, test, class_names, scale, json.loads(words))


def _allowed() -> bool:
    """Whether the environment leaves downloads on (FEDLIB_DOWNLOAD=0 turns them off)."""
    return os.environ.get("FEDLIB_DOWNLOAD", "1").strip().lower() not in ("0", "false", "no", "off")


def _fetched(repository: str, folder: str, record: Record) -> parquet.Files:
    """The files of a set from the hub, each compared with its SHA-256.

    DatasetError, with the file and both checksums, when one is damaged twice in a row.
    """
    for _ in range(2):
        files = parquet.files_of(_snapshot(repository, folder, record) / folder, record)
        if not files:
            raise DatasetError(f"{repository} has no files of split 'train' in {folder}.")
        faults = []
        for path in (path for part in files.values() for path in part):
            kept, expected = path.resolve(), path.resolve().name
            with kept.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
            if found != expected:
                faults.append(f"{folder}/{path.name} of {repository} has SHA-256 {found}, but "
                              f"{expected} is expected.")  # fmt: skip
                kept.unlink()
                path.unlink(missing_ok=True)  # what links to it
        if not faults:
            return files
    raise DatasetError(faults[0])


def _snapshot(repository: str, folder: str, record: Record) -> Path:
    """The folder of a commit, with the files of a set in it. DatasetError when it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if progress.quiet() or not progress.watched():
        disable_progress_bars()
    try:
        found = snapshot_download(
            repository,
            repo_type="dataset",
            revision=record.revision,
            allow_patterns=[f"{folder}/{split}-*.parquet" for split in record.splits],
            cache_dir=paths.cache() / "downloads",
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    except Exception as error:  # of its HTTP library too, which is another in every version
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DatasetError(f"{repository} cannot be had: {reason}.") from error
    return Path(found)


@dataclass(frozen=True)
class Availability:
    """Where a dataset would come from, and what it is.

    place: "embedded", "parquet" (in $FEDLIB_DATA), "cache", "download" or "missing". where: the
    folder or host, or why it is missing.
    train, test: examples that are there, else those of the official set; None for an absent sample.
    """

    name: str
    place: str
    where: str
    shape: tuple[int, ...]
    classes: int
    train: int | None
    test: int | None


def describe(name: str) -> Availability:
    """Where a dataset would come from now, without decoding or downloading anything."""
    try:
        place, where, sizes, _ = _place(name)
    except DatasetError as error:
        place, where, sizes = "missing", str(error), _official(name)
    known = form(name) if _record(name) or place == "cache" else ((), 0)
    return Availability(name, place, where, *known, *sizes)


def verify(name: str) -> list[str]:
    """What is wrong with the decoded arrays of a dataset, a sentence each; [] when it is sound.

    Compares all checksums. Parquet files that were not decoded yet are decoded; nothing is
    downloaded. ValueError for an unknown name.
    """
    told, entries = describe(name), cache.entries(name)
    if not entries and told.place in ("missing", "download"):
        return [f"{name} is not here: {told.where}"]
    try:
        for entry in entries:
            cache.read(entry, thorough=True)
        if not entries:
            load(name)
    except DatasetError as error:
        return [str(error)]
    return []
