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

from fedlib.data.arrays import add
from fedlib.data.opening import (
    Availability,
    class_names,
    describe,
    fetch,
    form,
    load,
    names,
    require,
    verify,
)
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
