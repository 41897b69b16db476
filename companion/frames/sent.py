"""What runs have sent, and how far they had come by then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from companion.frames.runs import curve
from companion.frames.seeds import run_columns


def gigabytes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what a run has sent so far, down and up, by method, seed and round (GB: 1e9 bytes).

    All clients of all rounds' cohorts are counted; round 0 has sent nothing. Columns method, seed,
    round, gigabytes.
    """
    rows = frame[frame["metric"].isin(["bytes_down", "bytes_up"])]
    run = run_columns(rows)
    sent = rows.groupby([*run, "round"], as_index=False, sort=False, dropna=False)["value"].sum()
    nothing = sent[run].drop_duplicates().assign(round=0, value=0.0)
    sent = pd.concat([nothing, sent], ignore_index=True).sort_values([*run, "round"])
    total = sent.groupby(run, dropna=False)["value"].cumsum() / 1e9
    return sent.drop(columns="value").assign(gigabytes=total).reset_index(drop=True)


def against_traffic(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric's curve with the gigabytes that were sent up to each of its rounds.

    Columns method, seed, round, value, gigabytes.
    """
    return curve(frame, metric).merge(gigabytes(frame), on=[*run_columns(frame), "round"])


def at_traffic(course: pd.DataFrame, method: str, budget: Mapping[int, float]) -> dict[int, float]:
    """Return a method's value by seed when it had sent the seed's ``budget`` in gigabytes.

    ``course`` is one of ``against_traffic``; between two evaluations the value is interpolated. A
    seed whose run has sent less than its budget, or that has none, is left out.
    """
    rows = course[course["method"] == method].sort_values("gigabytes")
    found = {}
    for seed in rows["seed"].unique().tolist():
        run = rows[rows["seed"] == seed]
        most = budget.get(seed, np.inf)
        if most <= run["gigabytes"].iloc[-1]:
            found[seed] = float(np.interp(most, run["gigabytes"], run["value"]))
    return found


def traffic(frame: pd.DataFrame) -> pd.DataFrame:
    """Return megabytes per round, down and up, and in all, by method (mean over runs)."""
    rows = frame[frame["metric"].isin(["bytes_down", "bytes_up"])]
    per_run = rows.groupby(["method", "seed", "metric"], sort=False)["value"]
    out = (per_run.mean() / 1e6).groupby(["method", "metric"], sort=False).mean().unstack()
    total = per_run.sum().groupby(["method", "seed"], sort=False).sum().groupby("method").mean()
    out["total"] = total / 1e6
    names = {"bytes_down": "MB down per round", "bytes_up": "MB up per round", "total": "MB in all"}
    return out.rename(columns=names).rename_axis(columns=None).round(2)
