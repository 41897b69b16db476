"""What a finished run is worth: its metrics, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedlib.runs.spec import Experiment


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its experiment, tidy metrics and provenance."""

    experiment: Experiment
    metrics: pd.DataFrame
    provenance: dict[str, Any]

    def select(self, metric: str) -> pd.DataFrame:
        """Return the rows of one metric."""
        return self.metrics[self.metrics["metric"] == metric]
