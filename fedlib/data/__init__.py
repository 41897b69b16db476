"""Datasets: ``load`` returns the training and test arrays of a dataset by its name.

A dataset is searched for in the installed libraries (digits), in `$FEDLIB_DATA` (Parquet files in
the Hugging Face layout, `<name>/<split>-00000-of-00001.parquet`) and in the cache of decoded
datasets, in this order, and is downloaded otherwise. Decoded arrays are kept in the user's cache
(FEDLIB_CACHE) and memory-mapped, so that loading them again takes a fraction of a second.

The name of a dataset always means the complete official set. `<name>_sample` is whatever subset is
in `$FEDLIB_DATA/<name>_sample`, or else in `$FEDLIB_DATA/<name>`; samples are never downloaded.
`add_data` stores user-defined arrays as a dataset, and `add_from_hub` columns of a dataset on the
Hugging Face hub; both can then be loaded by name.

Downloads come from the Hugging Face hub, at a fixed commit for each dataset, and are kept in
FEDLIB_CACHE/downloads; `huggingface_hub` resumes and retries them. No file is ever unpickled. These
environment variables affect downloads::

    HF_ENDPOINT            the URL of a mirror of the hub, instead of https://huggingface.co.
    HF_HUB_OFFLINE=1       use only files that were downloaded before.
    HTTPS_PROXY            the URL of a proxy.

>>> digits = data.load("digits")
>>> digits.train.features.shape, digits.test.labels.shape
((1437, 16, 16, 1), (360,))
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache as remembered
from functools import partial
from pathlib import Path

from fedlib import paths, progress
from fedlib.data import arrays, cache, parquet
from fedlib.data.arrays import OWN, Fitted, add_data, fitted
from fedlib.data.records import RECORDS, Dataset, DatasetError, Record, Split, reading
from fedlib.values import check_choice

SAMPLE = "_sample"
LISTED_SAMPLES = ("cifar100_sample", "tiny_imagenet_sample", "femnist_sample")
DIGITS = "digits"


def names() -> tuple[str, ...]:
    """Return the names of all datasets; those in Parquet files may also be a `<name>_sample`."""
    return (*RECORDS, *LISTED_SAMPLES, *arrays.added())


def require(name: str) -> None:
    """Raise ValueError, with the names of all datasets, if there is no dataset of this name."""
    if _record(name) is None:
        check_choice("dataset", name, names())


def _record(name: str) -> Record | None:
    """Return the record of an official dataset or a sample of one; None for other names."""
    return RECORDS.get(name if name.startswith(DIGITS) else name.removesuffix(SAMPLE))


def class_names(name: str) -> tuple[str, ...]:
    """Return the class names of a dataset by label, without loading an official set."""
    return (_record(name) or load(name)).class_names


def form(name: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of an example and the number of classes, without loading an official set."""
    return (_record(name) or load(name)).shape, len(class_names(name))


def load(name: str) -> Dataset:
    """Return a dataset by its name; its arrays are read-only.

    Args:
        name: one of ``names()``, or `<name>_sample`.

    Raises:
        ValueError: if there is no dataset of this name.
        DatasetError: if its files are not found, damaged, or not those of the official set, or
            if the download fails.
    """
    return _found(name)[-1]()


def is_own(name: str) -> bool:
    """Return whether a name is that of a user-defined dataset, not of an official set or sample."""
    return _record(name) is None


def fingerprint(name: str) -> str:
    """Return the fingerprint of a dataset as it is stored now, "" if that is not known.

    Nothing is downloaded or decoded to compute it.

    Args:
        name: name of the dataset.

    Raises:
        DatasetError: if a user-defined dataset is missing.
    """
    if is_own(name):
        return str(cache.meta_of(name)["fingerprint"])
    new = name in RECORDS and name != DIGITS and not (cache.folder() / name).exists()
    with suppress(DatasetError):
        return "" if new else _fingerprint(name, _state(name), cache.folder())
    return ""


@remembered
def _fingerprint(name: str, state: object, where: Path) -> str:
    """Return the fingerprint, computed once per process for a ``state`` of the files."""
    place, _, opened = _found(name)
    return "" if place == "download" else opened().fingerprint


def _state(name: str) -> tuple[object, ...]:
    """Return path, size and time of the files in `$FEDLIB_DATA` with a dataset."""
    record, folder = _record(name), None if name == DIGITS else _data_folder(name)
    files = parquet.files_of(folder, record).values() if folder and record else ()
    return tuple((str(path), *cache.stamp(path)) for part in files for path in part)


