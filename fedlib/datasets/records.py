"""What a dataset is, and the small records of the ones that are known."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DatasetError(RuntimeError):
    """A dataset cannot be had; the message says what was looked for, where, and what to do."""


class MissingDataError(DatasetError, FileNotFoundError):
    """A dataset is in none of the places it may be in."""


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one split, in the order of their source, read-only.

    features: uint8 [N, H, W, C], memory-mapped where they come from a file.
    labels: int64 [N], 0..classes-1.
    columns: whatever else is known per example, [N] each, by name (writer_id, ...).
    """

    features: NDArray[np.uint8]
    labels: NDArray[np.int64]
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arrays: list[NDArray[Any]] = [self.features, self.labels, *self.columns.values()]
        for array in arrays:
            if len(array) != len(self.features):
                raise ValueError(f"{len(array):,} values for {len(self.features):,} examples")
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.features.shape[1:])
        extra = f", with {', '.join(self.columns)}" if self.columns else ""
        return f"Split({len(self):,} of {shape}{extra})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test split, and what it takes to normalise and to name them.

    mean, std: per channel, of pixels scaled to [0, 1]; the customary constants.
    source: where the examples came from, without any machine's folders. fingerprint: SHA-256, in
    hex, of pixels and labels.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    fingerprint: str = ""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one example."""
        height, width, channels = self.train.features.shape[1:]
        return height, width, channels

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.shape)
        return (
            f"Dataset({self.name}: {len(self.train):,} train, {len(self.test):,} test, {shape}, "
            f"{self.classes} classes, {self.source})"
        )


@dataclass(frozen=True)
class Record:
    """What must be known of a dataset to read it: file layout, shape, classes, constants.

    image, label: the Parquet columns that may hold them, the first one present counts.
    test: what the Parquet files call the test split. torchvision: its class there, if any.
    """

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    torchvision: str | None = None
    image: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label", "fine_label")
    test: str = "test"


DIGIT_NAMES = tuple("0123456789")

RECORDS = {
    "mnist": Record((28, 28, 1), DIGIT_NAMES, (0.1307,), (0.3081,), "MNIST"),
    "fashion_mnist": Record(
        (28, 28, 1),
        (
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
            "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
        (0.2860,),
        (0.3530,),
        "FashionMNIST",
    ),
    "cifar10": Record(
        (32, 32, 3),
        (
            "airplane", "automobile", "bird", "cat", "deer",
            "dog", "frog", "horse", "ship", "truck",
        ),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        "CIFAR10",
    ),
}  # fmt: skip
