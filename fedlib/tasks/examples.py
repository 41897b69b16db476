"""A data set's examples on a device: the splits that are used, and tables of who holds which."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from fedlib.data import Dataset, Split
from fedlib.federation import Table
from fedlib.partition import Division, Partition, Request, holdout
from fedlib.tasks.views import Pool, view

Splits = dict[str, Split]


def splits_of(data: Dataset, portion: float, seed: int) -> Splits:
    """Return the splits "train" and "test", a share of each, class by class."""
    return {n: _some(s, portion, seed) for n, s in (("train", data.train), ("test", data.test))}


def _some(split: Split, portion: float, seed: int) -> Split:
    leave = len(split) - math.ceil(portion * len(split))
    if not leave:
        return split
    rows, _ = holdout(split.labels, leave, seed)
    columns = {name: values[rows] for name, values in split.columns.items()}
    return Split(split.features[rows], split.labels[rows], columns)


def labels_of(splits: Splits, origin: str) -> np.ndarray:
    """Return the labels ``[N]`` that a part points at: of a split, or "merged", one after another.

    See ``Division.origin``.
    """
    return _joined([part.labels for part in _parts(splits, origin)])


def tables_of(
    data: Dataset, splits: Splits, division: Division, request: Request, own_view: set[str],
    seed: int, device: torch.device,
) -> dict[str, Table]:  # fmt: skip
    """Return the tables of a division's parts; parts of one origin share its examples.

    Those with side information, and those in ``own_view``, have examples of their own: each that
    they hold as a client sees it.
    """
    origins = set(division.origin.values())
    pools = {origin: _pool(splits, origin, device) for origin in origins}
    look, tables = _look(data, device), {}
    for name, part in division.parts.items():
        pool = pools[division.origin[name]]
        if part.side or name in own_view:
            pool, part = view(request, pool, part, seed, data.classes)
        tables[name] = _table(pool, part, look)
    return tables


def _pool(splits: Splits, origin: str, device: torch.device) -> Pool:
    x = _joined([part.features for part in _parts(splits, origin)])
    with warnings.catch_warnings():
        # On the array's own memory, which processes share if it is a mapped file.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        features = torch.from_numpy(x)
    return features.to(device), torch.tensor(labels_of(splits, origin), device=device)


def _parts(splits: Splits, origin: str) -> list[Split]:
    return [splits["train"], splits["test"]] if origin == "merged" else [splits[origin]]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])


def _look(data: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift of every value of an image; text has none."""
    mean, std = (np.tile(v, math.prod(data.shape[:-1])) for v in (data.mean, data.std))
    numbers = (1 / (255 * std), -mean / std)
    scale, shift = (torch.tensor(v, dtype=torch.float32, device=device) for v in numbers)
    return scale, shift


def _table(pool: Pool, part: Partition, look: tuple[Tensor, Tensor]) -> Table:
    x, y = pool
    index = torch.tensor(part.index, device=x.device)
    side = {n: torch.tensor(v.astype(np.int64), device=x.device) for n, v in part.side.items()}
    return Table(x, y, index, np.array(part.sizes), *look, side)
