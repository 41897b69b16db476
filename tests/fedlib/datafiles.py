"""Small Parquet files in the Hugging Face layout, and what the cache made of them."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedlib.data.records import RECORDS

TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def noise(n, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def encoded(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, kind)
    return stream.getvalue()


def cells(pictures):
    return pa.array([{"bytes": picture, "path": None} for picture in pictures], PICTURE)


def write(path, pixels, image="image", label="label", pictures=None, **columns):
    """Write pictures in the Hugging Face layout; labels count up unless given."""
    if pictures is None:
        pictures = [encoded(p) for p in pixels]
    table = {image: cells(pictures), label: [i % 10 for i in range(len(pictures))]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table | columns), path)


def write_texts(path, texts, labels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = [i % 4 for i in range(len(texts))] if labels is None else labels
    pq.write_table(pa.table({"text": texts, "label": labels}), path)


def entry_of(places, name="mnist_sample"):
    return places / "cache" / "datasets" / name


def folders(places):
    """What lies in the cache, complete or not."""
    return [path for path in (places / "cache" / "datasets").iterdir() if path.is_dir()]


def resize(monkeypatch, name, train, test):
    """Let the official set be small for a test."""
    monkeypatch.setitem(RECORDS, name, replace(RECORDS[name], sizes=(train, test)))
