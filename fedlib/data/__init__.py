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
FEDLIB_CACHE/downloads; `huggingface_hub` resumes and retries them. No file is ever unpickled. What
steers them::

    HF_ENDPOINT            a mirror of the hub, in place of https://huggingface.co.
    HF_HUB_OFFLINE=1       asks nobody: what was downloaded before is all that there is.
    HTTPS_PROXY            a proxy to go through.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache as remembered
from functools import partial
from pathlib import Path

from fedlib import paths, progress
from fedlib.data import arrays, cache, parquet
from fedlib.data.arrays import OWN, Fitted, add, fitted
from fedlib.data.records import RECORDS, Dataset, DatasetError, Record, Split, reading
from fedlib.values import check_choice

SAMPLE = "_sample"
LISTED_SAMPLES = ("cifar100_sample", "tiny_imagenet_sample", "femnist_sample")
DIGITS = "digits"
STEERS = ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def names() -> tuple[str, ...]:
    """The datasets that `load` knows; any Parquet-backed one may also be a `<name>_sample`."""
    return (*RECORDS, *LISTED_SAMPLES, *arrays.added())


def require(name: str) -> None:
    """ValueError, with the names that `load` knows, for an unknown one."""
    if _record(name) is None:
        check_choice("dataset", name, names())


def _record(name: str) -> Record | None:
    """What is known of an official set, or of a sample of one; None for other names."""
    return RECORDS.get(name if name.startswith(DIGITS) else name.removesuffix(SAMPLE))


def class_names(name: str) -> tuple[str, ...]:
    """The names of a dataset's labels, in order, without looking for its examples."""
    return (_record(name) or load(name)).class_names


