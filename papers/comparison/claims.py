"""What a reader of all five papers would expect of the table of every method."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import Claim, below, greater
from papers.comparison.analysis import ALL, OWN, correlations
from papers.comparison.experiments import PROPOSED
from papers.floor import FEDAVG, TUNED, floor_claims, without_floor
from papers.pm_moe import MIXED, NINE, SYNCHRONOUS, TRADITIONAL, UNTUNED


def leaderboard_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what a reader of all five papers would expect of the table."""

    def mean_of(methods: tuple[str, ...], kind: str = OWN) -> dict[int, float]:
        return frames.by_seed(table[table["method"].isin(methods) & table["kind"].eq(kind)])

    # What 004 has is judged in its own notebooks, on the same runs.
    elsewhere = table["method"].isin((*TRADITIONAL, *NINE, UNTUNED, SYNCHRONOUS, *MIXED))
    claims = []
    for paper, methods in PROPOSED.items():
        for rival in (FEDAVG, TUNED):
            text = f"What {paper} proposes beats {rival} on own tests (mean of {len(methods)})"
            claims.append(greater(text, paper, mean_of(methods), mean_of((rival,))))
    return [
        *claims,
        below(
            "Who does better on own tests does worse on all tests (rank correlation)",
            "ours",
            correlations(without_floor(table), OWN, ALL),
            0.0,
        ),
        *floor_claims(table[table["kind"].eq(OWN) & ~elsewhere]),
    ]
