"""Convert tables of pandas, Arrow and others to arrays, with errors that name the column."""

from collections.abc import Sequence
from decimal import Decimal
from itertools import zip_longest
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ADVICE = "encode categories (pandas.get_dummies), and count dates from one of them"


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
            join = "join them with .loc[other.index], or give .to_numpy() of what is in one order"
            raise ValueError(f"{first!r} and {name!r} have different indices: {join}")


def array_of(features: Any) -> NDArray[Any]:
    """Return features as one array, a table as numbers ``[N, columns]``.

    Raises:
        ValueError: for a column that does not hold numbers.
    """
    if names := named(features):
        columns = zip(names, _columns(features, names), strict=True)
        return np.column_stack([_numbers(*pair) for pair in columns])
    x = np.array(features, order="C")
    if x.ndim < 2 or x.dtype.kind in "fiubc" or not x.size:
        return x
    flat = [_numbers(i, column) for i, column in enumerate(x.reshape(len(x), -1).T)]
    return np.column_stack(flat).reshape(x.shape)


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
    """Return a column of a table as numbers, with NaN for missing values.

    Texts, categories and times are refused, although numpy would make numbers of some.
    """
    values, kind = np.asarray(column), str(getattr(column, "dtype", ""))
    if values.dtype.kind in "fiub" and kind != "category":
        return values
    known = Real | Decimal | np.bool_
    odd = {type(v).__name__ for v in values if not (isinstance(v, known) or missing(v))}
    if odd or values.dtype.kind in "fiubm":
        got = ", ".join(sorted(odd)) or kind or values.dtype
        raise ValueError(f"column {name!r} of the features must be of numbers, not {got}: {ADVICE}")
    plain = np.array([np.nan if missing(v) else v for v in values])
    return plain if plain.dtype.kind in "fiub" else plain.astype(float)


def missing(item: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT or pandas' NA."""
    none = item is None or type(item).__name__ == "NAType"
    return none or (not hasattr(item, "__len__") and bool(item != item))


def require_finite(x: NDArray[Any], names: Sequence[str]) -> None:
    """Raise ValueError for numbers ``[N, ...]`` that are missing, infinite or exceed float32."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(x.astype(np.float32, copy=False))
    for at in np.argwhere(bad):
        where = f"column {names[at[1]]!r}" if names else f"position {at[1:].tolist()}"
        what = f"{x[tuple(at)]} in row {at[0]:,}, {where}"
        lack = f"{bad.sum():,} features are missing or not finite in float32"
        raise ValueError(f"{lack}, the first is {what}: fill them, or leave these rows out")