def describe(name: str) -> tuple[str, str]:
    """Return where a dataset would be loaded from, without decoding or downloading it.

    Args:
        name: name of the dataset.

    Returns:
        "embedded", "parquet" (in $FEDLIB_DATA), "cache", "download" or "missing"; and the folder or
        repository, or the reason why it is missing.

    Raises:
        ValueError: if there is no dataset of this name.
    """
    try:
        return _found(name)[:2]
    except DatasetError as error:
        return "missing", str(error)


def _found(name: str) -> tuple[str, str, Callable[[], Dataset]]:
    """Return where a dataset would be loaded from, see `describe`, and a function that loads it."""
    require(name)
    record, where = _record(name), str(cache.folder())
    if name == DIGITS:
        return "embedded", "scikit-learn", arrays.digits
    folder = _data_folder(name) if record else None
    if record and folder and (files := parquet.files_of(folder, record)):
        if name in RECORDS:
            parquet.require_official(name, record, files, folder)
        return "parquet", str(folder), partial(_decoded, name, record, folder, files)
    # Another process may be replacing a user-defined set.
    if data := cache.sound(name) or (None if record else cache.settled(name)):
        return "cache", where, lambda: data
    if not record:
        raise DatasetError(f"{name!r} in {where} is damaged: add its arrays again")
    if name.endswith(SAMPLE):
        looked = f"looked in {folder or '$FEDLIB_DATA (not set)'} and for decoded arrays in {where}"
        advice = f"{_advice(name, record)}; samples are not downloaded."
        raise DatasetError(f"dataset {name!r} was not found: {looked}. {advice}")
    return "download", record.hub, partial(_downloaded, name, record)


def _data_folder(name: str) -> Path | None:
    """Return the folder in `$FEDLIB_DATA` of a dataset; None if the variable is not set."""
    root = os.environ.get("FEDLIB_DATA")
    if not root:
        return None
    folder = Path(root).expanduser().resolve()
    if not folder.is_dir():
        wrong = "there is no such folder, name one or unset it"
        raise DatasetError(f"FEDLIB_DATA is {root!r}: {wrong}")
    own = folder / name
    return own if own.is_dir() else folder / name.removesuffix(SAMPLE)


def _advice(name: str, record: Record) -> str:
    needed = [f"{name}/{split}-00000-of-00001.parquet" for split in record.splits]
    return f"Set FEDLIB_DATA to a folder that holds {' and '.join(needed)} (Hugging Face layout)"


def _decoded(name: str, record: Record, folder: Path, files: parquet.Files) -> Dataset:
    with reading(folder):
        every = [path for part in files.values() for path in part]
        state = [str(folder), *([path.name, *cache.stamp(path)] for path in every)]
    source = f"Parquet files of $FEDLIB_DATA/{folder.name}"
    return cache.get(
        name, state, record.about(source), lambda: parquet.decoded(files, record, name)
    )


def _downloaded(name: str, record: Record) -> Dataset:
    """Return an official dataset, downloaded from the hub unless it is cached."""
    repository, _, folder = record.hub.rpartition("/")

    def build() -> cache.Made:
        try:
            files = _fetched(repository, folder, record)
            parquet.require_official(name, record, files, repository)
            return parquet.decoded(files, record, name)
        except DatasetError as error:
            advice = f"{_advice(name, record)}, or HF_ENDPOINT to a mirror of the hub, or try again"
            raise DatasetError(f"downloading {name!r} failed: {error}. {advice}.") from error

    source = f"downloaded from the Hugging Face hub, {repository}"
    return cache.get(name, ["hub", record.revision], record.about(source), build)


