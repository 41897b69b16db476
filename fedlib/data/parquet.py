"""Examples in Parquet files of the Hugging Face layout, decoded into plain arrays.

Texts become rows of token ids, by a vocabulary of the training texts. Pictures become pixels of 8
bits: a set is grey if all of its pictures are, palettes are looked up, alpha that hides nothing is
dropped. Whatever would lose something is refused: more bits, other colours, alpha, several frames.
"""

import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from fedlib import progress
from fedlib.data.cache import SPLITS, Made
from fedlib.data.records import DatasetError, Record, Split, reading

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
LENGTH = 200  # tokens of a text that no record tells of
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")  # others may start programs: EPS does
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA")
BITS = 258  # a TIFF's tag, bits per value

# The customary "basic English" rules: these marks are tokens, those below only separate.
_TOKEN = re.compile(r"""['.,()!?]|[^\s'.,()!?;:]+""")

Files = dict[str, list[Path]]


def files_of(folder: Path, record: Record) -> Files:
    """The files `<split>-00000-of-0000N.parquet` of each split in order, {} unless all have some.

    Older files of the hub have a hash before the suffix.
    """
    files = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in record.splits}
    return files if all(files.values()) else {}


def require_official(name: str, record: Record, files: Files, where: object) -> None:
    """DatasetError unless files have the sizes of the official set, as their footers say."""
    counts = [_count(paths) for paths in files.values()]
    found, official = (counts[0], sum(counts[1:])), record.sizes
    if found != official:
        sizes = "{:,} training and {:,} test examples"
        there = f"{where} holds {sizes.format(*found)}, and the official {name} has "
        raise DatasetError(f"{there}{sizes.format(*official)}: load it as '{name}_sample'")


def decoded(files: Files, record: Record, title: str) -> Made:
    """The splits that files hold, and the vocabulary of texts; the errors of `raw`."""
    splits = raw(files, record, title)
    return tokenised(splits, record.shape[0]) if len(record.shape) == 1 else (splits, ())


def raw(files: Files, record: Record, title: str) -> dict[str, Split]:
    """The splits that files hold, texts as they are.

    DatasetError names file and row of whatever cannot be read.
    """
    splits: dict[str, Split] = {}
    record = record if record.shape else replace(record, shape=_common(files, record))
    for split, paths in zip(SPLITS, files.values(), strict=False):
        with progress.bar(_count(paths), f"decoding {title} {split}") as bar:
            parts = [_read(path, record, bar) for path in paths]
        # Of the other columns those that all files have.
        shared = set.intersection(*(set(part.columns) for part in parts))
        columns = {n: np.concatenate([part.columns[n] for part in parts]) for n in shared}
        x, y = (np.concatenate([vars(p)[n] for p in parts]) for n in ("features", "labels"))
        splits[split] = Split(x, y, columns)
    return splits


def tokenised(splits: dict[str, Split], length: int) -> Made:
    """Splits of texts as ids, and their vocabulary, which knows nothing of test texts."""
    vocabulary = learn(splits["train"].features, length)
    ids = {n: encode(part.features, length, vocabulary) for n, part in splits.items()}
    return {n: replace(part, features=ids[n]) for n, part in splits.items()}, vocabulary


def _common(files: Files, record: Record) -> tuple[int, ...]:
    """The shape of a set's pictures, of which all are grey or none; () for other examples."""
    shape: tuple[int, ...] = ()
    for path in (path for part in files.values() for path in part):
        with reading(path):
            cells = pq.ParquetFile(path).read([record.features[0]]).column(record.features[0])
            if not pa.types.is_struct(cells.type):
                return ()
            for i, picture in enumerate(_pictures(record.features[0], cells)):
                with reading(path, f", row {i:,}"), _opened(picture.as_py()) as seen:
                    depth = 3 if seen.mode in COLOUR or shape[2:] == (3,) else 1
                    shape = (*shape[:2], depth) if shape else (*seen.size[::-1], depth)
    return shape


