"""Encoded pictures in Parquet files of the Hugging Face layout, decoded into plain arrays."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from fedlib.datasets.records import DatasetError, Record


def files_of(folder: Path, split: str) -> list[Path]:
    """The files `<split>-00000-of-0000N.parquet` of a split in order, [] when there are none.

    DatasetError when some of the N are missing.
    """
    found: dict[int, Path] = {}
    total = 0
    for path in sorted(folder.glob(f"{split}-*-of-*.parquet")):
        if match := re.fullmatch(rf"{split}-(\d+)-of-(\d+)\.parquet", path.name):
            found[int(match[1])] = path
            total = max(total, int(match[2]))
    if lost := sorted(set(range(total)) - set(found)):
        raise DatasetError(
            f"{folder} has {len(found)} of the {total} files of split {split!r}; missing: "
            + ", ".join(f"{split}-{i:05d}-of-{total:05d}.parquet" for i in lost[:5])
        )
    return [found[i] for i in sorted(found)]


def decode(
    paths: list[Path], record: Record, features: Path, title: str
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Decode the pictures of a split into `features`, an .npy file of uint8 [N, H, W, C].

    Returns labels [N] and the other columns, [N] each, by name. DatasetError names file and row
    of whatever cannot be read.
    """
    sources = [_opened(path, record) for path in paths]
    total = sum(source.metadata.num_rows for source in sources)
    if not total:
        raise DatasetError(f"{paths[0]} holds no examples")
    shape = (total, *record.shape)
    parts = []
    # Written, not memory-mapped: on a full disk a write is an error, a mapped page kills.
    with (
        features.open("wb") as file,
        tqdm(total=total, desc=f"decoding {title}", delay=1, leave=False, disable=None) as bar,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for path, source in zip(paths, sources, strict=True):
            parts.append(_other_columns(path, source, record))
            for row, picture in _pictures(path, source, record):
                file.write(_pixels(picture, record, path, row).tobytes())
                bar.update()
    labels = np.concatenate([part[0] for part in parts])
    names = [name for name in parts[0][1] if all(name in part[1] for part in parts)]
    return labels, {name: np.concatenate([part[1][name] for part in parts]) for name in names}


def _opened(path: Path, record: Record) -> pq.ParquetFile:
    try:
        source = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            f"{path} is not a readable Parquet file ({path.stat().st_size:,} bytes; truncated or "
            f"corrupt?): {error}. Fetch it again."
        ) from error
    image = _first(path, source, record.image)
    _first(path, source, record.label)
    kind = source.schema_arrow.field(image).type
    if not (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
        raise DatasetError(f"{path}: column {image!r} must be a struct with bytes, not {kind}")
    return source


def _first(path: Path, source: pq.ParquetFile, wanted: tuple[str, ...]) -> str:
    present = source.schema_arrow.names
    for name in wanted:
        if name in present:
            return name
    raise DatasetError(
        f"{path} has no column {' or '.join(map(repr, wanted))}; its columns are "
        + ", ".join(map(repr, present))
    )


def _pictures(
    path: Path, source: pq.ParquetFile, record: Record
) -> Iterator[tuple[int, bytes | None]]:
    """Row number and encoded picture, a thousand rows in memory at a time."""
    image = _first(path, source, record.image)
    row = 0
    try:
        for batch in source.iter_batches(batch_size=1000, columns=[f"{image}.bytes"]):
            for cell in batch.column(0).field("bytes"):
                yield row, cell.as_py()
                row += 1
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{path} is corrupt after row {row:,}: {error}") from error


def _pixels(picture: bytes | None, record: Record, path: Path, row: int) -> NDArray[np.uint8]:
    """One decoded picture, uint8 [H, W, C]."""
    height, width, channels = record.shape
    if picture is None:
        raise DatasetError(f"{path}, row {row:,}: the picture holds no bytes")
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds
        raise DatasetError(f"{path}, row {row:,}: undecodable picture: {error}") from error
    if pixels.shape[:2] != (height, width):
        raise DatasetError(
            f"{path}, row {row:,}: picture of {pixels.shape[0]}x{pixels.shape[1]} pixels where "
            f"{height}x{width} are expected"
        )
    return pixels.reshape(height, width, channels)


def _other_columns(
    path: Path, source: pq.ParquetFile, record: Record
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Labels (checked against the classes) and every other column, as arrays."""
    image, label = (_first(path, source, wanted) for wanted in (record.image, record.label))
    names = [name for name in source.schema_arrow.names if name != image]
    try:
        table = source.read(columns=names)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{path} is corrupt: {error}. Fetch it again.") from error
    columns = {name: _plain(path, name, table.column(name)) for name in names}
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
