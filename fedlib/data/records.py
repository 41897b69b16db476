"""What a dataset is, and the small records of the ones that are known."""

import string
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

    features: pictures uint8 [N, H, W, C], or texts as token ids int32 [N, T]; memory-mapped where
    they come from a file.
    labels: int64 [N], 0..classes-1.
    columns: whatever else is known per example, [N] each, by name (writer_id, ...).
    """

    features: NDArray[Any]
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

    test: empty where a dataset has no official test split (femnist).
    mean, std: per channel, of pixels scaled to [0, 1]; the customary constants, () for text.
    source: where the examples came from, without any machine's folders. fingerprint: SHA-256, in
    hex, of features, labels and vocabulary.
    vocabulary: what each token id stands for, by descending frequency in the training texts after
    the padding (0) and the unknown token (1), so that V ids are kept by making ids >= V unknown;
    () for pictures.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    fingerprint: str = ""
    vocabulary: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of a picture, or the length of a text in tokens."""
        return self.train.features.shape[1:]

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.shape)
        return (
            f"Dataset({self.name}: {len(self.train):,} train, {len(self.test):,} test, {shape}, "
            f"{self.classes} classes, {self.source})"
        )


@dataclass(frozen=True)
class Record:
    """What must be known of a dataset to read it: file layout, shape, classes, constants.

    sizes: how many training and test examples the official set has.
    features, label: the Parquet columns that may hold them, the first one present counts.
    splits: what the Parquet files call the training and the test split; a set without an official
    test split has one. coded: columns of names that become numbers 0.., in the order of the names.
    placeholders: class_names only count the classes; files may know better ones.
    hub: owner, repository and folder of its Parquet files on the Hugging Face hub, "" for none;
    revision: the commit there that is meant, whatever the repository holds today.
    """

    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: tuple[int, int]
    hub: str = ""
    revision: str = "main"
    features: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label",)
    splits: tuple[str, ...] = ("train", "test")
    coded: tuple[str, ...] = ()
    placeholders: bool = False

    @property
    def is_text(self) -> bool:
        """Whether examples are texts, not pictures."""
        return len(self.shape) == 1


DIGIT_NAMES = tuple(string.digits)

CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

CIFAR100_NAMES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip

FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

RECORDS = {
    "mnist": Record(
        (28, 28, 1), DIGIT_NAMES, (0.1307,), (0.3081,), (60_000, 10_000),
        "ylecun/mnist/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c",
    ),
    "fashion_mnist": Record(
        (28, 28, 1), FASHION_NAMES, (0.2860,), (0.3530,), (60_000, 10_000),
        "zalando-datasets/fashion_mnist/fashion_mnist", "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    ),
    "cifar10": Record(
        (32, 32, 3), CIFAR10_NAMES,
        (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), (50_000, 10_000),
        "uoft-cs/cifar10/plain_text", "0b2714987fa478483af9968de7c934580d0bb9a2",
    ),
    "cifar100": Record(
        (32, 32, 3), CIFAR100_NAMES,
        (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), (50_000, 10_000),
        "uoft-cs/cifar100/cifar100", "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
        label=("fine_label",),
    ),
    # Dark ink on white paper, unlike MNIST.
    "femnist": Record(
        (28, 28, 1), tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
        (0.9637,), (0.1592,), (814_277, 0), "flwrlabs/femnist/data",
        label=("character",), splits=("train",), coded=("writer_id",),
    ),
    "tiny_imagenet": Record(
        (64, 64, 3), tuple(f"class {i}" for i in range(200)),
        (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), (100_000, 10_000),
        "zh-plus/tiny-imagenet/data", "5a77092c28e51558c5586e9c5eb71a7e17a5e43f",
        splits=("train", "valid"), placeholders=True,
    ),
    "ag_news": Record(
        (200,), ("World", "Sports", "Business", "Sci/Tech"), (), (), (120_000, 7_600),
        "fancyzhx/ag_news/data", "eb185aade064a813bc0b7f42de02595523103ca4", features=("text",),
    ),
}  # fmt: skip
