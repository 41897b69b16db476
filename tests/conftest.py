"""Small federations that every test can afford."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedlib.federation import Federation, Table
from fedlib.models import MLP, LeNet, Net

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Keep every test away from the project's stored runs, results and figures."""
    for name in ("RUNS", "RESULTS", "FIGURES"):
        monkeypatch.setenv(f"FEDLIB_{name}", str(tmp_path / name.lower()))


def make_federation(
    sizes=(12, 12, 12),
    *,
    model=None,
    classes=3,
    shape=(8, 8, 1),
    seed=0,
    side=None,
) -> Federation:
    """A federation of random images; a client of size n holds n examples, validation and test 6."""
    rng = np.random.default_rng(seed)
    model = model or MLP(hidden=(7,))
    total = int(sum(sizes)) + 40
    y = rng.integers(classes, size=total)
    x = rng.integers(0, 256, (total, *shape)) // 2 + (y * 40)[:, None, None, None]
    x = torch.tensor(x.clip(0, 255), dtype=torch.uint8)
    y = torch.tensor(y)
    look = torch.full((math.prod(shape),), 1 / 128), torch.full((math.prod(shape),), -1.0)
    index = torch.full((len(sizes), max(sizes)), -1)
    start = 0
    for i, n in enumerate(sizes):
        index[i, :n] = torch.arange(start, start + n)
        start += n
    held = torch.stack([torch.tensor(rng.permutation(40)[:6]) + start for _ in sizes])
    six = np.full(len(sizes), 6)
    extra = {} if side is None else {side: torch.tensor(rng.integers(2, size=index.shape))}
    return Federation(
        Net(model, shape, classes),
        classes,
        torch.device("cpu"),
        Table(x, y, index, np.array(sizes), *look, extra),
        Table(x, y, held, six, *look),
        Table(x, y, held.clone(), six, *look),
        np.arange(len(sizes)),
    )


@pytest.fixture
def fed() -> Federation:
    return make_federation()


LENET = LeNet(channels=(3, 4), hidden=(9,), kernel=3)
