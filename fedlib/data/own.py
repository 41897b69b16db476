"""Datasets of one's own: arrays in, and from then on a name like any other's."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.data import cache
from fedlib.data.records import Record, Split

ORIGIN = "own"
Arrays = tuple[NDArray[Any], NDArray[Any]]
# A channel that never changes has no scale.
LEAST_STD = 1e-3


def add(
    name: str, train: Arrays, test: Arrays | None = None, class_names: Sequence[str] = ()
) -> cache.Entry:
    """Store the pictures and labels of `datasets.add`, and return where they lie."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_sample"):
        raise ValueError(
            f"name must be of small letters, digits and _, without _sample at its end; got {name!r}"
        )
    first = _checked("train", *train)
    second = _checked("test", *(test or (first.features[:0], first.labels[:0])))
    if first.features.shape[1:] != second.features.shape[1:] or not len(first):
        raise ValueError(f"train is {first!r}, test {second!r}: shapes differ, or nothing to train")
    classes = 1 + max(int(s.labels.max(initial=-1)) for s in (first, second))
    called = tuple(map(str, class_names or range(classes)))
    if len(set(called)) != len(called) or len(called) < classes:
        raise ValueError(f"class_names must be {classes} different names or more, got {called}")
    parts = {"train": first, "test": second}

    def build(target: Path) -> dict[str, Any]:
        for split, part in parts.items():
            cache.save(target, split, "features", part.features)
            cache.save(target, split, "labels", part.labels)
        return {"class_names": called, **_look(first.features)}

    key = cache.key_of(name, called, *(_digest(part) for part in parts.values()))
    return cache.get(name, key, "arrays of one's own", ORIGIN, build)


def record(name: str) -> Record | None:
    """What must be known of an added dataset to use it; None if there is none of that name."""
    for entry in cache.entries(name):
        with suppress(OSError, ValueError, LookupError, TypeError):
            meta = json.loads((entry / "meta.json").read_text())
            if meta["origin"] == ORIGIN:
                parts = (tuple(meta[part]) for part in ("shape", "class_names", "mean", "std"))
                shape, called, mean, std = parts
                return Record(shape, called, mean, std, _sizes(entry))
    return None


def names() -> tuple[str, ...]:
    """The names of all datasets that were added."""
    metas = cache.folder().glob(f"*-{'?' * cache.KEY_LENGTH}/meta.json")
    found = {path.parent.name.rpartition("-")[0] for path in metas}
    return tuple(sorted(name for name in found if record(name) is not None))


def _checked(split: str, features: NDArray[Any], labels: NDArray[Any]) -> Split:
    pictures, numbers = np.array(features), np.array(labels)
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] not in (1, 3):
        raise ValueError(
            f"{split}: pictures must be uint8 [N, H, W, C] with one channel or three, got "
            f"{pictures.dtype} {list(pictures.shape)}"
        )
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or numbers.min(initial=0) < 0:
        raise ValueError(
            f"{split}: labels must be integers 0.. in [N], got {numbers.dtype} "
            f"{list(numbers.shape)}"
        )
    return Split(pictures, numbers.astype(np.int64))


def _look(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """Return shape, and mean and standard deviation of each channel, of pixels in [0, 1]."""
    values = np.arange(256) / 255
    # By counts: an array of floats would take eight times the memory of the pixels.
    counts = [
        np.bincount(channel.reshape(-1), minlength=256) for channel in np.moveaxis(pixels, 3, 0)
    ]
    means = [float(np.average(values, weights=c)) for c in counts]
    stds = [
        max(LEAST_STD, float(np.average((values - m) ** 2, weights=c)) ** 0.5)
        for m, c in zip(means, counts, strict=True)
    ]
    return {"shape": pixels.shape[1:], "mean": means, "std": stds}


def _sizes(entry: Path) -> tuple[int, int]:
    train, test = (
        len(np.load(cache.path_of(entry, split, "labels"), mmap_mode="r", allow_pickle=False))
        for split in ("train", "test")
    )
    return train, test


def _digest(part: Split) -> str:
    content = hashlib.sha256(repr(part).encode())
    content.update(np.ascontiguousarray(part.features).data)
    content.update(part.labels.data)
    return content.hexdigest()
