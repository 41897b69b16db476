"""Tidy metrics: one row per round x metric x client x expert x item."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from fedlib.engine import Report, Scores
from fedlib.metrics import divergences

SCHEMA = pa.schema(
    {
        "round": pa.int32(),
        "metric": pa.string(),
        "client": pa.int32(),
        "expert": pa.int16(),
        "item": pa.string(),
        "value": pa.float64(),  # null where it is not a number
    }
)
COLUMNS = tuple(SCHEMA.names)
NONE = -1  # client or expert of a row that belongs to no client or expert


def tidy(table: pa.Table) -> pa.Table:
    """Return a table with the types of ``SCHEMA``; ValueError unless it is a run's metrics.

    Files of other writers may have wider types, or words as dictionaries.
    """
    if tuple(table.column_names) != COLUMNS:
        raise ValueError(f"it has other columns: {', '.join(table.column_names)}")
    for field in SCHEMA:
        held = table[field.name].type
        held = held.value_type if pa.types.is_dictionary(held) else held
        kinds = (pa.types.is_integer, pa.types.is_floating)
        if any(kind(held) != kind(field.type) for kind in kinds):
            raise ValueError(f"its column {field.name} holds {held}")
        if field.name != "value" and table[field.name].null_count:
            raise ValueError(f"its column {field.name} has rows that hold nothing")
    return table.cast(SCHEMA)


def curve(metrics: pa.Table, metric: str) -> dict[int, float]:
    """Return a metric of a run by round, averaged over all else; nan where no value is a number."""
    rows = metrics.filter(pc.field("metric") == metric)
    means = rows.group_by("round").aggregate([("value", "mean")]).sort_by("round")
    values = means["value_mean"].to_numpy().tolist()
    return dict(zip(means["round"].to_pylist(), values, strict=True))


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

    def clients(self, round: int, metric: str, ids: Iterable[int], values: Any) -> None:
        """Add one row per client, or one per client and item where ``values`` are a matrix."""
        for i, own in zip(ids, values, strict=True):
            for at, v in enumerate(np.atleast_1d(own)):
                self.add(round, metric, v, client=int(i), item=str(at) if np.ndim(own) else "")

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

    def scores(self, round: int, split: str, ids: np.ndarray, scores: Scores) -> None:
        """Add every client's accuracy and negative log-likelihood on one split."""
        self.clients(round, f"{split}_accuracy", ids, scores.accuracy)
        self.clients(round, f"{split}_nll", ids, scores.nll)
        if scores.gate is not None:
            self.array(round, f"{split}_gate", scores.gate)

    def last_finite(self, *metrics: str) -> dict[str, float]:
        """Return the last finite value of some metrics, the mean over clients where it has them."""
        curves = {m: curve(self.table(), m).values() for m in metrics}
        finite = {m: [v for v in values if math.isfinite(v)] for m, values in curves.items()}
        return {m: values[-1] for m, values in finite.items() if values}

    def table(self, completed: int | None = None) -> pa.Table:
        """Return all rows, or those up to some round."""
        rows = [row for row in self._rows if completed is None or row[0] <= completed]
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        pairs = zip(columns, SCHEMA.types, strict=True)
        return pa.table([pa.array(c, t, from_pandas=True) for c, t in pairs], schema=SCHEMA)
