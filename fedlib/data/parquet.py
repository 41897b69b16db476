"""Examples in Parquet files of the Hugging Face layout, decoded into plain arrays.

Pictures become pixels. Texts become rows of token ids, by a vocabulary of the training texts.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from fedlib import progress
from fedlib.data import cache
from fedlib.data.records import DatasetError, MissingDataError, Record
from fedlib.values import one_of

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
LENGTH = 200  # tokens of a text that no record tells of

# The customary "basic English" rules: these marks are tokens, those below only separate.
_TOKEN = re.compile(r"""['.,()!?]|[^\s'.,()!?;:]+""")

Files = dict[str, list[Path]]


def files_of(folder: Path, record: Record) -> Files:
    """The files `<split>-00000-of-0000N.parquet` of each split in order, {} when there are none.

    Older files of the hub have a hash before the suffix. DatasetError when some of the N are
    missing, or there twice, or a split has none.
    """
    with _reading(folder):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    files = {split: _shards(names, split, folder) for split in record.splits}
    for split in (split for split in files if not files[split] and any(files.values())):
        raise MissingDataError(f"{folder} has no {split}-*.parquet, only the other split")
    return files if any(files.values()) else {}


def _shards(names: list[str], split: str, folder: Path) -> list[Path]:
    shape = rf"{split}-([0-9]{{5}})-of-([0-9]{{5}})(-[0-9a-f]+)?\.parquet"
    found = [match for name in names if (match := re.fullmatch(shape, name))]
    total = max((int(match[2]) for match in found), default=0)
    if [int(match[1]) for match in found] != list(range(total)):
        raise DatasetError(
            f"{folder} must have each of the {total} files of split {split!r} once, but has "
            + ", ".join(match[0] for match in found)
        )
    return [folder / match[0] for match in found]


def sizes(files: Files) -> tuple[int, int]:
    """How many training and test examples files hold, by their footers."""
    counts = [_count(paths) for paths in files.values()]
    return counts[0], sum(counts[1:])


def require_official(name: str, record: Record, files: Files, where: object) -> None:
    """DatasetError unless files have the sizes of the official set."""
    found, official = sizes(files), record.sizes
    if found != official:
        raise DatasetError(
            f"{where} holds {found[0]:,} training and {found[1]:,} test examples, but the "
            f"official {name} has {official[0]:,} and {official[1]:,}. Load what is there as "
            f"'{name}_sample', so that results cannot be taken for those of the official set."
        )


def store(files: Files, record: Record, title: str) -> cache.Arrays:
    """What is to be stored of files: their decoded arrays, split by split.

    DatasetError names file and row of whatever cannot be read.
    """
    stored: cache.Arrays = {}
    for split, paths in zip(cache.SPLITS, files.values(), strict=False):
        with progress.bar(_count(paths), f"decoding {title} {split}") as bar:
            parts = [_read(path, record, bar) for path in paths]
        # Of the other columns those that all files have.
        shared = set.intersection(*map(set, parts))
        stored[split] = {n: np.concatenate([part[n] for part in parts]) for n in shared}
    if stored["train"]["features"].dtype == object:
        # The first split is for training, so the vocabulary knows nothing of test texts.
        length = record.shape[0] if record.shape else LENGTH
        vocabulary = learn(stored["train"]["features"], length)
        for part in stored.values():
            part["features"] = encode(part["features"], length, vocabulary)
        words = json.dumps(vocabulary).encode()
        stored["train"]["vocabulary"] = np.frombuffer(words, np.uint8)
    return stored


def _pixels(picture: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One decoded picture, uint8 [H, W, C], of the shape if one is given."""
    with Image.open(io.BytesIO(picture)) as opened:
        grey = shape[2] == 1 if shape else opened.mode in ("1", "L")
        if shape and opened.size != (shape[1], shape[0]):
            raise ValueError(f"picture of {opened.size[::-1]} pixels, not {shape[:2]}")
        return np.atleast_3d(np.asarray(opened.convert("L" if grey else "RGB")))


