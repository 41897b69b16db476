"""Convert tables of pandas, Arrow and others to arrays, with errors that name row and column."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import zip_longest
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ADVICE = (
    "read numbers as such (pandas.read_csv has decimal and na_values), encode categories"
    " (pandas.get_dummies), and count dates from one of them (in seconds, say)"
)


def named(features: Any) -> list[str]:
    """Return the column names of a table; [] for an array."""
    if isinstance(features, np.ndarray):
        return [*(features.dtype.names or ())]
    of_arrow = isinstance(features, pa.Table | pa.RecordBatch)
    names = features.schema.names if of_arrow else getattr(features, "columns", ())
    return [str(name) for name in names]


def require_columns(features: Any, names: Sequence[str], what: str) -> None:
    """Raise ValueError if a table has other columns than ``names``, or another order.

    Args:
        features: a table; other objects are accepted.
        names: column names of the training data; () accepts all.
        what: what the features are, for the message.
    """
    given = named(features)
    if given and names and given != [*names]:
        pairs = zip_longest(given, names)
        at, (got, wanted) = next((i, pair) for i, pair in enumerate(pairs) if len({*pair}) > 1)
        where = f"column {at} is {got!r}, where the training data have {wanted!r}"
        raise ValueError(f"{what}: columns must be the same in the same order, and {where}")


def require_same_rows(*parts: tuple[Any, Any]) -> None:
    """Raise ValueError if pandas objects of the same length have different indices.

    Rows are matched by position, so a table that was shuffled or sorted alone would get the labels
    of other rows.

    Args:
        parts: names and objects; those that are not of pandas are ignored.
    """
    indices = [(name, given.index) for name, given in parts if hasattr(given, "iloc")]
    for name, index in indices[1:]:
        first, other = indices[0]
        if len(index) == len(other) and not index.equals(other):
            row = next((i for i, (a, b) in enumerate(zip(index, other, strict=True)) if a != b), 0)
            differ = f"row {row:,} is {other[row]} in {first!r} and {index[row]} in {name!r}"
            join = "join them with .loc[other.index], or give .to_numpy() of what is in one order"
            raise ValueError(f"{first!r} and {name!r} have different indices: {differ}; {join}")


def array_of(features: Any) -> NDArray[Any]:
    """Return features as one array, a table as numbers ``[N, columns]``.

    Raises:
        ValueError: for a value that is not a number; it names column, row and value.
    """
    if isinstance(features, Mapping):
        raise ValueError("features must be an array or a table, no dict: pandas.DataFrame(it)")
    if names := named(features):
        columns = zip(names, _columns(features, names), strict=True)
        return np.column_stack([_numbers(*pair) for pair in columns])
    x = _array(features)
    if x.ndim < 2 or x.dtype.kind in "fiubc" or not x.size:
        return x
    flat = [_numbers(i, column) for i, column in enumerate(x.reshape(len(x), -1).T)]
    return np.column_stack(flat).reshape(x.shape)


def _array(features: Any) -> NDArray[Any]:
    try:
        return np.array(features, order="C")
    except ValueError as error:
        sizes = [len(x) if hasattr(x, "__len__") else 1 for x in features]
        row = next((i for i, size in enumerate(sizes) if size != sizes[0]), 0)
        differ = f"example {row:,} has another than example 0: pad or cut them"
        raise ValueError(f"features must be of one shape, and {differ}") from error


def _columns(table: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the columns of a table in order; several may have the same name."""
    if hasattr(table, "iloc"):
        return [table.iloc[:, i] for i in range(len(names))]
    if isinstance(table, np.ndarray):
        return [table[name] for name in names]
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table).columns
    x = np.array(table)
    if x.ndim != 2:
        raise ValueError(f"no array can be made of a {type(table).__name__}: collect it first")
    return [*x.T]


def _numbers(name: Any, column: Any) -> NDArray[Any]:
    """Return a column of a table as numbers, with NaN for missing values."""
    if str(getattr(column, "dtype", "")) == "category":
        raise ValueError(f"column {name!r} of the features is of categories, no numbers: {ADVICE}")
    values = np.asarray(column)
    if values.dtype.kind in "fiub":
        return values
    odd = [i for i, v in enumerate(values) if not (is_number(v) or missing(v))]
    if odd:
        row = next((i for i in odd if not _reads(values[i])), odd[0])
        item = values[row]
        got = repr(str(item)) if isinstance(item, str) else str(item)
        raise ValueError(f"column {name!r}, row {row:,}: {got} is no number: {ADVICE}")
    plain = np.array([np.nan if missing(v) else v for v in values])
    return plain if plain.dtype.kind in "fiub" else plain.astype(float)


def is_number(item: Any) -> bool:
    """Return whether an item is a number or a boolean."""
    return isinstance(item, Real | Decimal | np.bool_) and not isinstance(item, np.timedelta64)


def missing(item: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT or pandas' NA."""
    none = item is None or type(item).__name__ == "NAType"
    return none or (not hasattr(item, "__len__") and bool(item != item))


def _reads(text: Any) -> bool:
    """Return whether a text can be read as a number.

    A column of numbers becomes one of texts if a single value is no number; that one is reported.
    """
    try:
        return isinstance(text, str) and float(text) is not None
    except ValueError:
        return False


def require_finite(x: NDArray[Any], names: Sequence[str]) -> None:
    """Raise ValueError for numbers ``[N, ...]`` that are missing, infinite or exceed float32."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(x.astype(np.float32, copy=False))
    if x.ndim != 2:
        for at in np.argwhere(bad):
            where = f"example {at[0]:,} has features that are NaN or infinite"
            raise ValueError(f"{where}: {x[tuple(at)]} at {at[1:].tolist()}")
    for i in np.flatnonzero(bad.any(0)).tolist():
        rows = np.flatnonzero(bad[:, i])
        what, gaps = f"column {names[i] if names else i!r}", rows[np.isnan(x[rows, i])]
        if len(gaps):
            lack = f"{len(gaps):,} missing value{'s' * (len(gaps) > 1)}, first in row {gaps[0]:,}"
            raise ValueError(f"{what} has {lack}: fill them, or leave these rows out")
        raise ValueError(f"{what}, row {rows[0]:,}: {x[rows[0], i]} is too large for float32")
