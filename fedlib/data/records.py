"""``Dataset`` and ``Split``, and the records of the official datasets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DatasetError(RuntimeError):
    """A dataset cannot be loaded; the message says what was searched for, where, and what to do."""


@contextmanager
def reading(path: Path, where: str = "") -> Iterator[None]:
    """Convert any exception while ``path`` is read into a DatasetError that names the file."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:  # decoders of images and of Parquet raise errors of many types
        raise DatasetError(f"{path}{where} cannot be read: {error}") from error


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one split, in the order of their source. The arrays are read-only.

    Args:
        features: images uint8 [N, H, W, C], token ids int32 [N, T], or numbers float32 or float64
            [N, ...]; memory-mapped if they come from a file.
        labels: integers int64 [N] in 0..classes-1.
        columns: further columns [N] by name, such as writer_id. Default: {}.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = [("features", self.features), ("labels", self.labels), *self.columns.items()]
        for name, array in parts:
            if len(array) != len(self.features):
                wrong = f"{len(array):,} values for {len(self.features):,} examples"
                raise ValueError(f"{name!r} has {wrong}")
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split with their metadata.

    Args:
        name: name of the dataset.
        train: the training split.
        test: the test split; empty if there is no official one (femnist).
        class_names: class names by label.
        mean: mean per channel, of pixels scaled to [0, 1]; () for texts, and with ``fit``.
        std: standard deviation per channel, likewise.
        source: where the examples came from, without paths of this machine.
        fingerprint: SHA-256, in hexadecimal, of features, labels and vocabulary; of user-defined
            data also of further columns, mean and std.
        vocabulary: the token of every token id: the padding (0), the unknown token (1) and the
            others by descending frequency in the training texts, so that a smaller vocabulary of V
            tokens is obtained by making ids >= V unknown. Default: (), no texts.
        fit: whether normalisation, or the ranks of tokens, are `fitted` to the training examples
            when a task is built, instead of constants. Default: False.
        feature_names: column names of a table that was added; new examples must have the same.
            Default: ().
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    fingerprint: str
    vocabulary: tuple[str, ...] = ()
    fit: bool = False
    feature_names: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example: (height, width, channels), (tokens,), or that of numbers."""
        return self.train.features.shape[1:]

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.shape)
        sizes = f"{len(self.train):,} train, {len(self.test):,} test"
        return f"Dataset({self.name}: {sizes}, {shape}, {self.classes} classes, {self.source})"


@dataclass(frozen=True)
class Record:
    """The layout of a dataset in Parquet files.

    Args:
        shape: shape of an example; () for that of the first one.
        class_names: class names by label; () for any number of classes.
        mean: mean per channel, of pixels scaled to [0, 1].
        std: standard deviation per channel, likewise.
        sizes: numbers of training and test examples of the official set.
        hub: owner, repository and folder of the files on the Hugging Face hub.
        revision: the commit on the hub. Default: "main".
        features: names of the columns with the features. Default: ("image",).
        label: name of the column with the labels. Default: "label".
        columns: names of further columns to keep; None for all. Default: None.
        splits: names of the training and the test split in the files; only one if there is no
            official test split. Default: ("train", "test").
    """

    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: tuple[int, int]
    hub: str = ""
    revision: str = "main"
    features: tuple[str, ...] = ("image",)
    label: str = "label"
    columns: tuple[str, ...] | None = None
    splits: tuple[str, ...] = ("train", "test")

    def about(self, source: str) -> dict[str, Any]:
        """Return the metadata that are cached with the examples of a dataset."""
        look = {"class_names": self.class_names, "mean": self.mean, "std": self.std}
        return {"source": source, **look, "fit": False}


_FILE = Path(__file__).with_name("records.json")
_records: dict[str, dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))
for _fields in _records.values():
    _fields |= {k: tuple(v) for k, v in _fields.items() if isinstance(v, list)}
# The images of femnist are dark on white, unlike those of MNIST.
RECORDS = {name: Record(**fields) for name, fields in _records.items()}