def _pictures(name: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_struct(cells.type):
        raise ValueError(f"column {name!r} must hold pictures, not {cells.type}")
    _complete(name, cells)
    pictures = pc.struct_field(cells, "bytes")
    _complete(name, pictures)
    return pictures


@contextmanager
def _opened(picture: bytes) -> Iterator[Image.Image]:
    """A picture whose values have 8 bits; ValueError for other kinds, of which pixels change."""
    with Image.open(io.BytesIO(picture), formats=FORMATS) as opened:
        deep = opened.format == "PNG" and picture[24] > 8  # which Pillow cuts off without a word
        bits = getattr(opened, "tag_v2", {}).get(BITS, ())
        if deep or max(bits, default=8) > 8 or opened.mode not in GREY + COLOUR:
            kind = f"{opened.format} of mode {opened.mode} with more than 8 bits, or other colours"
            raise ValueError(f"{kind} than grey and RGB: convert it, or add its numbers as floats")
        if (frames := getattr(opened, "n_frames", 1)) > 1:
            raise ValueError(f"{opened.format} of {frames} frames: one is a picture")
        yield opened


def _pixels(picture: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One decoded picture, uint8 [H, W, C], of the shape."""
    with _opened(picture) as opened:
        if opened.size != (shape[1], shape[0]):
            raise ValueError(f"picture of {opened.size[::-1]} pixels, not {shape[:2]}")
        clear = opened.has_transparency_data
        if clear and min(opened.convert("RGBA").getchannel("A").tobytes()) < 255:
            raise ValueError("picture that one can see through: put it on a background")
        if opened.mode in ("1", "L"):
            seen = np.atleast_3d(np.asarray(opened.convert("L")))
            return seen if shape[2] == 1 else np.repeat(seen, 3, 2)
        seen = np.asarray(opened.convert("RGB"))
        if shape[2] == 1 and (seen != seen[..., :1]).any():
            raise ValueError("picture in colour, among grey ones")
        return seen[..., : shape[2]]


def _count(paths: list[Path]) -> int:
    total = 0
    for path in paths:
        with reading(path):
            total += pq.read_metadata(path).num_rows
    return total


def _read(path: Path, record: Record, bar: Any) -> Split:
    """All that is wanted of a file; DatasetError unless it has labels, and a value everywhere."""
    with reading(path):
        table = pq.ParquetFile(path).read()
        needed = (*record.features, record.label)
        others = [name for name in table.column_names if name not in needed]
        kept = others if record.columns is None else record.columns
        columns = {name: _plain(name, table.column(name)) for name in kept}
        if not len(table):
            raise ValueError("there are no rows")
        labels = _plain(record.label, table.column(record.label))
        if labels.dtype.kind not in "iu":
            raise ValueError(f"column {record.label!r} must hold integers, not {labels.dtype}")
        classes = len(record.class_names)
        for row in np.flatnonzero((labels < 0) | (labels >= (classes or np.inf))):
            raise ValueError(f"row {row:,}: label {labels[row]} is outside 0..{classes - 1}")
        return Split(_features(path, record, table, bar), labels.astype(np.int64), columns)


def _features(path: Path, record: Record, table: pa.Table, bar: Any) -> NDArray[Any]:
    """Texts as they are, pictures decoded, uint8 [N, H, W, C], and numbers [N, ...]."""
    name, shape = record.features[0], record.shape
    cells = table.column(name)
    _complete(name, cells)
    text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    if len(shape) == 1 and not text:
        raise ValueError(f"column {name!r} must be text, not {cells.type}")
    if text and len(shape) < 2:
        return np.asarray(cells.to_numpy())
    if not shape and (pa.types.is_list(cells.type) or pa.types.is_fixed_size_list(cells.type)):
        lengths = pc.list_value_length(cells).to_numpy()
        for row in np.flatnonzero(lengths != lengths[0]):
            raise ValueError(f"row {row:,}: {lengths[row]} numbers in {name!r}, not {lengths[0]}")
        return np.array(cells.to_pylist())
    if not shape:
        return np.column_stack([_plain(name, table.column(name)) for name in record.features])
    seen = np.empty((len(cells), *shape), np.uint8)
    for i, picture in enumerate(_pictures(name, cells)):
        with reading(path, f", row {i:,}"):
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
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
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
