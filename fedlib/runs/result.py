"""What a finished run is worth: its metrics, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedlib.runs.spec import Experiment


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its experiment, tidy metrics and provenance.

    ``metrics`` has the columns round, metric, client, expert, item and value (``log.SCHEMA``);
    ``metrics.to_pandas()`` and ``polars.from_arrow(metrics)`` make frames of it.
    """

    experiment: Experiment
    metrics: pa.Table
    provenance: dict[str, Any]

    def select(self, metric: str) -> pa.Table:
        """Return the rows of one metric."""
        return self.metrics.filter(pc.field("metric") == metric)

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric by round, averaged over all else that it has: clients, experts, items."""
        return curve(self.metrics, metric)


def curve(metrics: pa.Table, metric: str) -> dict[int, float]:
    """Return a metric of a run by round, averaged over all else; nan where no value is a number."""
    rows = metrics.filter(pc.field("metric") == metric)
    means = rows.group_by("round").aggregate([("value", "mean")]).sort_by("round")
    return dict(
        zip(means["round"].to_pylist(), means["value_mean"].to_numpy().tolist(), strict=True)
    )
