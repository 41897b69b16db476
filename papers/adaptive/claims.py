"""The claims of 003 on clusters found with exploration, and on a mixture over all of them.

`papers/compared.csv` lists the comparisons.
"""

from typing import Any

import pandas as pd

from companion.claims import Claim
from papers.adaptive import analysis
from papers.adaptive.analysis import at_most, scores
from papers.adaptive.experiments import BEST, MOE, REDRAWN
from papers.judging import asked, by, compared, floor_claims, judged

TWO = 2  # the number of orientations that IFCA finds according to the paper
ALIKE = (0.2, 0.4)  # p with similar clients, where exploration helps the ensemble most


def _compared(of: str, table: pd.DataFrame, *, place: Any = None, **words: Any) -> list[Claim]:
    """Test the comparisons of a table, at a ``place`` unless sides name another one."""
    at = {what: by(table, what, **(place or {})) for what in ("value", "spread")}
    return compared("003", asked("003", of), at, **words)


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test the claims on Table 2 and Fig. 3, at the largest J and most exploration."""
    ends = table["J"].max(), table["eps"].max(), *table["p"].agg(["min", "max"])
    most, eps, low, high = map(float, ends)
    place, alike = {"J": most, "eps": eps}, [p for p in ALIKE if p in {*table["p"]}]
    words: dict[str, Any] = {"low": low, "high": high, "alike": alike or [low]}
    return [
        *_compared("rivals", table, place=place, said="beats"),
        *_compared("Table 2", table, place=place, **words),
        *cluster_claims(table),
        *_compared("gates", table, place=place, **words),
        *floor_claims(at_most(table, "J", "eps"), "p"),
    ]


def cluster_claims(table: pd.DataFrame) -> list[Claim]:
    """Test Fig. 4: another number of clusters gives the same mixture at the same p."""
    most, eps = float(table["J"].max()), float(table["eps"].max())
    at, rows = by(table, J=most, eps=eps), []
    for j in sorted(table.loc[table["J"].between(1, most, inclusive="neither"), "J"].unique()):
        there = table.loc[table["J"].eq(j), "p"].unique().tolist()  # where it was run
        words = {"part": f"J = {j:g}", "methods": (MOE,)}
        rows.append(("fewer", at(MOE, J=j, p=there), "~", at(MOE, p=there), words))
    return judged("003", rows)


def evenness_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test Fig. 5: exploration spreads clients more evenly over the clusters."""
    share = analysis.largest(analysis.sizes(frame[frame["method"] == BEST]))
    at = by(share[share["J"] == share["J"].max()])
    even = at(BEST, eps=float(share["eps"].max())), "<", at(BEST, eps=0.0), {"unit": ""}
    return judged("003", [("evenly", *even)])


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters recover the orientations, and the mixtures over them."""
    found, table = analysis.recovery(frame), scores(frame)
    table, eps = table[table["method"] != REDRAWN], float(found["eps"].max())
    claims = []
    for k in sorted(found["orientations"].unique()):
        turned = at_most(table[table["orientations"] == k], "J")
        here = at_most(table[table["orientations"] == k], "J", "eps")
        there = found[found["orientations"] == k]
        claims += _compared("orientations", there, eps=eps, k=k)
        if k == TWO:  # the claim is about exploration at a rate of .82, which was not run
            claims += judged("003", [("greedy.2", {}, "<", 0.0)], part="exploring needs more")
        claims += _exploring(turned, "turned", part=f"{k:g} orientations")
        claims += _of_rivals(here, "beats.turned", f", {k:g} orientations")
        claims += floor_claims(here, ending=f", {k:g} orientations")
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test the claims on the second data set, in which clients are writers (Fig. 6b)."""
    every, table = scores(frame), at_most(scores(frame), "J")
    most, eps = at_most(table, "eps"), float(table["eps"].max())
    return [
        *_of_rivals(most, "beats.writers"),
        *_compared("writers", table, eps=eps),
        *_exploring(table, "writers"),
        *_compared("a single cluster", every, j=float(table["J"].max()), eps=eps),
        *floor_claims(most, ending=", writers"),
    ]


def _of_rivals(table: pd.DataFrame, said: str, where: str = "") -> list[Claim]:
    """Test the mixture against its rivals at the most exploration, on other data."""
    at = {"value": by(table)}
    rows = [
        {**r, "words": r["words"] + where} for r in asked("003", "rivals") if "eps=0" not in r["b"]
    ]
    return compared("003", rows, at, said=said)


def _exploring(table: pd.DataFrame, where: str, **words: Any) -> list[Claim]:
    """Test the effect of exploration on the mixture and on the clusters that it mixes.

    The mixture is also compared with clusters without exploration.
    """
    return _compared("exploring", table, where=where, eps=float(table["eps"].max()), **words)


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test the effect of the released protocol (docs/READINGS.md, A29)."""
    first = analysis.FIRST
    table = analysis.clients(frame)
    return _compared("as released", table, first=first, evaluated=range(first))


def joint_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test the effect of training all experts together with the gate (docs/READINGS.md, A28)."""
    table = scores(frame)
    at: dict[str, Any] = {"eps": float(table["eps"].max())}
    every = (dict(at, p=p, part=f"p = {p:g}") for p in sorted(table["p"].unique()))
    return [claim for here in every for claim in _compared("experts trained", table, **here)]


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test how 003's claims depend on the number of clients in a round, which it omits."""
    table = analysis.participation(frame)
    cohorts, eps = sorted(table["cohort"].unique()), float(table["eps"].max())
    words = {"low": cohorts[0], "high": cohorts[-1], "eps": eps}
    claims = _compared("participation", table, **words)
    for cohort in cohorts:
        claims += _compared("a cohort", table, cohort=cohort, **words)
    return claims


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test the cost of not sending converged clusters."""
    return _compared("options", analysis.clients(at_most(frame, "eps")))