@contextmanager
def _reading(path: Path, where: str = "") -> Iterator[None]:
    """Turn whatever a damaged or foreign file provokes into a DatasetError that names it."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:  # decoders of pictures and of Parquet raise many kinds
        raise DatasetError(f"{path}{where} cannot be read: {error}") from error


def _count(paths: list[Path]) -> int:
    total = 0
    for path in paths:
        with _reading(path):
            total += pq.read_metadata(path).num_rows
    return total


def _read(path: Path, record: Record, bar: Any) -> dict[str, NDArray[Any]]:
    """All that is wanted of a file; DatasetError unless it has labels, and a value everywhere."""
    with _reading(path):
        file = pq.ParquetFile(path)
        table, needed = file.read(), [*record.features, record.label]
        names = table.column_names
        if not len(table) or len(table) != file.metadata.num_rows:
            raise ValueError(f"it holds {len(table):,} of {file.metadata.num_rows:,} examples")
        for name in (*needed, *(record.columns or ())):
            one_of("column", name, names)
        others = [name for name in names if name not in needed]
        kept = others if record.columns is None else record.columns
        if odd := [name for name in kept if not re.fullmatch(r"[\w.-]+", name)]:
            raise ValueError(f"column {odd[0]!r} cannot be kept, it would name a file")
        columns = {cache.EXTRA + name: _plain(name, table.column(name)) for name in kept}
        labels, classes = _plain(record.label, table.column(record.label)), len(record.class_names)
        if labels.dtype.kind not in "iu":
            raise ValueError(f"column {record.label!r} must hold integers, not {labels.dtype}")
        for row in np.flatnonzero((labels < 0) | (labels >= (classes or np.inf))):
            raise ValueError(f"row {row:,}: label {labels[row]} is outside 0..{classes - 1}")
        features = _features(path, record, table, bar)
    return {"features": features, "labels": labels.astype(np.int64), **columns}


def _features(path: Path, record: Record, table: pa.Table, bar: Any) -> NDArray[Any]:
    """Texts as they are, pictures decoded, uint8 [N, H, W, C], and numbers [N, ...]."""
    name = record.features[0]
    cells = table.column(name)
    _complete(name, cells)
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        return np.asarray(cells.to_numpy())
    if record.is_text:
        raise ValueError(f"column {name!r} must be text, not {cells.type}")
    if pa.types.is_list(cells.type) or pa.types.is_fixed_size_list(cells.type):
        return np.array(cells.to_pylist())
    if not record.shape and not pa.types.is_struct(cells.type):
        return np.column_stack([_plain(name, table.column(name)) for name in record.features])
    pictures, shape = pc.struct_field(cells, "bytes"), record.shape
    _complete(name, pictures)
    shape = shape or _pixels(pictures[0].as_py(), ()).shape
    seen = np.empty((len(cells), *shape), np.uint8)
    for i, picture in enumerate(pictures):
        with _reading(path, f", row {i:,}"):
            seen[i] = _pixels(picture.as_py(), shape)
        bar.update()
    return seen


def _complete(name: str, column: pa.ChunkedArray) -> None:
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise ValueError(f"row {row:,}: column {name!r} holds no value")


def _plain(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as an array of numbers, truth values or text."""
    _complete(name, column)
    values = np.asarray(column.to_numpy())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return values.astype(str)
    if values.dtype.kind not in "iufb":
        raise ValueError(f"column {name!r} of type {column.type} cannot be kept")
    return values


def tokens(text: str) -> list[str]:
    """The tokens of a text: lower-case words and the punctuation marks between them.

    Quotation marks vanish; semicolons and colons separate words. Tokens joined by spaces give the
    same tokens again, so text that was tokenised before is left alone.
    """
    return _TOKEN.findall(text.lower().replace('"', ""))


def learn(texts: Iterable[str], length: int) -> tuple[str, ...]:
    """The vocabulary of training texts, each cut to `length` tokens.

    Tokens are numbered by descending frequency, ties alphabetically, after the padding and the
    unknown token.
    """
    counts = Counter(token for text in texts for token in tokens(text)[:length])
    return (*SPECIAL, *sorted(counts, key=lambda token: (-counts[token], token)))


def encode(texts: Collection[str], length: int, vocabulary: tuple[str, ...]) -> NDArray[np.int32]:
    """Ids [texts, length] of texts in a vocabulary; tokens that it lacks are unknown.

    Texts are cut and padded at the end.
    """
    known = {token: i for i, token in enumerate(vocabulary) if i >= len(SPECIAL)}
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = tokens(text)[:length]
        row[: len(found)] = [known.get(t, UNKNOWN) for t in found]
    return ids
