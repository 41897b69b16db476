"""Datasets that no file holds: arrays of one's own, and scikit-learn's handwritten digits."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib.data import cache
from fedlib.data.records import RECORDS, Dataset, DatasetError, Split

OWN = "arrays of one's own"
# Features, labels and, if there are any, further columns by name.
Given = tuple[Any, Any] | tuple[Any, Any, Mapping[str, Any]]
CONSTANT = 1e-6  # what varies by no larger share of its mean has no scale
BLOCK = 4096  # examples whose squares are summed at once


def add(
    name: str,
    train: Given,
    test: Given | None = None,
    class_names: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
    normalise: bool = True,
) -> Dataset:
    """Store examples and labels in the cache under a name of one's own, for good; return them.

    train, test: features, labels [N], integers 0..classes-1, and a dict with further columns [N],
    such as whose an example is, for `ByColumn`. Features are images uint8 [N, H, W, C] with one
    channel or three, tokens [N, T] of any other integers, or numbers [N, ...], kept as float32.
    Images and numbers are brought to mean 0 and deviation 1 in training, per channel (the last
    axis), unless `normalise` is False: then numbers stay as they are, and pixels are in [0, 1].
    Without a test split, tasks can only hold out clients' `Own` examples.
    class_names: of all labels, "0", "1", ... if there are none. vocabulary: what tokens stand for.
    What the name held before is replaced. ValueError for other arrays and for names that are taken,
    with nothing written; DatasetError when the cache cannot be written.
    """
    if name in RECORDS:
        raise ValueError(f"{name!r} is the name of a dataset that is known already")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_sample"):
        raise ValueError(
            f"name must be of small letters, digits and _, without _sample at its end; got {name!r}"
        )
    given = {"train": train} if test is None else {"train": train, "test": test}
    splits = {split: checked(split, *part) for split, part in given.items()}
    kinds = {n: (p.features.dtype.name, *p.features.shape[1:]) for n, p in splits.items()}
    if len(set(kinds.values())) > 1 or not len(splits["train"]):
        raise ValueError(f"features are {kinds}: shapes differ, or there is nothing to train on")
    look = _look(splits["train"].features)
    if not normalise:
        look = {"mean": [0.0] * len(look["mean"]), "std": [1.0] * len(look["std"])}
    told = {"source": OWN, "class_names": _named(splits, class_names), **look}
    return cache.get(name, None, told, lambda: (splits, tuple(vocabulary)))


def added() -> tuple[str, ...]:
    """The names of all datasets that were added."""
    names = []
    for path in sorted(cache.folder().glob(f"*/{cache.META}")):
        with suppress(DatasetError):
            if cache.meta_of(path.parent.name)["source"] == OWN:
                names.append(path.parent.name)
    return tuple(names)


def checked(
    split: str, features: Any, labels: Any, columns: Mapping[str, Any] | None = None
) -> Split:
    """A split as it is stored; ValueError says what cannot be."""

    def need(legal: object, what: str, given: NDArray[Any] | None = None) -> None:
        if not legal:
            got = "" if given is None else f", got {given.dtype} {list(given.shape)}"
            raise ValueError(f"{split}: {what}{got}")

    x, y = np.array(features, order="C"), np.array(labels)
    if x.dtype == np.uint8:
        images = x.ndim == 4 and x.shape[3] in (1, 3)
        need(images, "images must be uint8 [N, H, W, C] with one channel or three", x)
    elif x.dtype.kind in "iu" and x.ndim == 2:
        legal = not x.size or 0 <= x.min() <= x.max() < 2**31
        need(legal, f"tokens must be 0 or more, got {x.min(initial=0)}..{x.max(initial=-1)}")
        x = x.astype(np.int32)
    else:
        legal = x.dtype.kind == "f" and x.ndim > 1 and all(x.shape[1:])
        need(legal, "features must be uint8 [N, H, W, C], integers [N, T] or floats [N, ...]", x)
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        for row in np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1)):
            need(False, f"example {row:,} has features that are NaN or infinite")
    legal = y.ndim == 1 and y.dtype.kind in "iu" and not np.any(y < 0)
    need(legal, "labels must be integers 0.. in [N], and regression is not supported", y)
    kept = {name: np.array(values) for name, values in (columns or {}).items()}
    for name, v in kept.items():
        legal = v.ndim == 1 and v.dtype.kind in "iufbU"
        need(legal, f"column {name!r} cannot be kept: it must hold numbers or names in [N]", v)
    return Split(x, y.astype(np.int64), kept)


def _named(splits: dict[str, Split], class_names: Sequence[str]) -> tuple[str, ...]:
    """The names of all classes; ValueError unless each has one, and a training example."""
    class_names = tuple(class_names)  # an array has no truth value
    classes = 1 + max(int(part.labels.max(initial=-1)) for part in splits.values())
    if class_names and (len(set(class_names)) != len(class_names) or len(class_names) < classes):
        raise ValueError(f"class_names must be {classes:,} different names or more: {class_names}")
    seen = np.unique(splits["train"].labels)
    # Labels may be any numbers by mistake: no array has as many entries as the largest says.
    for i in range(max(classes, len(class_names), 2)):
        if i >= len(seen) or seen[i] != i:
            which = f"{i} ({class_names[i]!r})" if class_names else str(i)
            needed = "two classes or more, each with examples, and labels without gaps"
            raise ValueError(f"no training example has label {which}: {needed} are needed")
    return tuple(map(str, class_names or range(classes)))


def _look(features: NDArray[Any]) -> dict[str, list[float]]:
    """Mean and standard deviation per channel, of pixels as numbers in [0, 1]; none of tokens."""
    if features.dtype == np.int32:
        return {"mean": [], "std": []}
    unit = 255 if features.dtype == np.uint8 else 1
    axes = tuple(range(features.ndim - 1))
    mean = features.mean(axes, dtype=np.float64)
    starts = range(0, len(features), BLOCK)
    squares = sum(((features[i : i + BLOCK] - mean) ** 2).sum(axes) for i in starts)
    std = np.sqrt(squares / (features.size / mean.size))
    std = np.where(std > CONSTANT * np.abs(mean), std, unit)
    return {"mean": (mean / unit).ravel().tolist(), "std": (std / unit).ravel().tolist()}


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
