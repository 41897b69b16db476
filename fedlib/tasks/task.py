"""A task: data set, partition and model as one seeded object that the papers share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedlib import data as datasets
from fedlib.federation import OPTED_IN, Federation, Table
from fedlib.models import Family, Net
from fedlib.partition import (
    Division,
    Mirrored,
    OptOut,
    Own,
    Request,
    balanced,
    divide,
    holdout,
)
from fedlib.tasks.augment import CropFlip
from fedlib.tasks.device import pick_device
from fedlib.tasks.examples import Splits, labels_of, splits_of, tables_of
from fedlib.values import one_of, value


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
        data, where = datasets.load(self.dataset), pick_device(device)
        splits, division = self._divided(data, seed)
        seen = set() if self._tests_apart else {"test"}
        tables = tables_of(data, splits, division, self.partition, seen, seed, where)
        train = tables["train"]
        train.augment = self.augment if len(data.shape) == 3 else None
        if self.opt_out is not None:
            labels = labels_of(splits, division.origin["train"])
            among = self.partition.among()
            inside = self.opt_out.stays_in(division.parts["train"], labels, seed, *among)
            train.side[OPTED_IN] = torch.tensor(inside.astype(np.int64), device=where)
        return Federation(
            net=Net(self.model, data.shape, data.classes),
            classes=data.classes,
            device=where,
            train=train,
            validation=tables[self.validate_on],
            test=tables["test"],
            ids=np.arange(division.parts["train"].clients),
            balanced=self._balanced(splits, tables, seed),
            kinds=self.partition.kinds(),
            class_names=data.class_names,
            source=f"{data.source}, {data.fingerprint[:12]}",
        )

    def divide(self, seed: int) -> Division:
        """Return who trains, validates and tests on what, without looking at an example."""
        return self._divided(datasets.load(self.dataset), seed)[1]

    def counts(self, seed: int) -> dict[str, np.ndarray]:
        """Return each client's class counts in every part, int64 ``[clients, classes]`` each."""
        data = datasets.load(self.dataset)
        splits, division = self._divided(data, seed)
        return {
            name: part.counts(labels_of(splits, division.origin[name]), data.classes)
            for name, part in division.parts.items()
        }

    @property
    def _tests_apart(self) -> bool:
        """Whether the test split is for tests only: then all of it is the global test."""
        return isinstance(self.held_out, Mirrored) and self.held_out.source == "train"

    def _divided(self, data: datasets.Dataset, seed: int) -> tuple[Splits, Division]:
        splits = splits_of(data, self.portion, seed)
        asked = (self.partition, self.held_out, splits["train"], splits["test"])
        return splits, divide(*asked, data.classes, seed)

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
