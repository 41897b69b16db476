"""What a dataset is, and the small records of the ones that are known."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DatasetError(RuntimeError):
    """A dataset cannot be had; the message says what was looked for, where, and what to do."""


@contextmanager
def reading(path: Path, where: str = "") -> Iterator[None]:
    """Turn whatever a damaged or foreign file provokes into a DatasetError that names it."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:  # decoders of pictures and of Parquet raise many kinds
        raise DatasetError(f"{path}{where} cannot be read: {error}") from error


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one split, in the order of their source, read-only.

    features: pictures uint8 [N, H, W, C], texts as token ids int32 [N, T], or numbers float32 or
    float64 [N, ...]; memory-mapped where they come from a file.
    labels: int64 [N], 0..classes-1.
    columns: whatever else is known per example, [N] each, by name (writer_id, ...).
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
    """A train and a test split, and what it takes to normalise and to name them.

    test: empty where a dataset has no official test split (femnist).
    mean, std: per channel, of pixels scaled to [0, 1]; the customary constants, () for text.
    fit: what brings numbers to one scale, or ranks tokens, is no constant but `fitted` to training
    examples, when a task is built; then mean and std are ().
    source: where the examples came from, without any machine's folders. fingerprint: SHA-256, in
    hex, of features, labels and vocabulary; of data of one's own also of their other columns, of
    mean and of std.
    vocabulary: what each token id stands for, by descending frequency in the training texts after
    the padding (0) and the unknown token (1), so that V ids are kept by making ids >= V unknown;
    () for pictures.
    feature_names: of the columns of a table that was added, which others must have, too.
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
        """The shape of an example: height, width, channels; tokens of a text; that of numbers."""
        return self.train.features.shape[1:]

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.shape)
        sizes = f"{len(self.train):,} train, {len(self.test):,} test"
        return f"Dataset({self.name}: {sizes}, {shape}, {self.classes} classes, {self.source})"


@dataclass(frozen=True)
class Record:
    """What must be known of a dataset to read it: file layout, shape, classes, constants.

    shape: () for whatever the first example has. class_names: () for any number of classes.
    sizes: how many training and test examples the official set has.
    features, label: the Parquet columns that hold them; columns: the others to keep, None for all.
    splits: what the Parquet files call the training and the test split; a set without an official
    test split has one.
    hub: owner, repository and folder of its Parquet files on the Hugging Face hub; revision: the
    commit there that is meant, whatever the repository holds today.
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
        """What is kept with the examples of a set, if these come from a source."""
        look = {"class_names": self.class_names, "mean": self.mean, "std": self.std}
        return {"source": source, **look, "fit": False}


_FILE = Path(__file__).with_name("records.json")
_told: dict[str, dict[str, Any]] = json.loads(_FILE.read_text("utf-8"))
for _fields in _told.values():
    _fields |= {k: tuple(v) for k, v in _fields.items() if isinstance(v, list)}
# The pictures of femnist are dark on white, unlike MNIST's.
RECORDS = {name: Record(**fields) for name, fields in _told.items()}
