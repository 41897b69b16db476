"""The quick scale's data: scikit-learn's handwritten digits, which need no download."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedlib.data.records import RECORDS, Dataset, Split

SHAPE = (16, 16, 1)
TRAIN_SIZE, TEST_SIZE = 1437, 360
# Of the training split below, as for the other datasets.
MEAN, STD = (0.3058,), (0.3190,)


def load() -> Dataset:
    """The 1,797 digits of scikit-learn as 16x16 pictures, 1,437 for training and 360 for testing.

    Source: E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = upscale(digits.images.astype(np.int64))
    labels = digits.target.astype(np.int64)
    test = _test_positions(labels)
    train = np.setdiff1d(np.arange(len(labels)), test)
    digest = hashlib.sha256(features.tobytes() + labels.astype("<i8").tobytes() + test.tobytes())
    return Dataset(
        name="digits",
        train=Split(features[train], labels[train]),
        test=Split(features[test], labels[test]),
        class_names=RECORDS["mnist"].class_names,
        mean=MEAN,
        std=STD,
        source="embedded in scikit-learn",
        fingerprint=digest.hexdigest(),
    )


def upscale(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Double grey levels 0..16, [N, 8, 8], to pixels 0..255, uint8 [N, 16, 16, 1].

    Bilinear with pixel centres at half integers. Each level counts the ink in a 4x4 block, so
    the pictures are already smooth; repeating pixels would add edges that nobody wrote. Whole
    numbers throughout, so that every machine makes the same bytes.
    """
    sixteenths = _double(_double(levels, 1), 2)  # the weights of both axes sum to 16
    return ((sixteenths * 255 + 128) // 256).astype(np.uint8)[..., None]


def _double(values: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Twice as many values along an axis, each 3 parts its own cell and 1 part the next nearest."""
    size = values.shape[axis]
    before = values.take(np.maximum(np.arange(size) - 1, 0), axis)
    after = values.take(np.minimum(np.arange(size) + 1, size - 1), axis)
    pair = np.stack([3 * values + before, 3 * values + after], axis + 1)
    shape = list(values.shape)
    shape[axis] = 2 * size
    return pair.reshape(shape)


def _test_positions(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The test split: the same share of each class, sorted positions, always the same."""
    quota = np.bincount(labels) * TEST_SIZE / len(labels)
    counts = np.floor(quota).astype(np.int64)
    counts[np.argsort(counts - quota, kind="stable")[: TEST_SIZE - counts.sum()]] += 1
    # RandomState, because NumPy promises never to change its stream.
    generator = np.random.RandomState(0)
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
