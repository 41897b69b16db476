"""Decode Parquet files of the Hugging Face layout into arrays.

Texts become token ids of a vocabulary that is learnt from the training texts. Images become 8-bit
pixels; a dataset is grey if all of its images are, palettes are converted to RGB, and an opaque
alpha channel is dropped. Conversions that would lose information raise an error: more than 8 bits,
other colour spaces, transparency, several frames.
"""

import io
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
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
LENGTH = 200  # number of tokens per text, unless a record has another
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")  # others, such as EPS, may run programs
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA")
BITS = 258  # the TIFF tag BitsPerSample

# Ideographs, kana and scripts of Southeast Asia (as in Unicode's line breaking, UAX #14), which are
# written without spaces between words, and their punctuation.
_ALONE = (
    "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\u2fdf\u3001-\u312f"
    "\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua980-\ua9ff\uaa60-\uaadf"
    "\uf900-\ufaff\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f"
    "\U00016fe0-\U0001b2ff\U00020000-\U0003ffff"
)
# The "basic English" rules of torchtext: '.,()!? are tokens; semicolons, colons and zero-width
# spaces only separate tokens. Each character of a script without spaces is a token.
_TOKEN = re.compile(rf"""['.,()!?]|[{_ALONE}]|[^\s'.,()!?;:\u200b\ufeff{_ALONE}]+""")

Files = dict[str, list[Path]]
# Names of the files of a split: of the hub, written by hand, and of programs that write in parts.
LAYOUTS = ("{}-*.parquet", "{}.parquet", "{}/*.parquet")


def files_of(folder: Path, record: Record) -> Files:
    """Return the sorted files of each split, {} unless all splits have files of the same layout.

    Files whose names begin with a dot or an underscore are metadata of other programs.
    """
    for layout in LAYOUTS:
        found = {split: sorted(folder.glob(layout.format(split))) for split in record.splits}
        files = {split: [p for p in at if p.name[0] not in "._"] for split, at in found.items()}
        if all(files.values()):
            return files
    return {}


def class_names(path: Path, label: str) -> tuple[str, ...]:
    """Return the class names in the metadata of Hugging Face's datasets library, () if absent."""
    with reading(path), suppress(KeyError, TypeError, ValueError):
        told = json.loads((pq.read_schema(path).metadata or {})[b"huggingface"])
        return tuple(map(str, told["info"]["features"][label]["names"]))
    return ()


def require_official(name: str, record: Record, files: Files, where: object) -> None:
    """Raise DatasetError unless the numbers of rows are those of the official dataset."""
    counts = [_count(paths) for paths in files.values()]
    found, official = (counts[0], sum(counts[1:])), record.sizes
    if found != official:
        sizes = "{:,} training and {:,} test examples"
        there = f"{where} holds {sizes.format(*found)}, and the official {name} has "
        raise DatasetError(f"{there}{sizes.format(*official)}: load it as '{name}_sample'")


def decoded(files: Files, record: Record, title: str) -> Made:
    """Return the splits in files with texts as token ids, and the vocabulary; errors as `raw`."""
    splits = raw(files, record, title)
    return tokenised(splits, record.shape[0]) if len(record.shape) == 1 else (splits, ())


def raw(files: Files, record: Record, title: str) -> dict[str, Split]:
    """Return the splits in files, with texts as strings.

    Args:
        files: the files of each split.
        record: the layout of the dataset.
        title: name of the dataset, for the progress bar.

    Raises:
        DatasetError: if a file cannot be read; it names the file and the row.
    """
    splits: dict[str, Split] = {}
    record = record if record.shape else replace(record, shape=_common(files, record))
    for split, paths in zip(SPLITS, files.values(), strict=False):
        with progress.bar(_count(paths), f"decoding {title} {split}") as bar:
            parts = [_read(path, record, bar) for path in paths]
        # Further columns are kept if all files have them.
        shared = set.intersection(*(set(part.columns) for part in parts))
        columns = {n: np.concatenate([part.columns[n] for part in parts]) for n in shared}
        x, y = (np.concatenate([vars(p)[n] for p in parts]) for n in ("features", "labels"))
        splits[split] = Split(x, y, columns)
    return splits


def tokenised(splits: dict[str, Split], length: int) -> Made:
    """Return splits with texts as token ids, and the vocabulary of the training texts."""
    vocabulary = learn(splits["train"].features, length)
    ids = {n: encode(part.features, length, vocabulary) for n, part in splits.items()}
    for name in ids.keys() - {"train"}:
        warn_of_unknown(ids[name], f"{name} texts")
    return {n: replace(part, features=ids[n]) for n, part in splits.items()}, vocabulary


