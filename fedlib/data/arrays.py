"""Datasets from arrays: user-defined ones (`add_data`), and the digits of scikit-learn."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlib.data import cache, parquet, tables
from fedlib.data.cache import OWN
from fedlib.data.records import RECORDS, Dataset, DatasetError, Split
from fedlib.values import check_choice

# Features, labels and, if there are any, further columns by name.
Given = tuple[Any, Any] | tuple[Any, Any, Mapping[str, Any]]
CONSTANT = 1e-14  # a channel with std below this share of its mean is constant up to rounding
LOST = 1e-3  # the largest rounding error of float32, as a share of the std, that is accepted
_NUMBERED = "write class_names, labels = numpy.unique(labels, return_inverse=True)"
BLOCK = 4096  # number of examples that are processed together


def add_data(
    name: str,
    train: Given | Any,
    test: Given | Any = None,
    class_names: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
    normalise: bool = True,
    tokens: bool | None = None,
    *,
    label: str = "",
    columns: Sequence[str] = (),
) -> Dataset:
    """Store examples and labels in the cache as a dataset, replacing one of the same name.

    A task normalises images and numbers to mean 0 and standard deviation 1 per channel (the last
    axis), and ranks the words of texts by frequency, both `fitted` to the training examples of the
    participating clients.

    Args:
        name: name of the dataset, of lower-case letters, digits and underscores.
        train: features and labels, and optionally a dict of further columns [N], for instance for
            `NaturalPartition`. Labels [N] are integers 0..classes-1. Features are images, uint8
            [N, H, W, C] with one or three channels; numbers [N, ...] or a table of pandas, Arrow or
            Polars, stored as float32 (or float64 if float32 would lose precision, such as seconds
            since 1970); texts [N], cut to 200 tokens; or token ids [N, T]. Networks receive images
            as [N, C, H, W]. pandas objects must have the same index, since rows are matched by
            position. With `label`, a table that has all of these as its columns.
        test: test examples, likewise. Default: None; a task must then hold out examples of the
            clients with `LocalHoldout`.
        class_names: class names by label. Default: "0", "1", ...
        vocabulary: the token of every token id. Default: ().
        normalise: if False, numbers are used as they are, and pixels are scaled to [0, 1]. Default:
            True.
        tokens: whether integers [N, T] are token ids. Default: None, which means those of an array
            are, and those of a table are not.
        label: name of a table's column of labels. Default: "", for pairs as above.
        columns: with `label`, columns that are not features, such as the client. Default: ().

    Returns:
        the dataset, which `load` returns by its name from now on.

    Raises:
        ValueError: if the arrays are not supported or the name is taken; nothing is written then.
        DatasetError: if the cache cannot be written.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"age": range(60), "ill": [0, 1] * 30, "ward": ["a", "b", "c"] * 20})
    >>> add_data("visits", visits, label="ill", columns="ward").feature_names
    ('age',)
    >>> task = Task("visits", NaturalPartition("ward"), MLP((8,)), LocalHoldout())
    >>> task.build(seed=0).client_names
    ('a', 'b', 'c')
    """
    if name in RECORDS:
        raise ValueError(f"{name!r} is the name of an official dataset: choose another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_sample"):
        need = "lower-case letters, digits and _, and must not end with _sample"
        raise ValueError(f"name must consist of {need}; got {name!r}")
    given = {"train": train} if test is None else {"train": train, "test": test}
    if label or columns:
        more = (columns,) if isinstance(columns, str) else columns
        given = {split: _taken_apart(table, label, more) for split, table in given.items()}
    splits = {split: checked(split, part, tokens) for split, part in given.items()}
    names = tables.named(given["train"][0])
    tables.require_columns(given.get("test", given["train"])[0], names, "test")
    splits = _as_kept(splits, names, normalise)
    about: dict[str, Any] = {"source": OWN, "class_names": _named(splits, class_names)}
    if texts := splits["train"].features.dtype == object:
        splits, vocabulary = parquet.tokenised(splits, parquet.LENGTH)
    x = splits["train"].features
    numbers = x.dtype != np.int32
    channels = x.shape[-1] if numbers and not normalise else 0
    about |= {"mean": [0.0] * channels, "std": [1.0] * channels}
    about |= {"fit": texts or (numbers and normalise), "feature_names": names}
    return cache.get(name, None, about, lambda: (splits, tuple(vocabulary)))


def _taken_apart(table: Any, label: str, columns: Sequence[str]) -> Given:
    """Return the features, the labels and the further columns of a table."""
    taken, names = (label, *columns), tables.named(table)
    for name in taken:
        check_choice("column", name, names)
    pick, pandas = getattr(table, "select", table.__getitem__), hasattr(table, "iloc")
    x = table.drop(columns=[*taken]) if pandas else pick([n for n in names if n not in taken])
    return x, table[label], {name: table[name] for name in columns}


def _as_kept(splits: dict[str, Split], names: list[str], normalise: bool) -> dict[str, Split]:
    """Return splits whose floats are float32, or all float64 if float32 would lose precision.

    Raises:
        ValueError: if the shapes of the splits differ, or if numbers that are not normalised need
            float64, since networks compute in float32.
    """
    x, kind = splits["train"].features, "float32"
    if x.dtype == np.float64 and len(x) and (lost := np.flatnonzero(_lost(x)).tolist()):
        kind = "float64"
        if not normalise:
            which = f"column {names[lost[0]] if names else lost[0]!r}"
            wrong = "varies too little for how large it is, as networks compute in float32"
            raise ValueError(f"{which} {wrong}: subtract its mean, or let normalise be True")
    for name, part in splits.items():
        if part.features.dtype.kind == "f":
            splits[name] = replace(part, features=part.features.astype(kind, copy=False))
    kinds = {n: (p.features.dtype.name, *p.features.shape[1:]) for n, p in splits.items()}
    if len(set(kinds.values())) > 1 or not len(x):
        raise ValueError(f"features are {kinds}: shapes differ, or there is nothing to train on")
    return splits


def added() -> tuple[str, ...]:
    """Return the names of all user-defined datasets."""
    cache.restore()
    names = []
    for path in sorted(cache.folder().glob(f"[!.]*/{cache.META}")):
        with suppress(DatasetError):
            if cache.meta_of(path.parent.name)["source"] == OWN:
                names.append(path.parent.name)
    return tuple(names)


def checked(split: str, part: Given, tokens: bool | None = None) -> Split:
    """Return a split as it is stored; raise ValueError for data that are not supported.

    Args:
        split: name of the split, for error messages.
        part: features, labels and optionally further columns, as for `add_data`.
        tokens: as for `add_data`.
    """
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        hint = "add_data(name, (x, y)), or of a table add_data(name, table, label=column)"
        raise ValueError(f"{split} must be (features, labels), or columns too: {hint}")
    columns = part[2] if len(part) > 2 else {}
    if not isinstance(columns, Mapping):
        raise ValueError(f"{split}: columns must be a dict by name, not {type(columns).__name__}")
    given = [("features", part[0]), ("labels", part[1]), *columns.items()]
    try:
        for what in (name for name, values in given if np.ma.is_masked(values)):
            wrong = "has masked values: fill them, or leave these examples out"
            raise ValueError(f"{what!r} {wrong}")
        tables.require_same_rows(*given)
        kept = {str(name): _column(str(name), values) for name, values in columns.items()}
        if len(kept) < len(columns):
            raise ValueError(f"columns must have different names, as text: {[*columns]}")
        return Split(_features(part[0], tokens), labels_of(part[1]), kept)
    except ValueError as error:
        raise ValueError(f"{split}: {error}") from error


def _features(given: Any, tokens: bool | None) -> NDArray[Any]:
    """Return features as they are stored: uint8, int32, float32, or an object array of texts.

    Numbers of higher precision remain float64 here; ``_as_kept`` decides whether it is needed.
    """
    x, names = tables.array_of(given), tables.named(given)
    whole, got = tokens if tokens is not None else not names, f"got {x.dtype} {list(x.shape)}"
    if x.ndim == 1 and x.dtype.kind in "UO" and all(isinstance(text, str) for text in x):
        return x.astype(object)
    if x.dtype == np.uint8 and (x.ndim == 4 or (whole and not tokens)):
        if x.ndim == 4 and x.shape[3] in (1, 3):
            return x
        grey = x.ndim == 3 and x.shape[2] not in (1, 3)
        one = "x[..., None] for grey images" if grey else "x[None] for one image"
        what = f"images must be uint8 [N, H, W, C] with one channel or three: write {one}"
        more = "and for other numbers of any shape x.astype(np.float32)"
        raise ValueError(f"{what}, {more}; {got}")
    if x.dtype.kind in "iu" and x.ndim == 2 and whole:
        if x.size and not 0 <= x.min() <= x.max() < 2**31:
            raise ValueError(f"tokens must be 0 or more, got {x.min()}..{x.max()}")
        return x.astype(np.int32)
    if x.dtype.kind not in ("f" if whole else "fiub") or x.ndim < 2 or 0 in x.shape[1:]:
        known = "uint8 [N, H, W, C], integers [N, T] or floats [N, ...], or texts [N]"
        raise ValueError(f"features must be {known}, {got}")
    tables.require_finite(x, names)
    return x.astype(np.float32 if x.dtype in (np.float16, np.float32) else np.float64, copy=False)


def labels_of(given: Any) -> NDArray[np.int64]:
    """Return labels as int64; raise ValueError for labels that are not integers from 0."""
    y = np.array(given)
    some = y.tolist() if y.ndim == 1 and y.dtype.kind in "fO" else ()
    for missing in (i for i, label in enumerate(some) if tables.missing(label)):
        raise ValueError(f"example {missing:,} has no label: leave it out")
    y = np.array(y.tolist()) if y.dtype == object else y  # such as pandas' nullable integers
    need = "labels must be integers 0.. in [N], one for each example"
    if y.ndim != 1 or y.dtype.kind not in "iub":
        more = f"; {_NUMBERED}" if y.ndim == 1 and y.dtype.kind in "UTf" else ""
        raise ValueError(f"{need}, got {y.dtype} {list(y.shape)}{more}")
    for row in np.flatnonzero(y.astype(np.int64) < 0):
        raise ValueError(f"{need}, and example {row:,} has {y[row]}")
    return y.astype(np.int64)


def _column(name: str, values: Any) -> NDArray[Any]:
    """Return a column as it is stored: numbers, booleans or texts; times become texts."""
    v = np.array(values, object if isinstance(values, list | tuple) else None)
    if v.ndim == 1 and v.dtype.kind in "OM":
        for row in (i for i, item in enumerate(v) if tables.missing(item)):
            raise ValueError(f"row {row:,} of column {name!r} holds no value")
        texts = v.dtype.kind == "M" or all(isinstance(item, str | date) for item in v)
        plain = np.array([] if texts else v.tolist())
        v = v.astype(str) if texts else plain if plain.dtype.kind in "iufb" else v
    if v.ndim != 1 or v.dtype.kind not in "iufbU":
        need = f"it must hold numbers or names, as by astype(str), got {v.dtype} {list(v.shape)}"
        raise ValueError(f"column {name!r} cannot be kept: {need}")
    return v


def _named(splits: dict[str, Split], class_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all classes; raise ValueError unless each has a training example."""
    if isinstance(class_names, Mapping):
        raise ValueError(f"class_names must be in the order of labels, no dict: {class_names}")
    class_names = tuple(map(str, class_names))
    classes = 1 + max(int(part.labels.max(initial=-1)) for part in splits.values())
    seen = np.unique(splits["train"].labels)
    # No array of length `classes` is allocated, which by mistake may be any number.
    for i in range(max(classes, len(class_names), 2)):
        if i >= len(seen) or seen[i] != i:
            needed = "two classes or more, without gaps, are needed"
            raise ValueError(
                f"no training example has label {i}: {needed}; the highest is {classes - 1}. "
                f"To number labels anew, {_NUMBERED}"
            )
    if class_names and (len(set(class_names)) != len(class_names) or len(class_names) < classes):
        raise ValueError(f"class_names must be {classes:,} different names or more: {class_names}")
    return class_names or tuple(map(str, range(classes)))


