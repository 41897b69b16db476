"""Tidy metrics: one row per round x metric x client x expert x item."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_integer_dtype, is_string_dtype
from torch import Tensor

from fedlib.engine import Report, Scores
from fedlib.federation import Federation
from fedlib.metrics import divergences

COLUMNS = ("round", "metric", "client", "expert", "item", "value")
_KINDS = {
    "round": is_integer_dtype,
    "metric": is_string_dtype,
    "client": is_integer_dtype,
    "expert": is_integer_dtype,
    "item": is_string_dtype,
    "value": is_float_dtype,
}
NONE = -1  # client or expert of a row that belongs to no client or expert


def require_tidy(frame: pd.DataFrame) -> None:
    """ValueError unless a frame has the columns of a run's metrics, each of its kind."""
    names = tuple(map(str, frame.columns))
    if names != COLUMNS:
        raise ValueError(f"it has other columns: {', '.join(names)}")
    for name in COLUMNS:
        if not _KINDS[name](frame[name]):
            raise ValueError(f"its column {name} holds {frame[name].dtype}")


class Log:
    """Rows of a run's metrics, with the columns ``COLUMNS``.

    ``round`` counts completed rounds: 0 is the initial state.
    """

    def __init__(self, frame: pd.DataFrame | None = None) -> None:
        self._rows: list[tuple[int, str, int, int, str, float]] = []
        if frame is not None:
            self._rows = list(frame.itertuples(index=False, name=None))

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

    def frame(self, completed: int | None = None) -> pd.DataFrame:
        """Return all rows, or those up to some round."""
        rows = self._rows
        if completed is not None:
            rows = [row for row in rows if row[0] <= completed]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        kinds = {"round": "int32", "client": "int32", "expert": "int16", "value": "float64"}
        return frame.astype(kinds)