def warn_of_unknown(ids: NDArray[np.int32], what: str) -> None:
    """Warn if most tokens of texts are not in the vocabulary.

    Args:
        ids: token ids [N, T].
        what: which texts these are, for the message.
    """
    share = (ids == UNKNOWN).sum() / max(int((ids != PADDING).sum()), 1)
    if share > 0.5:
        why = "another language, or no spaces between words: put spaces between the tokens"
        warnings.warn(f"{share:.0%} of the tokens of {what} are unknown: {why}", stacklevel=2)


def _common(files: Files, record: Record) -> tuple[int, ...]:
    """Return the shape of the images of a dataset, () if its examples are not images.

    Images have three channels unless all are grey.
    """
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
    """Return a decoded image, uint8 [H, W, C]; raise ValueError if it has another shape."""
    with _opened(picture) as opened:
        if opened.size != (shape[1], shape[0]):
            raise ValueError(f"picture of {opened.size[::-1]} pixels, not {shape[:2]}")
        clear = opened.has_transparency_data
        if clear and min(opened.convert("RGBA").getchannel("A").tobytes()) < 255:
            raise ValueError("picture with transparency: put it on a background")
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
    """Return the examples of a file; raise DatasetError for missing or invalid values."""
    with reading(path):
        table = pq.ParquetFile(path).read()
        needed = (*record.features, record.label)
        others = [name for name in table.column_names if name not in needed]
        kept = others if record.columns is None else record.columns
        columns = {name: _plain(name, table.column(name)) for name in kept}
        if not len(table):
            raise ValueError("there are no rows")
        labels = _plain(record.label, table.column(record.label))
        if labels.dtype.kind not in "iub":
            first = f"{labels.dtype}, such as {labels[0]} in row 0"
            raise ValueError(f"column {record.label!r} must hold integers, not {first}")
        classes = len(record.class_names)
        for row in np.flatnonzero((labels < 0) | (labels >= (classes or np.inf))):
            raise ValueError(f"row {row:,}: label {labels[row]} is outside 0..{classes - 1}")
        return Split(_features(path, record, table, bar), labels.astype(np.int64), columns)


def _features(path: Path, record: Record, table: pa.Table, bar: Any) -> NDArray[Any]:
    """Return texts as strings [N], images decoded, uint8 [N, H, W, C], or numbers [N, ...]."""
    name, shape = record.features[0], record.shape
    cells = table.column(name)
    _complete(name, cells)
    text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    if len(shape) == 1 and not text:
        raise ValueError(f"column {name!r} must be text, not {cells.type}")
    if text and len(shape) < 2:
        return np.asarray(cells.to_numpy())
    if not shape and (pa.types.is_list(cells.type) or pa.types.is_fixed_size_list(cells.type)):
        return np.array(cells.to_pylist())
    if not shape:  # a table, whose columns keep their names
        columns = [_plain(name, table.column(name)) for name in record.features]
        named = [(n, c.dtype) for n, c in zip(record.features, columns, strict=True)]
        return np.asarray(np.rec.fromarrays(columns, dtype=named))
    seen = np.empty((len(cells), *shape), np.uint8)
    for i, picture in enumerate(_pictures(name, cells)):
        with reading(path, f", row {i:,}"):
            seen[i] = _pixels(picture.as_py(), shape)
        bar.update()
    return seen


def _complete(name: str, column: pa.ChunkedArray) -> None:
    if column.null_count:
        row, lack = column.is_null().index(True).as_py(), f"{column.null_count:,} rows lack one"
        raise ValueError(f"row {row:,}: column {name!r} holds no value; {lack}")


def _plain(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as an array of numbers, booleans or texts."""
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
    """Return the tokens of a text: lower-case words and punctuation marks.

    Quotation marks are removed; semicolons and colons separate words. In scripts without spaces
    between words, such as Chinese, Japanese and Thai, every character is a token. Letters are first
    normalised (NFC). Tokens joined by spaces give the same tokens again, so tokenised texts are not
    changed.
    """
    return _TOKEN.findall(unicodedata.normalize("NFC", text.lower()).replace('"', ""))


def learn(texts: Iterable[str], length: int) -> tuple[str, ...]:
    """Return the vocabulary of training texts, each cut to `length` tokens.

    It begins with the padding and the unknown token, followed by all tokens by descending
    frequency, and alphabetically for equal ones.
    """
    counts = Counter(token for text in texts for token in tokens(text)[:length])
    return (*SPECIAL, *sorted(counts, key=lambda token: (-counts[token], token)))


def encode(texts: Collection[str], length: int, vocabulary: tuple[str, ...]) -> NDArray[np.int32]:
    """Return the token ids [texts, length] of texts, which are cut or padded at the end.

    Tokens that are not in the vocabulary become the unknown token.
    """
    known = {token: i for i, token in enumerate(vocabulary) if i >= len(SPECIAL)}
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = tokens(text)[:length]
        row[: len(found)] = [known.get(t, UNKNOWN) for t in found]
    return ids
