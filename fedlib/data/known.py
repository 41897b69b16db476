"""Which names there are, and what is known of a dataset without looking for its examples."""

from fedlib.data import digits, own
from fedlib.data.records import RECORDS, Record
from fedlib.values import one_of

SAMPLE = "_sample"
LISTED_SAMPLES = ("cifar100_sample", "tiny_imagenet_sample", "femnist_sample")
BUILT_IN = ("digits", *RECORDS, *(f"{official}{SAMPLE}" for official in RECORDS))


def names() -> tuple[str, ...]:
    """The datasets that `load` knows; any Parquet-backed one may also be a `<name>_sample`."""
    return ("digits", *RECORDS, *LISTED_SAMPLES, *own.names())


def require(name: str) -> None:
    """ValueError, with the names that `load` knows, for an unknown one."""
    if name not in BUILT_IN and own.record(name) is None:
        one_of("dataset", name, names())


def class_names(name: str) -> tuple[str, ...]:
    """The names of a dataset's labels, in order, without looking for its examples."""
    require(name)
    return record_of("mnist" if name == "digits" else name).class_names


def form(name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the number of classes, without looking for the examples."""
    require(name)
    shape = digits.SHAPE if name == "digits" else record_of(name).shape
    return shape, len(class_names(name))


def record_of(name: str) -> Record:
    known = RECORDS.get(name.removesuffix(SAMPLE)) or own.record(name)
    assert known is not None, "a name is required to be known first"
    return known


def official_sizes(name: str) -> tuple[int, int] | None:
    """Training and test examples that a dataset must have, None for a sample."""
    return None if name.endswith(SAMPLE) else record_of(name).sizes
