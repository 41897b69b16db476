"""A task: data set, partition and model as one named, seeded object that the papers share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedlib import datasets
from fedlib.federation import Federation, Table
from fedlib.models import MLP, LeNet, Net
from fedlib.partition import IID, Dirichlet, Partition, holdout, mirrored
from fedlib.values import one_of, value


@value
class Task:
    """Who trains what on which data.

    ``validation`` training examples are set aside before the partition; every client mirrors its
    training label shares on ``local_validation`` of them and on ``local_test`` test examples
    (docs/READINGS.md, A04). Model and round selection look at validation only.
    """

    dataset: str
    partition: Dirichlet | IID
    model: LeNet | MLP
    validation: int = 5000
    local_validation: int = 50
    local_test: int = 100

    def check(self) -> None:
        one_of("dataset", self.dataset, datasets.names())
        for name in ("validation", "local_validation", "local_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"Task.{name} must be >= 1, got {getattr(self, name)}")

    def build(self, seed: int, device: str | torch.device = "cpu") -> Federation:
        """Return the federation of one seed: partition, twins and pixels on a device."""
        data = datasets.load(self.dataset)
        where = pick_device(device)
        parts = split(self, data, seed)
        net = Net(self.model, data.shape, data.classes)
        look = _pixels(data, where)
        x, y = _tensors(data.train, where)
        tx, ty = _tensors(data.test, where)
        tables = (
            _table(x, y, parts["train"], look),
            _table(x, y, parts["validation"], look),
            _table(tx, ty, parts["test"], look),
        )
        ids = np.arange(parts["train"].clients)
        source = f"{data.source}, {data.fingerprint[:12]}"
        return Federation(net, data.classes, where, *tables, ids, data.class_names, source)


def split(task: Task, data: datasets.Dataset, seed: int) -> dict[str, Partition]:
    """Return the partitions ``train``, ``validation`` and ``test`` of one seed.

    ``train`` and ``validation`` index the data set's training examples and are disjoint, ``test``
    its test examples.
    """
    pool, held = holdout(data.train.labels, task.validation, seed)
    train = task.partition.split(data.train.labels, pool, seed, data.classes)
    shares = train.shares(data.train.labels, data.classes)
    twin = mirrored(data.train.labels, shares, size=task.local_validation, seed=seed, pool=held)
    test = mirrored(data.test.labels, shares, size=task.local_test, seed=seed)
    return {"train": train, "validation": twin, "test": test}


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return a device that exists: "auto" is CUDA where there is one, else the CPU.

    RuntimeError for a CUDA device that is not there, ValueError for an unknown kind.
    """
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    one_of("device", kind, ("auto", "cpu", "cuda"))
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not number.isdigit():
        raise ValueError(f"device {name!r}: the number must be a whole number, e.g. 'cuda:0'")
    if kind == "cuda" and int(number or 0) >= there:
        raise RuntimeError(f"device {name!r} is not there: this machine has {there} CUDA devices")
    return torch.device(name)


def _pixels(data: datasets.Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = np.array(data.mean), np.array(data.std)
    scale, shift = 1 / (255 * std), -mean / std
    return tuple(torch.tensor(v, dtype=torch.float32, device=device) for v in (scale, shift))  # type: ignore[return-value]


def _tensors(part: datasets.Split, device: torch.device) -> Iterable[Tensor]:
    return (torch.tensor(np.asarray(a), device=device) for a in (part.features, part.labels))


def _table(x: Tensor, y: Tensor, part: Partition, look: tuple[Tensor, Tensor]) -> Table:
    index = torch.tensor(part.index, device=x.device)
    side = {n: torch.tensor(v.astype(np.int64), device=x.device) for n, v in part.side.items()}
    return Table(x, y, index, np.array(part.sizes), *look, side)
