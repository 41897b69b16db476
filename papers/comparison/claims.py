"""What a reader of all five papers would expect of the table of every method."""

from __future__ import annotations

import pandas as pd

from companion.claims import Claim, below, greater
from papers.comparison.analysis import ALL, OWN, correlations
from papers.comparison.experiments import PROPOSED
from papers.floor import FEDAVG, TUNED, floor_claims, scored, without_floor
from papers.pm_moe import MIXED, NINE, SYNCHRONOUS, TRADITIONAL, UNTUNED


def leaderboard_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what a reader of all five papers would expect of the table."""
    own = table[table["kind"] == OWN]
    beats = "What {} proposes beats {} on own tests (mean of {})"
    trade = "Who does better on own tests does worse on all tests (rank correlation)"
    claims = []
    for paper, methods in PROPOSED.items():
        for rival in (FEDAVG, TUNED):
            sides = scored(own, method=methods), scored(own, method=rival)
            claims.append(greater(beats.format(paper, rival, len(methods)), paper, *sides))
    # What 004 has is judged in its own notebooks, on the same runs.
    elsewhere = own["method"].isin((*TRADITIONAL, *NINE, UNTUNED, SYNCHRONOUS, *MIXED))
    return [
        *claims,
        below(trade, "ours", correlations(without_floor(table), OWN, ALL), 0.0),
        *floor_claims(own[~elsewhere]),
    ]
