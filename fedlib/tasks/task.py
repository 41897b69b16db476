"""A task: data set, partition and model as one seeded object that the papers share."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import torch

from fedlib import data as datasets
from fedlib.data import Dataset, Split
from fedlib.federation import OPTED_IN, Federation, Table
from fedlib.models import Family, Net
from fedlib.partition import Division, Mirrored, OptOut, Own, Request, balanced, divide, holdout
from fedlib.tasks.seen import CropFlip, view
from fedlib.values import one_of, value


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """Return a device that exists: "auto" is CUDA where there is one, else the CPU.

    RuntimeError for a CUDA device that is not there, ValueError for an unknown kind.
    """
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    one_of("device", kind, ("auto", "cpu", "cuda"))
    if number and not number.isdigit():
        raise ValueError(f"device {name!r}: the number must be a whole number, e.g. 'cuda:0'")
    there = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= there:
        raise RuntimeError(f"device {name!r} is not there: this machine has {there} CUDA devices")
    return torch.device(name)


class _Examples:
    """A share of a data set's examples, class by class, as arrays and on a device."""

    def __init__(self, data: Dataset, portion: float, seed: int) -> None:
        self.data = data
        self.splits = {
            name: _some(split, portion, seed)
            for name, split in (("train", data.train), ("test", data.test))
        }

    def parts(self, origin: str) -> list[Split]:
        """What a part points at: a split, or "merged", both; see ``Division.origin``."""
        return list(self.splits.values()) if origin == "merged" else [self.splits[origin]]

    def labels(self, origin: str) -> np.ndarray:
        """The labels ``[N]`` that a part points at."""
        return np.concatenate([part.labels for part in self.parts(origin)])

    def tables(
        self, division: Division, request: Request, seen: set[str], seed: int, device: torch.device
    ) -> dict[str, Table]:
        """Return the tables of a division's parts; parts of one origin share its examples.

        Those with side information, and those in ``seen``, have examples of their own: each that
        they hold as a client sees it.
        """
        pools = {o: self._pool(o, device) for o in set(division.origin.values())}
        # Scale and shift of every value of an image; text has none.
        mean, std = (
            np.tile(v, math.prod(self.data.shape[:-1])) for v in (self.data.mean, self.data.std)
        )
        look = [torch.tensor(v, dtype=torch.float32) for v in (1 / (255 * std), -mean / std)]
        tables = {}
        for name, part in division.parts.items():
            pool = pools[division.origin[name]]
            if part.side or name in seen:
                pool, part = view(request, pool, part, seed, self.data.classes)
            index = torch.tensor(part.index, device=device)
            side = {n: torch.tensor(v, device=device) for n, v in part.side.items()}
            scale, shift = (v.to(device) for v in look)
            tables[name] = Table(*pool, index, np.array(part.sizes), scale, shift, side)
        return tables

    def _pool(self, origin: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        arrays = [part.features for part in self.parts(origin)]
        with warnings.catch_warnings():
            # On the array's own memory, which processes share if it is a mapped file.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            x = torch.from_numpy(
                np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])
            )
        return x.to(device), torch.tensor(self.labels(origin), device=device)


def _some(split: Split, portion: float, seed: int) -> Split:
    leave = len(split) - math.ceil(portion * len(split))
    if not leave:
        return split
    rows, _ = holdout(split.labels, leave, seed)
    columns = {name: values[rows] for name, values in split.columns.items()}
    return Split(split.features[rows], split.labels[rows], columns)


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
        where = pick_device(device)
        held, division = self._divided(seed)
        data, seen = held.data, set() if self._tests_apart else {"test"}
        tables = held.tables(division, self.partition, seen, seed, where)
        train = tables["train"]
        train.augment = self.augment if len(data.shape) == 3 else None
        if self.opt_out is not None:
            labels = held.labels(division.origin["train"])
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
            balanced=self._balanced(held, tables, seed),
            kinds=self.partition.kinds(),
            class_names=data.class_names,
            source=f"{data.source}, {data.fingerprint[:12]}",
        )

    def divide(self, seed: int) -> Division:
        """Return who trains, validates and tests on what, without looking at an example."""
        return self._divided(seed)[1]

    def counts(self, seed: int) -> dict[str, np.ndarray]:
        """Return each client's class counts in every part, int64 ``[clients, classes]`` each."""
        held, division = self._divided(seed)
        return {
            name: part.counts(held.labels(division.origin[name]), held.data.classes)
            for name, part in division.parts.items()
        }

    @property
    def _tests_apart(self) -> bool:
        """Whether the test split is for tests only: then all of it is the global test."""
        return isinstance(self.held_out, Mirrored) and self.held_out.source == "train"

    def _divided(self, seed: int) -> tuple[_Examples, Division]:
        held = _Examples(datasets.load(self.dataset), self.portion, seed)
        asked = (self.partition, self.held_out, held.splits["train"], held.splits["test"])
        return held, divide(*asked, held.data.classes, seed)

    def _balanced(self, held: _Examples, tables: dict[str, Table], seed: int) -> Table | None:
        """Return the set that all clients share, a table with the same row for each."""
        if not self.balanced:
            return None
        table = tables[self.balanced_on]
        if table.side:
            raise ValueError(f"clients of {self.partition} see an example in different ways")
        if self.balanced_on == "test":
            chosen = balanced(held.labels("test"), self.balanced, seed)
        else:
            assert isinstance(self.held_out, Mirrored)
            labels = held.labels("train")
            _, apart = holdout(labels, self.held_out.pool, seed)
            chosen = apart[balanced(labels[apart], self.balanced, seed)]
        clients = len(table.sizes)
        index = torch.tensor(chosen, device=table.index.device).expand(clients, -1)
        return replace(table, index=index, sizes=np.full(clients, len(chosen)), side={})