def form(name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the number of classes, without looking for the examples."""
    return (_record(name) or load(name)).shape, len(class_names(name))


def load(name: str) -> Dataset:
    """The dataset of that name, read-only: features and int64 labels [N] of both splits.

    ValueError for an unknown name; DatasetError when it is nowhere, when its files are damaged or
    not those of the official set, or when a download fails.
    """
    return _found(name)[-1]()


def is_own(name: str) -> bool:
    """Whether a name is that of a dataset of one's own, and of no official set or sample."""
    return _record(name) is None


def fingerprint(name: str) -> str:
    """The fingerprint of a dataset as it lies here now, "" where that is not known.

    Nothing is downloaded, and an official set that was never opened here is not decoded for it.
    DatasetError for data of one's own that are not there any more.
    """
    if is_own(name):
        return str(cache.meta_of(name)["fingerprint"])
    new = name in RECORDS and name != DIGITS and not (cache.folder() / name).exists()
    with suppress(DatasetError):
        return "" if new else _fingerprint(name, _state(name), cache.folder())
    return ""


@remembered
def _fingerprint(name: str, state: object, where: Path) -> str:
    """The same, once per process for files in a state and a cache."""
    place, _, opened = _found(name)
    return "" if place == "download" else opened().fingerprint


def _state(name: str) -> tuple[object, ...]:
    """Size and time of the files in `$FEDLIB_DATA` that a dataset would be decoded from."""
    record, folder = _record(name), None if name == DIGITS else _data_folder(name)
    files = parquet.files_of(folder, record).values() if folder and record else ()
    return tuple((str(path), *cache.stamp(path)) for part in files for path in part)


def describe(name: str) -> tuple[str, str]:
    """Where a dataset would come from now, without decoding or downloading anything.

    That is "embedded", "parquet" (in $FEDLIB_DATA), "cache", "download" or "missing"; and the
    folder or repository, or why it is missing. ValueError for an unknown name.
    """
    try:
        return _found(name)[:2]
    except DatasetError as error:
        return "missing", str(error)


def _found(name: str) -> tuple[str, str, Callable[[], Dataset]]:
    """Where a dataset would come from now, see `describe`, and how it is opened."""
    require(name)
    record, where = _record(name), str(cache.folder())
    if name == DIGITS:
        return "embedded", "scikit-learn", arrays.digits
    folder = _data_folder(name) if record else None
    if record and folder and (files := parquet.files_of(folder, record)):
        if name in RECORDS:
            parquet.require_official(name, record, files, folder)
        return "parquet", str(folder), partial(_decoded, name, record, folder, files)
    if data := cache.sound(name):
        return "cache", where, lambda: data
    if not record:
        raise DatasetError(f"{name!r} in {where} is damaged: add its arrays again")
    if name.endswith(SAMPLE):
        looked = f"looked in {folder or '$FEDLIB_DATA (not set)'} and for decoded arrays in {where}"
        advice = f"{_advice(name, record)}; samples are not downloaded."
        raise DatasetError(f"dataset {name!r} was not found: {looked}. {advice}")
    return "download", record.hub, partial(_downloaded, name, record)


def _data_folder(name: str) -> Path | None:
    """Where `$FEDLIB_DATA` may hold a dataset; a sample may lie where the official set would."""
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
    """An official set from the hub, or the error that says what else would do."""
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
    """Store a dataset of the Hugging Face hub, or of a local folder, under a name of one's own.

    Args:
        name: as for `add`, like normalise.
        repository: owner/name on the hub; or a folder, a `Path` or text that begins with /, . or ~.
        features: a column of pictures, texts (200 tokens of each are kept) or lists of numbers, or
            some columns of numbers.
        label: the column of class numbers.
        columns: others to keep, such as whose an example is.
        splits: the one for training and, if there is one, the one for tests.
        folder: where in the repository the files <split>-*.parquet, <split>.parquet or
            <split>/*.parquet lie; where it holds none, they are looked for in the whole of a local
            folder, and in each folder in it.
        revision: a commit, a tag or a branch.
        class_names: of all labels; by default those that the files give, or "0", "1", ...
        tokens: whether whole numbers are token ids; by default those of lists are, and those of
            columns are not.

    Raises:
        ValueError: as `add`.
        DatasetError: when files cannot be had, or are of another kind.
    """
    chosen = (features,) if isinstance(features, str) else tuple(features)
    record = Record((), (), (), (), (0, 0), revision=revision, splits=tuple(splits),
                    features=chosen, label=label, columns=tuple(columns))  # fmt: skip
    files = _fetched(repository, folder, record)
    made = parquet.raw(files, record, name)
    if not len(class_names):
        told = parquet.class_names(next(iter(files.values()))[0], label)
        most = 1 + max(int(part.labels.max(initial=-1)) for part in made.values())
        class_names = told[:most] if len(told) >= most else ()  # of those that occur
    train, *tests = ((part.features, part.labels, part.columns) for part in made.values())
    test = tests[0] if tests else None
    return add(name, train, test, class_names, (), normalise, tokens)


def _fetched(repository: str | Path, folder: str, record: Record) -> parquet.Files:
    """The files of a set from a folder or the hub. DatasetError when they cannot be had."""
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
    except Exception as error:  # of its HTTP library too, which is another in every version
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        asked = ", ".join(n for n in STEERS if os.environ.get(n) or os.environ.get(n.lower()))
        advice = f"check {asked or 'the network'}, or give a folder with its Parquet files"
        raise DatasetError(f"{repository} cannot be had: {reason}; {advice}") from error
    files = parquet.files_of(Path(commit) / within, record)
    if not files:
        convert = "the hub's own are in folder='default' of revision='refs/convert/parquet'"
        lack = f"has no files of all splits {record.splits} in {folder}: {', '.join(wanted)}"
        raise DatasetError(f"{repository} {lack}; {convert}")
    return files


def _local(place: Path, folder: str, record: Record) -> parquet.Files:
    """The files of a set from a folder. DatasetError says what they would be called, and where."""
    if not place.is_dir():
        raise DatasetError(f"{place} is no folder: name the one that holds {record.splits}")
    inner = sorted(p for how in ("*", f"*/{folder}") for p in place.glob(how) if p.is_dir())
    for homes in ([place / folder], [place], inner):
        found = {home: files for home in homes if (files := parquet.files_of(home, record))}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            several = ", ".join(str(home.relative_to(place)) for home in found)
            lack = f"has no files of all splits {record.splits} itself"
            raise DatasetError(f"{place} {lack}, but folders have: name one as folder=, {several}")
    one = [replace(record, splits=(split,)) for split in record.splits]
    homes = [place / folder, place, *inner]
    lacking = [r.splits[0] for r in one if not any(parquet.files_of(home, r) for home in homes)]
    called = [how.format(split) for split in lacking for how in parquet.LAYOUTS]
    there = sorted(str(p.relative_to(place)) for how in ("*", "*/*") for p in place.glob(how))
    raise DatasetError(
        f"{place} has no files of all splits {record.splits}: looked for"
        f" {', '.join(called) or 'them in one folder'} there and in its folders, {folder} first;"
        f" it has {', '.join(there[:8]) or 'no files'}; name others as splits= and folder="
    )
