"""A task: data set, partition and model as one seeded object that the papers share."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedlib import data as datasets
from fedlib.federation import OPTED_IN, Federation, Table
from fedlib.models import Family, Net
from fedlib.partition import (
    Division,
    Mirrored,
    OptOut,
    Own,
    Partition,
    Request,
    balanced,
    divide,
    holdout,
)
from fedlib.tasks.augment import CropFlip
from fedlib.tasks.device import pick_device
from fedlib.tasks.views import Pool, view
from fedlib.values import one_of, value

Splits = dict[str, datasets.Split]


@value
class Task:
    """Who trains what on which data.

    ``partition`` deals the training examples to clients, ``held_out`` says what they are validated
    and tested on (docs/READINGS.md, A04): ``Mirrored`` elsewhere, or on their ``Own``. Model and
    round selection look at validation only. ``portion`` is the share of the data that is used at
    all, class by class. ``augment`` changes training images at random in every batch. ``opt_out``
    says which training examples no federated algorithm gets to see. ``balanced`` is the size of a
    set that all clients share, with as many examples of each class, on which each is scored too
    (001); 0 for none. It is drawn from the "test" split, or, ``balanced_on`` "validation", from the
    training examples that nobody trains on. ``validate_on`` "test" has every choice that validation
    examples should decide made on the tests themselves, as 003's released code does: only to show
    what that is worth.
    """

    dataset: str
    partition: Request
    model: Family
    held_out: Mirrored | Own = Mirrored()
    portion: float = 1.0
    augment: CropFlip | None = None
    opt_out: OptOut | None = None
    balanced: int = 0
    balanced_on: str = "test"
    validate_on: str = "validation"

    def check(self) -> None:
        datasets.require(self.dataset)
        if not 0 < self.portion <= 1:
            raise ValueError(f"Task.portion must lie in (0, 1], got {self.portion}")
        one_of("balanced_on", self.balanced_on, ("test", "validation"))
        one_of("validate_on", self.validate_on, ("validation", "test"))
        if self.balanced and not (self.balanced > 0 and self._tests_apart):
            raise ValueError(
                f"Task.balanced must be >= 0, and needs a test split that is for tests only: "
                f"Mirrored(source='train'), not {self.held_out}; got {self.balanced}"
            )

    def build(self, seed: int, device: str | torch.device = "cpu") -> Federation:
        """Return the federation of one seed: partition, twins and examples on a device."""
        data = datasets.load(self.dataset)
        where = pick_device(device)
        splits = self._splits(data, seed)
        division = self._divide(splits, data.classes, seed)
        pools = {origin: _pool(splits, origin, where) for origin in set(division.origin.values())}
        look = _look(data, where)
        tables = {}
        for name, part in division.parts.items():
            pool = pools[division.origin[name]]
            if part.side or (name == "test" and not self._tests_apart):
                pool, part = view(self.partition, pool, part, seed, data.classes)
            tables[name] = _table(pool, part, look)
        if self.opt_out is not None:
            part = division.parts["train"]
            labels = _labels(splits, division.origin["train"])
            inside = self.opt_out.stays_in(part, labels, seed, *self.partition.among())
            tables["train"].side[OPTED_IN] = torch.tensor(inside.astype(np.int64), device=where)
        tables["train"].augment = self.augment if len(data.shape) == 3 else None
        net = Net(self.model, data.shape, data.classes)
        ids = np.arange(division.parts["train"].clients)
        source = f"{data.source}, {data.fingerprint[:12]}"
        return Federation(
            net=net,
            classes=data.classes,
            device=where,
            train=tables["train"],
            validation=tables[self.validate_on],
            test=tables["test"],
            ids=ids,
            balanced=self._balanced(splits, tables, seed),
            kinds=self.partition.kinds(),
            class_names=data.class_names,
            source=source,
        )

    def _balanced(self, splits: Splits, tables: dict[str, Table], seed: int) -> Table | None:
        """Return the set that all clients share, a table with the same row for each."""
        if not self.balanced:
            return None
        table = tables[self.balanced_on]
        if table.side:
            raise ValueError(f"clients of {self.partition} see an example in different ways")
        if self.balanced_on == "test":
            chosen = balanced(splits["test"].labels, self.balanced, seed)
        else:
            assert isinstance(self.held_out, Mirrored)
            _, held = holdout(splits["train"].labels, self.held_out.pool, seed)
            chosen = held[balanced(splits["train"].labels[held], self.balanced, seed)]
        clients = len(table.sizes)
        index = torch.tensor(chosen, device=table.index.device).expand(clients, -1)
        return replace(table, index=index, sizes=np.full(clients, len(chosen)), side={})

    def divide(self, seed: int) -> Division:
        """Return who trains, validates and tests on what, without looking at an example."""
        data = datasets.load(self.dataset)
        return self._divide(self._splits(data, seed), data.classes, seed)

    def counts(self, seed: int) -> dict[str, np.ndarray]:
        """Return each client's class counts in every part, int64 ``[clients, classes]`` each."""
        data = datasets.load(self.dataset)
        splits = self._splits(data, seed)
        division = self._divide(splits, data.classes, seed)
        return {
            name: part.counts(_labels(splits, division.origin[name]), data.classes)
            for name, part in division.parts.items()
        }

    @property
    def _tests_apart(self) -> bool:
        """Whether the test split is for tests only: then all of it is the global test."""
        return isinstance(self.held_out, Mirrored) and self.held_out.source == "train"

    def _splits(self, data: datasets.Dataset, seed: int) -> Splits:
        splits = {"train": data.train, "test": data.test}
        return {name: _some(split, self.portion, seed) for name, split in splits.items()}

    def _divide(self, splits: Splits, classes: int, seed: int) -> Division:
        return divide(self.partition, self.held_out, splits["train"], splits["test"], classes, seed)


def _some(split: datasets.Split, portion: float, seed: int) -> datasets.Split:
    """Return a share of a split's examples, class by class."""
    leave = len(split) - math.ceil(portion * len(split))
    if not leave:
        return split
    rows, _ = holdout(split.labels, leave, seed)
    columns = {name: values[rows] for name, values in split.columns.items()}
    return datasets.Split(split.features[rows], split.labels[rows], columns)


def _pool(splits: Splits, origin: str, device: torch.device) -> Pool:
    x = _joined([part.features for part in _origin(splits, origin)])
    return _read_only(x).to(device), torch.tensor(_labels(splits, origin), device=device)


def _read_only(array: np.ndarray) -> Tensor:
    """Return a tensor on the array's own memory, which processes share if it is a mapped file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _labels(splits: Splits, origin: str) -> np.ndarray:
    return _joined([part.labels for part in _origin(splits, origin)])


def _origin(splits: Splits, origin: str) -> list[datasets.Split]:
    return [splits["train"], splits["test"]] if origin == "merged" else [splits[origin]]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])


def _look(data: datasets.Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
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
