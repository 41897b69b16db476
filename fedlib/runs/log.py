"""Tidy metrics: one row per round x metric x client x expert x item."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from torch import Tensor

from fedlib.engine import Report, Scores
from fedlib.federation import Federation
from fedlib.metrics import divergences

SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32()),
        pa.field("metric", pa.string()),
        pa.field("client", pa.int32()),
        pa.field("expert", pa.int16()),
        pa.field("item", pa.string()),
        pa.field("value", pa.float64()),  # null where it is not a number
    ]
)
COLUMNS = tuple(SCHEMA.names)
NONE = -1  # client or expert of a row that belongs to no client or expert


def tidy(table: pa.Table) -> pa.Table:
    """Return a table with the types of ``SCHEMA``; ValueError unless it is a run's metrics."""
    if tuple(table.column_names) != COLUMNS:
        raise ValueError(f"it has other columns: {', '.join(table.column_names)}")
    for field in SCHEMA:
        held = table[field.name]
        if _kind(held.type) != _kind(field.type):
            raise ValueError(f"its column {field.name} holds {held.type}")
        if held.null_count and field.name != "value":
            raise ValueError(f"its column {field.name} holds nothing in {held.null_count} rows")
    return table.cast(SCHEMA)


def _kind(type: pa.DataType) -> str:
    """Return what a column holds: files of other writers have wider types, or dictionaries."""
    type = type.value_type if pa.types.is_dictionary(type) else type
    if pa.types.is_integer(type):
        return "whole numbers"
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return "words"
    return "numbers" if pa.types.is_floating(type) else str(type)


class Log:
    """Rows of a run's metrics, with the columns ``COLUMNS``.

    ``round`` counts completed rounds: 0 is the initial state.
    """

    def __init__(self, table: pa.Table | None = None) -> None:
        self._rows: list[tuple[int, str, int, int, str, float]] = []
        if table is not None:
            columns = [table[name].to_pylist() for name in COLUMNS[:-1]]
            values = table["value"].to_numpy().tolist()  # a null is nan again
            self._rows = list(zip(*columns, values, strict=True))

    def add(
        self,
        round: int,
        metric: str,
        value: float,
        client: int = NONE,
        expert: int = NONE,
        item: str = "",
    ) -> None:
        """Add one row."""
        self._rows.append((round, metric, client, expert, item, float(value)))

    def array(self, round: int, metric: str, values: Tensor | np.ndarray, item: str = "") -> None:
        """Add a scalar, a vector over experts, or a matrix (item, expert)."""
        a = np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype=float)
        if a.ndim == 2:
            for i, row in enumerate(a):
                self.array(round, metric, row, str(i))
        else:
            for k, v in enumerate(np.atleast_1d(a)):
                self.add(round, metric, v, expert=k if a.ndim else NONE, item=item)

    def clients(self, round: int, metric: str, ids: Iterable[int], values: np.ndarray) -> None:
        """Add one row per client."""
        for i, v in zip(ids, values, strict=True):
            self.add(round, metric, v, client=int(i))

    def report(self, round: int, report: Report, ids: np.ndarray) -> float:
        """Add what a round said of itself: loss, bytes, every tensor's divergence, and accuracies.

        ``adapted_*`` are those of the cohort with the leaves that it has just trained. Returns the
        mean training loss.
        """
        loss = float(report.losses.double().mean())
        self.add(round, "train_loss", loss)
        self.add(round, "bytes_down", int(report.down.sum()))
        self.add(round, "bytes_up", int(report.up.sum()))
        for name, gd in sorted(divergences(report.messages, report.weights).items()):
            self.array(round, "divergence", gd, name)
        for split, accuracy in report.adapted.items():
            self.clients(round, f"adapted_{split}_accuracy", ids[report.rows], accuracy.numpy())
        return loss

    def leaks(self, round: int, ids: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Add what an audit found: label shares by client and class, ``[S, classes]`` each."""
        for metric, shares in found.items():
            for i, row in zip(ids, shares, strict=True):
                for label, share in enumerate(row):
                    self.add(round, metric, share, client=int(i), item=str(label))

    def scores(self, round: int, split: str, ids: np.ndarray, scores: Scores) -> None:
        """Add every client's accuracy and negative log-likelihood on one split."""
        self.clients(round, f"{split}_accuracy", ids, scores.accuracy)
        self.clients(round, f"{split}_nll", ids, scores.nll)
        if scores.gate is not None:
            self.array(round, f"{split}_gate", scores.gate)

    def sizes(self, fed: Federation) -> None:
        """Add the training examples of every client, and those of them that take part, once.

        The latter only where some opted out.
        """
        home, inside = fed.at_home(), fed.taking_part()
        self.clients(0, "examples", fed.ids, home.train.sizes)
        if inside is not home:
            self.clients(0, "opted_in", fed.ids, inside.train.sizes)

    def ledger(self, round: int, report: Report, ids: np.ndarray) -> None:
        """Add the bytes that every client of a round received and sent."""
        for metric, sent in (("client_bytes_down", report.down), ("client_bytes_up", report.up)):
            self.clients(round, metric, ids[report.rows], sent.cpu().numpy())

    def last_finite(self, *metrics: str) -> dict[str, float]:
        """Return the last finite value of some metrics, the mean over clients where it has them."""
        found: dict[str, tuple[int, list[float]]] = {}
        for round, metric, _, _, _, value in self._rows:
            if metric in metrics and math.isfinite(value):
                at, values = found.get(metric, (-1, []))
                found[metric] = (round, [*values, value] if at == round else [value])
        return {m: sum(found[m][1]) / len(found[m][1]) for m in metrics if m in found}

    def table(self, completed: int | None = None) -> pa.Table:
        """Return all rows, or those up to some round."""
        rows = [row for row in self._rows if completed is None or row[0] <= completed]
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        pairs = zip(columns, SCHEMA.types, strict=True)
        return pa.table([pa.array(c, t, from_pandas=True) for c, t in pairs], schema=SCHEMA)
