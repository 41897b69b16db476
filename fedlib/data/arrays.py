"""Datasets that no file holds: arrays of one's own, and scikit-learn's handwritten digits."""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.data import cache
from fedlib.data.records import RECORDS, Dataset, DatasetError, Split

ORIGIN = "own"
Pair = tuple[NDArray[Any], NDArray[Any]]
# A channel that never changes has no scale.
LEAST_STD = 1e-3


def add(
    name: str, train: Pair, test: Pair | None = None, class_names: Sequence[str] = ()
) -> Dataset:
    """Store pictures and labels in the cache under a name of one's own, for good; return them.

    train, test: pictures uint8 [N, H, W, C], with one channel or three, and labels [N], integers
    0..classes-1; without a test split, tasks can only hold out clients' `Own` examples.
    class_names: of all labels, "0", "1", ... if there are none. Mean and standard deviation are
    those of the training pixels. What the name held before is replaced. ValueError for other arrays
    and for names that are taken, DatasetError when the cache cannot be written.
    """
    if name in RECORDS:
        raise ValueError(f"{name!r} is the name of a dataset that is known already")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_sample"):
        raise ValueError(
            f"name must be of small letters, digits and _, without _sample at its end; got {name!r}"
        )
    given = {"train": train} if test is None else {"train": train, "test": test}
    splits = {split: _checked(split, *pair) for split, pair in given.items()}
    shapes = {split: part["features"].shape for split, part in splits.items()}
    if len({shape[1:] for shape in shapes.values()}) > 1 or not shapes["train"][0]:
        raise ValueError(f"features are {shapes}: shapes differ, or there is nothing to train on")
    classes = 1 + max(int(part["labels"].max(initial=-1)) for part in splits.values())
    called = tuple(map(str, class_names or range(classes)))
    if len(set(called)) != len(called) or len(called) < classes:
        raise ValueError(f"class_names must be {classes} different names or more, got {called}")
    look = _look(splits["train"]["features"])
    told = {"source": "arrays of one's own", "class_names": called, **look}
    key = cache.key_of(called, cache.fingerprint(splits))
    return cache.get(name, ORIGIN, key, told, lambda: splits)


def added() -> tuple[str, ...]:
    """The names of all datasets that were added."""
    names = set()
    for path in cache.folder().glob(f"*/{cache.META}"):
        with suppress(DatasetError):
            meta = cache.meta_of(path.parent)
            names |= {str(meta["name"])} if meta["origin"] == ORIGIN else set()
    return tuple(sorted(names))


def _checked(split: str, features: NDArray[Any], labels: NDArray[Any]) -> dict[str, NDArray[Any]]:
    pictures, numbers = np.array(features), np.array(labels)
    got = f"got {pictures.dtype} {list(pictures.shape)} and {numbers.dtype} {list(numbers.shape)}"
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] not in (1, 3):
        what = "pictures must be uint8 [N, H, W, C] with one channel or three"
        raise ValueError(f"{split}: {what}, {got}")
    if numbers.shape != pictures.shape[:1] or numbers.dtype.kind not in "iu" or np.any(numbers < 0):
        raise ValueError(f"{split}: labels must be integers 0.. in [N], {got}")
    return {"features": pictures, "labels": numbers.astype(np.int64)}


def _look(pictures: NDArray[np.uint8]) -> dict[str, list[float]]:
    """Return mean and standard deviation of each channel of pixels in [0, 1]."""
    values, channels = np.arange(256) / 255, np.moveaxis(pictures, 3, 0)
    # By counts: an array of floats would take eight times the memory of the pixels.
    counts = [np.bincount(channel.reshape(-1), minlength=256) for channel in channels]
    mean = [float(np.average(values, weights=n)) for n in counts]
    squares = [np.average((values - m) ** 2, weights=n) for m, n in zip(mean, counts, strict=True)]
    return {"mean": mean, "std": [max(LEAST_STD, float(square) ** 0.5) for square in squares]}


def digits() -> Dataset:
    """The 1,797 digits of scikit-learn as 16x16 pictures, 1,437 for training and 360 for testing.

    Source: E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn.datasets import load_digits

    record, found = RECORDS["digits"], load_digits()
    features, labels = upscale(found.images.astype(np.int64)), found.target.astype(np.int64)
    test = _test_positions(labels, record.sizes[1])
    train = np.setdiff1d(np.arange(len(labels)), test)
    digest = hashlib.sha256(features.tobytes() + labels.tobytes() + test.tobytes()).hexdigest()
    first, second = (Split(features[rows], labels[rows]) for rows in (train, test))
    look = record.class_names, record.mean, record.std
    return Dataset("digits", first, second, *look, "embedded in scikit-learn", digest)


def upscale(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Double grey levels 0..16, [N, 8, 8], to pixels 0..255, uint8 [N, 16, 16, 1].

    Bilinear with pixel centres at half integers. Each level counts the ink in a 4x4 block, so
    the pictures are already smooth; repeating pixels would add edges that nobody wrote. Whole
    numbers throughout, so that every machine makes the same bytes.
    """
    # Each new value is 3 parts its own cell and 1 part the next nearest, along both axes.
    weights = 3 * np.repeat(np.eye(8, dtype=np.int64), 2, 0)
    for i in range(16):
        weights[i, min(max(i // 2 + (1 if i % 2 else -1), 0), 7)] += 1
    sixteenths = weights @ levels @ weights.T
    return ((sixteenths * 255 + 128) // 256).astype(np.uint8)[..., None]


def _test_positions(labels: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The test split: the same share of each class, sorted positions, always the same."""
    quota = np.bincount(labels) * size / len(labels)
    counts = np.floor(quota).astype(np.int64)
    counts[np.argsort(counts - quota, kind="stable")[: size - counts.sum()]] += 1
    # RandomState, because NumPy promises never to change its stream.
    generator = np.random.RandomState(0)
    stacks = [generator.permutation(np.flatnonzero(labels == n)) for n in range(len(counts))]
    return np.sort(np.concatenate([s[:n] for s, n in zip(stacks, counts, strict=True)]))
