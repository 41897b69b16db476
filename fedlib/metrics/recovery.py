"""How well found clusters agree with true ones."""

from __future__ import annotations

import numpy as np


def adjusted_rand_index(found: np.ndarray, true: np.ndarray) -> float:
    """Return the adjusted Rand index of two groupings of the same clients, ``[clients]`` each.

    1 for the same groups under any names, about 0 for a random one (Hubert and Arabie, 1985).
    """
    rows, columns = (np.unique(g, return_inverse=True)[1] for g in (true, found))
    table = np.zeros((rows.max(initial=0) + 1, columns.max(initial=0) + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    n, squares = len(rows), int((table**2).sum())
    # Ordered pairs of clients: together in both groupings, in one of them only, in neither.
    both = squares - n
    one = int((table.sum(1) ** 2).sum()) - squares
    other = int((table.sum(0) ** 2).sum()) - squares
    neither = n**2 - one - other - squares
    if one == other == 0:
        return 1.0
    product = (both + one) * (one + neither) + (both + other) * (other + neither)
    return 2.0 * (both * neither - one * other) / product


def truth(values: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """Return the group of every client whose side information ``[clients, width]`` is one value.

    ``sizes`` ``[clients]`` are their examples. None if a client's examples differ, or it has none.
    """
    real = np.arange(values.shape[1]) < sizes[:, None]
    first = values[:, 0] if values.shape[1] else np.zeros(len(values))
    alike = (values == first[:, None]) | ~real
    return first if alike.all() and (sizes > 0).all() else None