class Fitted(NamedTuple):
    """Preprocessing that is fitted to training examples: normalisation, or ranks of tokens.

    Args:
        mean: mean per channel, of pixels in [0, 1]; () for texts.
        std: standard deviation per channel, likewise.
        ids: the new id of every token id of the dataset, by its rank in these examples; None if
            token ids are not changed. Default: None.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    ids: NDArray[np.int32] | None = None


def fitted(data: Dataset, features: NDArray[Any], rows: NDArray[np.int64]) -> Fitted:
    """Return preprocessing fitted to some examples of a dataset.

    Args:
        data: the dataset.
        features: features [N, ...].
        rows: indices of the examples to use.
    """
    if features.dtype == np.int32:
        return Fitted((), (), _ranks(features[rows], data.vocabulary))
    unit = 255 if features.dtype == np.uint8 else 1
    mean, std = _moments(features, rows)
    # A channel that is constant up to rounding is centred but not scaled up.
    least = CONSTANT * np.abs(mean)
    std = np.where(std > least, std, np.maximum(unit, least))
    return Fitted(tuple((mean / unit).tolist()), tuple((std / unit).tolist()))


def _moments(features: NDArray[Any], rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return mean and standard deviation of every channel in float64."""
    axes = tuple(range(features.ndim - 1))
    blocks = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
    each = len(rows) * math.prod(features.shape[1:-1])  # values per channel
    mean = sum(features[b].sum(axes, dtype=np.float64) for b in blocks) / each
    if features.dtype == np.float64:  # corrects the rounding error of the first sum
        mean = mean + sum((features[b] - mean).sum(axes) for b in blocks) / each
    squares = sum(((features[b] - mean) ** 2).sum(axes) for b in blocks)
    return mean, np.sqrt(squares / each)


