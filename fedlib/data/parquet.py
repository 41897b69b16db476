"""Examples in Parquet files of the Hugging Face layout, decoded into plain arrays."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from fedlib import progress
from fedlib.data import cache, text
from fedlib.data.records import DatasetError, Record

# What pyarrow raises of damaged files; it reports text that is no UTF-8 as a ValueError.
_UNREADABLE = (OSError, ValueError, pa.ArrowException)

Files = dict[str, list[Path]]


def files_of(folder: Path, record: Record) -> Files:
    """The files `<split>-00000-of-0000N.parquet` of each split in order, [] when there are none.

    Older files of the hub have a hash before the suffix. DatasetError when some of the N are
    missing, or there twice.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {split: _shards(names, split, folder) for split in record.splits}


def _shards(names: list[str], split: str, folder: Path) -> list[Path]:
    found: dict[int, str] = {}
    total = 0
    shape = rf"{split}-([0-9]{{5}})-of-([0-9]{{5}})(-[0-9a-f]+)?\.parquet"
    for name, match in ((name, re.fullmatch(shape, name)) for name in names):
        if match and (other := found.get(int(match[1]))):
            raise DatasetError(f"{folder} has both {other} and {name}: remove one of them")
        if match:
            found[int(match[1])] = name
            total = max(total, int(match[2]))
    if lost := sorted(set(range(total)) - set(found)):
        raise DatasetError(
            f"{folder} has {len(found)} of the {total} files of split {split!r}; missing: "
            + ", ".join(f"{split}-{i:05d}-of-{total:05d}.parquet" for i in lost[:5])
        )
    return [folder / found[i] for i in sorted(found)]


def sizes(files: Files, record: Record) -> tuple[int, int]:
    """How many training and test examples files hold, by their footers."""
    counts = [
        sum(_opened(p, record).file.metadata.num_rows for p in files[s]) for s in record.splits
    ]
    return counts[0], sum(counts[1:])


def require_official(name: str, record: Record, files: Files, where: object) -> None:
    """DatasetError unless files have the sizes of the official set."""
    found, official = sizes(files, record), record.sizes
    if found != official:
        raise DatasetError(
            f"{where} holds {found[0]:,} training and {found[1]:,} test examples, but the "
            f"official {name} has {official[0]:,} and {official[1]:,}. Load what is there as "
            f"'{name}_sample', so that results cannot be taken for those of the official set."
        )


def store(files: Files, record: Record, target: Path, title: str) -> dict[str, Any]:
    """Decode files into the cache entry `target`; returns what its readers shall know besides.

    DatasetError names file and row of whatever cannot be read.
    """
    vocabulary: tuple[str, ...] = ()
    for split, paths in zip(("train", "test"), files.values(), strict=False):
        if record.is_text:
            named = f"{title} {split}"
            vocabulary = _store_texts(paths, record, target, split, named, vocabulary)
        else:
            features = cache.path_of(target, split, "features")
            decode(paths, record, features, f"{title} {split}")
        _store_columns(paths, record, target, split)
    if len(files) == 1:
        _store_no_test(target)
    if vocabulary:
        cache.save_vocabulary(target, vocabulary)
    return {"class_names": _class_names(files, record)} if record.placeholders else {}


def decode(paths: list[Path], record: Record, features: Path, title: str) -> None:
    """Decode the pictures of a split into `features`, an .npy file of uint8 [N, H, W, C]."""
    # Written, not memory-mapped: on a full disk a write is an error, a mapped page kills.
    with features.open("wb") as file:
        shape = (_count(paths, record), *record.shape)
        cache.write_header(file, np.dtype(np.uint8), shape)
        for path, row, picture in _cells(paths, record, title):
            file.write(_pixels(picture, record, path, row).tobytes())


def _store_texts(
    paths: list[Path], record: Record, target: Path, split: str, title: str, known: tuple[str, ...]
) -> tuple[str, ...]:
    """Save the token ids of a split; returns their vocabulary, which is learnt when none is known.

    The first split is the training split, so the vocabulary knows nothing of test texts.
    """
    total, (length,) = _count(paths, record), record.shape
    texts = (cell for _, _, cell in _cells(paths, record, title))
    if known:
        ids = text.encode(texts, total, length, known)
    else:
        ids, known = text.learn(texts, total, length)
    cache.save(target, split, "features", ids)
    return known


def _store_no_test(target: Path) -> None:
    """An empty test split, of the same shapes as the training split."""
    for path in list(target.glob("train.*.npy")):
        train = np.load(path, mmap_mode="r", allow_pickle=False)
        column = path.name.removeprefix("train.").removesuffix(".npy")
        cache.save(target, "test", column, train[:0])


def _class_names(files: Files, record: Record) -> list[str]:
    """The class names that the files' own description gives, else those of the record."""
    source = _opened(next(iter(files.values()))[0], record)
    try:
        told = json.loads((source.file.schema_arrow.metadata or {})[b"huggingface"])
        names = told["info"]["features"][source.label]["names"]
        right = all(isinstance(name, str) for name in names)
        if right and len(set(names)) == len(names) == len(record.class_names):
            return list(names)
    except (KeyError, TypeError, ValueError):
        pass
    return list(record.class_names)


