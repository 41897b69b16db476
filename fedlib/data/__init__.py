"""Where examples come from: a name in, the train and test arrays of a dataset out.

A dataset is looked for inside the installed libraries (digits), in `$FEDLIB_DATA` (Parquet
files in the Hugging Face layout, `<name>/<split>-00000-of-00001.parquet`), among what has been
decoded before, and is else downloaded. Decoded arrays stay in the user's cache (FEDLIB_CACHE), so
every later opening takes a fraction of a second and no memory until pixels are used.

A name stands for the official set and nothing else. `<name>_sample` is the name of whatever
`$FEDLIB_DATA/<name>_sample`, or else `$FEDLIB_DATA/<name>`, holds; samples are never downloaded.
`add` makes a dataset of arrays, which lies in the cache and is known by its name from then on.

Downloads come from the Hugging Face hub, each set at a commit of its own, and are kept in
FEDLIB_CACHE/downloads; `huggingface_hub` resumes and retries them, and their SHA-256 is compared
with the hub's. No file is ever unpickled. What steers them::

    FEDLIB_DOWNLOAD=0      forbids them.
    HF_ENDPOINT            a mirror of the hub, in place of https://huggingface.co.
    HF_HUB_OFFLINE=1       asks nobody: what was downloaded before is all that there is.
"""

from collections.abc import Sequence

from fedlib.data import own
from fedlib.data.inventory import Availability, describe, verify
from fedlib.data.known import BUILT_IN, class_names, form, names, require
from fedlib.data.opening import dataset, opened
from fedlib.data.records import Dataset, DatasetError, MissingDataError, Split

__all__ = [
    "Availability",
    "Dataset",
    "DatasetError",
    "MissingDataError",
    "Split",
    "add",
    "class_names",
    "describe",
    "fetch",
    "form",
    "load",
    "names",
    "require",
    "verify",
]


def add(
    name: str, train: own.Arrays, test: own.Arrays | None = None, class_names: Sequence[str] = ()
) -> Dataset:
    """Store pictures and labels in the cache under a name of one's own, for good; return them.

    train, test: pictures uint8 [N, H, W, C], with one channel or three, and labels [N], integers
    0..classes-1; without a test split, tasks can only hold out clients' `Own` examples.
    class_names: of all labels, "0", "1", ... if there are none. Mean and standard deviation are
    those of the training pixels. What the name held before is replaced. ValueError for other arrays
    and for names that are taken, DatasetError when the cache cannot be written.
    """
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is the name of a dataset that is known already")
    return dataset(name, own.add(name, train, test, class_names))


def load(name: str) -> Dataset:
    """The dataset of that name, read-only: features and int64 labels [N] of both splits.

    ValueError for an unknown name; MissingDataError (a FileNotFoundError) when it is nowhere;
    DatasetError when its files are damaged or not those of the official set, or a download fails.
    """
    return opened(name, thorough=False)


def fetch(name: str) -> Dataset:
    """The dataset of that name, downloaded and decoded where need be, and checked to the last byte.

    Other than `load`, which trusts a file's size and time, this compares all checksums, and makes
    anew what is damaged. The same errors.
    """
    return opened(name, thorough=True)