def _lost(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for which channels rounding to float32 exceeds ``LOST`` standard deviations."""
    mean, std = _moments(x, np.arange(len(x)))
    blocks = (x[i : i + BLOCK].reshape(-1, x.shape[-1]) for i in range(0, len(x), BLOCK))
    worst = np.max([np.abs(block - block.astype(np.float32)).max(0) for block in blocks], 0)
    return (worst > LOST * std) & (std > CONSTANT * np.abs(mean))


def _ranks(tokens: NDArray[np.int32], vocabulary: Sequence[str]) -> NDArray[np.int32]:
    """Return the new id of every token as if the vocabulary were `learn`ed from these texts.

    Tokens that do not occur in them become unknown.
    """
    counts = np.bincount(tokens.ravel(), minlength=len(vocabulary))
    first = len(parquet.SPECIAL)
    seen = [i for i in range(first, len(vocabulary)) if counts[i]]
    ids = np.full(len(vocabulary), parquet.UNKNOWN, np.int32)
    ids[parquet.PADDING] = parquet.PADDING
    for rank, i in enumerate(sorted(seen, key=lambda i: (-counts[i], vocabulary[i])), first):
        ids[i] = rank
    return ids


@lru_cache(maxsize=1)
def digits() -> Dataset:
    """Return the 1,797 digits of scikit-learn as 16x16 images, 1,437 for training, 360 for testing.

    Source: E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn.datasets import load_digits

    record, embedded = RECORDS["digits"], load_digits()
    features, labels = upscale(embedded.images.astype(np.int64)), embedded.target.astype(np.int64)
    test = _test_positions(labels, record.sizes[1])
    train = np.setdiff1d(np.arange(len(labels)), test)
    digest = hashlib.sha256(features.tobytes() + labels.tobytes() + test.tobytes()).hexdigest()
    first, second = (Split(features[rows], labels[rows]) for rows in (train, test))
    look = record.class_names, record.mean, record.std
    return Dataset("digits", first, second, *look, "embedded in scikit-learn", digest)


def upscale(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Double grey levels 0..16, [N, 8, 8], to pixels 0..255, uint8 [N, 16, 16, 1].

    Interpolation is bilinear with pixel centres at half integers. Each level is the amount of ink
    in a 4x4 block, so the images are smooth, and repeating pixels would add artificial edges. All
    arithmetic is in integers, so that every machine computes the same bytes.
    """
    # Each new value is 3/4 its own cell and 1/4 the next nearest, along both axes.
    weights = 3 * np.repeat(np.eye(8, dtype=np.int64), 2, 0)
    for i in range(16):
        weights[i, min(max(i // 2 + (1 if i % 2 else -1), 0), 7)] += 1
    sixteenths = weights @ levels @ weights.T
    return ((sixteenths * 255 + 128) // 256).astype(np.uint8)[..., None]


def _test_positions(labels: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the sorted, fixed indices of the test split, stratified by class."""
    quota = np.bincount(labels) * size / len(labels)
    counts = np.floor(quota).astype(np.int64)
    counts[np.argsort(counts - quota, kind="stable")[: size - counts.sum()]] += 1
    # NumPy guarantees that the stream of RandomState never changes.
    generator = np.random.RandomState(0)
    shuffled = [generator.permutation(np.flatnonzero(labels == n)) for n in range(len(counts))]
    return np.sort(np.concatenate([s[:n] for s, n in zip(shuffled, counts, strict=True)]))