class _Source(NamedTuple):
    """A Parquet file, and what its columns of features and labels are called."""

    file: pq.ParquetFile
    features: str
    label: str


def _opened(path: Path, record: Record) -> _Source:
    try:
        file = pq.ParquetFile(path)
    except _UNREADABLE as error:
        raise DatasetError(
            f"{path} is not a readable Parquet file ({path.stat().st_size:,} bytes; truncated or "
            f"corrupt?): {error}. Fetch it again."
        ) from error
    names = file.schema_arrow.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DatasetError(f"{path} has two columns {twice[0]!r}")
    features, label = (_first(path, names, wanted) for wanted in (record.features, record.label))
    kind = file.schema_arrow.field(features).type
    if record.is_text:
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DatasetError(f"{path}: column {features!r} must be text, not {kind}")
    elif not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise DatasetError(f"{path}: column {features!r} must be a struct with bytes, not {kind}")
    return _Source(file, features, label)


def _first(path: Path, present: list[str], wanted: tuple[str, ...]) -> str:
    for name in wanted:
        if name in present:
            return name
    raise DatasetError(
        f"{path} has no column {' or '.join(map(repr, wanted))}; its columns are "
        + ", ".join(map(repr, present))
    )


def _count(paths: list[Path], record: Record) -> int:
    total = sum(_opened(path, record).file.metadata.num_rows for path in paths)
    if not total:
        raise DatasetError(f"{paths[0]} holds no examples")
    return total


def _cells(paths: list[Path], record: Record, title: str) -> Iterator[tuple[Path, int, Any]]:
    """Every picture, encoded, or text, with its file and row; a thousand rows are in memory."""
    with progress.bar(_count(paths, record), f"decoding {title}") as bar:
        for path in paths:
            file, name, _ = _opened(path, record)
            columns, row = [name] if record.is_text else [f"{name}.bytes"], 0
            try:
                for batch in file.iter_batches(batch_size=1000, columns=columns):
                    cells = batch.column(0)
                    for cell in cells if record.is_text else cells.field("bytes"):
                        if not cell.is_valid:
                            lacks = "there is no text"
                            if not record.is_text:
                                lacks = "the picture holds no bytes"
                            raise DatasetError(f"{path}, row {row:,}: {lacks}")
                        yield path, row, cell.as_py()
                        row += 1
                        bar.update()
            except _UNREADABLE as error:
                raise DatasetError(f"{path} is corrupt after row {row:,}: {error}") from error
            if row != file.metadata.num_rows:
                raise DatasetError(f"{path} is corrupt: {row:,} of {file.metadata.num_rows:,} rows")


def _pixels(picture: bytes, record: Record, path: Path, row: int) -> NDArray[np.uint8]:
    """One decoded picture, uint8 [H, W, C]."""
    height, width, channels = record.shape
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            size = opened.size
            if size == (width, height):  # nothing larger is ever decoded
                pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds
        raise DatasetError(f"{path}, row {row:,}: undecodable picture: {error}") from error
    if size != (width, height):
        raise DatasetError(
            f"{path}, row {row:,}: picture of {size[1]}x{size[0]} pixels where "
            f"{height}x{width} are expected"
        )
    return pixels.reshape(height, width, channels)


def _store_columns(paths: list[Path], record: Record, target: Path, split: str) -> None:
    """Save the labels of a split and the other columns that all its files have."""
    labels, parts = zip(*(_columns(path, record) for path in paths), strict=True)
    cache.save(target, split, "labels", np.concatenate(labels))
    for name in set.intersection(*(set(part) for part in parts)):
        values = np.concatenate([part[name] for part in parts])
        if name in record.coded:
            values = np.unique(values, return_inverse=True)[1].astype(np.int64)
        cache.save(target, split, cache.EXTRA + name, values)


def _columns(path: Path, record: Record) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Labels (checked against the classes) and every other column of a file, as arrays."""
    file, features, label = _opened(path, record)
    names = [name for name in file.schema_arrow.names if name != features]
    if odd := [name for name in names if not re.fullmatch(r"[\w.-]+", name)]:
        raise DatasetError(f"{path}: column {odd[0]!r} cannot be kept, it would name a file")
    try:
        table = file.read(columns=names)
        columns = {name: _plain(path, name, table.column(name)) for name in names}
    except _UNREADABLE as error:
        raise DatasetError(f"{path} is corrupt: {error}. Fetch it again.") from error
    labels = columns.pop(label)
    classes = len(record.class_names)
    if labels.dtype.kind not in "iu":
        raise DatasetError(f"{path}: column {label!r} must hold integers, not {labels.dtype}")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DatasetError(
            f"{path}, row {wrong[0]:,}: {label} {labels[wrong[0]]} is outside 0..{classes - 1}"
        )
    return labels.astype(np.int64), columns


def _plain(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as an array of numbers, truth values or text."""
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DatasetError(f"{path}, row {row:,}: column {name!r} holds no value")
    values = column.to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return values.astype(str)
    if values.dtype.kind not in "iufb":
        raise DatasetError(f"{path}: column {name!r} of type {column.type} cannot be kept")
    return np.asarray(values)