def add_from_hub(
    name: str,
    repository: str | Path,
    features: str | Sequence[str] = "image",
    label: str = "label",
    columns: Sequence[str] = (),
    *,
    splits: Sequence[str] = ("train", "test"),
    folder: str = "data",
    revision: str = "main",
    class_names: Sequence[str] = (),
    normalise: bool = True,
    tokens: bool | None = None,
) -> Dataset:
    """Store a dataset of the Hugging Face hub, or of a local folder, under a name of your choice.

    Args:
        name: the name of the new dataset, as for `add_data`.
        repository: owner/name on the hub; or a local folder, which is a `Path` or a text that
            begins with /, . or ~.
        features: name of a column of images, texts (cut to 200 tokens) or lists of numbers, or
            names of several columns of numbers. Default: "image".
        label: name of the column of integer labels. Default: "label".
        columns: names of further columns to keep, such as the owner of each example. Default: ().
        splits: name of the training split, and of the test split if there is one. Default:
            ("train", "test").
        folder: folder in the repository with the files <split>-*.parquet, <split>.parquet or
            <split>/*.parquet. If a local repository has none there, they are searched for in the
            repository itself and its other folders. Default: "data".
        revision: a commit, tag or branch on the hub. Default: "main".
        class_names: class names by label. Default: those in the files, or else "0", "1", ...
        normalise: as for `add_data`. Default: True.
        tokens: whether integers are token ids. Default: None, which means those of a column of
            lists are, and those of several columns are not.

    Returns:
        the dataset, which `load` returns by its name from now on.

    Raises:
        ValueError: as for `add_data`.
        DatasetError: if the files cannot be downloaded or read, or have unsupported types.
    """
    chosen = (features,) if isinstance(features, str) else tuple(features)
    record = Record((), (), (), (), (0, 0), revision=revision, splits=tuple(splits),
                    features=chosen, label=label, columns=tuple(columns))  # fmt: skip
    files = _fetched(repository, folder, record)
    made = parquet.raw(files, record, name)
    if not len(class_names):
        told = parquet.class_names(next(iter(files.values()))[0], label)
        most = 1 + max(int(part.labels.max(initial=-1)) for part in made.values())
        class_names = told[:most] if len(told) >= most else ()  # names of labels that occur
    train, *tests = ((part.features, part.labels, part.columns) for part in made.values())
    test = tests[0] if tests else None
    return add_data(name, train, test, class_names, (), normalise, tokens)


def _fetched(repository: str | Path, folder: str, record: Record) -> parquet.Files:
    """Return the files of a dataset in a local folder, or downloaded from the hub."""
    place = Path(repository).expanduser()
    if isinstance(repository, Path) or place.is_absolute() or repository[:1] in ".~":
        return _local(place, folder, record)
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if progress.quiet() or not progress.watched():
        disable_progress_bars()
    within = "" if folder in ("", ".") else f"{folder.strip('/')}/"
    wanted = [within + how.format(split) for split in record.splits for how in parquet.LAYOUTS]
    try:
        commit = snapshot_download(
            repository,
            repo_type="dataset",
            revision=record.revision,
            allow_patterns=wanted,
            cache_dir=paths.cache() / "downloads",
            endpoint=os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or None,
        )
    except Exception as error:  # its HTTP library, and so the types of errors, vary by version
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        advice = "check the network and HF_ENDPOINT, or give a folder with its Parquet files"
        raise DatasetError(f"{repository} cannot be downloaded: {reason}; {advice}") from error
    files = parquet.files_of(Path(commit) / within, record)
    if not files:
        convert = "the hub's own are in folder='default' of revision='refs/convert/parquet'"
        lack = f"has no files of all splits {record.splits} in {folder}: {', '.join(wanted)}"
        raise DatasetError(f"{repository} {lack}; {convert}")
    return files


def _local(place: Path, folder: str, record: Record) -> parquet.Files:
    """Return the files of a dataset in a local folder; DatasetError names the expected files."""
    if not place.is_dir():
        raise DatasetError(f"{place} is not a folder: name the one that holds {record.splits}")
    inner = sorted(p for how in ("*", f"*/{folder}") for p in place.glob(how) if p.is_dir())
    for homes in ([place / folder], [place], inner):
        found = {home: files for home in homes if (files := parquet.files_of(home, record))}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            several = ", ".join(str(home.relative_to(place)) for home in found)
            lack = f"has no files of all splits {record.splits} itself"
            raise DatasetError(f"{place} {lack}, but folders have: name one as folder=, {several}")
    there = sorted(str(p.relative_to(place)) for how in ("*", "*/*") for p in place.glob(how))
    looked = ", ".join(how.format(split) for split in record.splits for how in parquet.LAYOUTS)
    raise DatasetError(
        f"{place} has no files of all splits {record.splits}: looked for {looked} there and in its"
        f" folders; it has {', '.join(there[:8]) or 'no files'}; name others as splits= and folder="
    )
