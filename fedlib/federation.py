"""A federation in memory: every client's examples on one device, as index tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedlib.models import Net


@dataclass(eq=False)
class Table:
    """Who holds which example of one split (train, validation or test).

    ``x`` is uint8 ``[N, height, width, channels]`` and ``y`` int64 ``[N]``, shared by all clients;
    ``index`` is int64 ``[clients, width]`` into them, of which the first ``sizes[i]`` entries of
    row i count. ``side`` holds per-example side information, int64 ``[clients, width]`` each.
    ``scale`` and ``shift`` (``[channels]``) turn pixels into normalised floats.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    sizes: np.ndarray
    scale: Tensor
    shift: Tensor
    side: dict[str, Tensor] = field(default_factory=dict)

    def batch(self, rows: Tensor, positions: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return what some clients see: ``x [clients, B, C, H, W]``, ``y`` and ``weight``.

        ``rows`` are client rows ``[clients]``, ``positions`` their places in the table
        ``[clients, B]``; a ``weight`` of 0 marks padding.
        """
        picked = rows[:, None], positions
        examples = self.index[picked].clamp(min=0)
        extra = {name: column[picked] for name, column in self.side.items()}
        return {"x": self.pixels(examples), "y": self.y[examples], "weight": weight, **extra}

    def pixels(self, examples: Tensor) -> Tensor:
        """Return normalised images ``[..., C, H, W]`` of example numbers ``[...]``.

        Pixels are stored channels-last and only viewed the other way, the layout in which
        convolutions run fastest on a CPU.
        """
        x = self.x[examples].to(torch.float32)
        return x.mul_(self.scale).add_(self.shift).movedim(-1, -3)

    def counts(self, classes: int) -> Tensor:
        """Return how often each client holds each label, int64 ``[clients, classes]``."""
        return _count(self.y[self.index.clamp(min=0)], self.sizes, classes)


@dataclass(eq=False)
class Federation:
    """Clients, their data and the model they train: all that an algorithm may ask about.

    ``ids`` names the client behind every row; random draws follow the id, not the row.
    """

    net: Net
    classes: int
    device: torch.device
    train: Table
    validation: Table
    test: Table
    ids: np.ndarray
    class_names: tuple[str, ...] = ()
    source: str = ""
    _shares: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def clients(self) -> int:
        """The population M."""
        return len(self.ids)

    @property
    def sizes(self) -> Tensor:
        """Training examples per client N_s, float64 ``[clients]``."""
        return torch.as_tensor(self.train.sizes, dtype=torch.float64, device=self.device)

    def values(self, condition: str) -> int:
        """Return how many values the label, or a named side information, can take."""
        if condition == "label":
            return self.classes
        return int(self._side(condition).max()) + 1

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s) over a client's training examples, float32 ``[clients, values]``.

        For the condition "label" that is p(y|s).
        """
        if condition not in self._shares:
            counts = self._counts(condition)
            self._shares[condition] = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return self._shares[condition]

    def _counts(self, condition: str) -> Tensor:
        if condition == "label":
            return self.train.counts(self.classes)
        return _count(self._side(condition), self.train.sizes, self.values(condition))

    def to(self, device: str | torch.device) -> Federation:
        """Return the same federation on another device."""
        return replace(
            self,
            train=_moved(self.train, device),
            validation=_moved(self.validation, device),
            test=_moved(self.test, device),
            device=torch.device(device),
            _shares={},
        )

    def permuted(self, order: np.ndarray) -> Federation:
        """Return the same federation with its rows in another order; ids move with the rows."""
        return replace(
            self,
            train=_permuted(self.train, order),
            validation=_permuted(self.validation, order),
            test=_permuted(self.test, order),
            ids=self.ids[order],
            _shares={},
        )

    def _side(self, condition: str) -> Tensor:
        if condition not in self.train.side:
            known = ["label", *self.train.side]
            raise ValueError(f"no side information {condition!r}; allowed: {', '.join(known)}")
        return self.train.side[condition]


def _count(values: Tensor, sizes: np.ndarray, kinds: int) -> Tensor:
    real = torch.arange(values.shape[1], device=values.device) < torch.as_tensor(
        sizes, device=values.device
    ).unsqueeze(1)
    out = torch.zeros(len(values), kinds, dtype=torch.int64, device=values.device)
    return out.scatter_add_(1, torch.where(real, values, 0), real.to(torch.int64))


def _permuted(table: Table, order: np.ndarray) -> Table:
    rows = torch.as_tensor(order, device=table.index.device)
    side = {n: t[rows] for n, t in table.side.items()}
    return Table(
        table.x, table.y, table.index[rows], table.sizes[order], table.scale, table.shift, side
    )


def _moved(table: Table, device: str | torch.device) -> Table:
    side = {n: t.to(device) for n, t in table.side.items()}
    x, y, index = table.x.to(device), table.y.to(device), table.index.to(device)
    return Table(x, y, index, table.sizes, table.scale.to(device), table.shift.to(device), side)
