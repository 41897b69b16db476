"""What 003 claims of clusters found with exploration, and of a mixture over all of them.

`papers/compared.csv` has what is compared.
"""

from typing import Any

import pandas as pd

from companion.claims import Claim
from papers.adaptive import analysis
from papers.adaptive.analysis import at_most, scores
from papers.adaptive.experiments import BEST, MOE, REDRAWN, STOPPED
from papers.judging import asked, by, compared, floor_claims, judged, scored


def _compared(of: str, table: pd.DataFrame, *, place: Any = None, **words: Any) -> list[Claim]:
    """Test what is said of a table, at a ``place`` if sides name no other one."""
    at = {what: by(table, what, **(place or {})) for what in ("value", "spread")}
    return compared("003", asked("003", of), at, **words)


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of Table 2 and Fig. 3 to 5, at the largest J and most exploration."""
    ends = table["J"].max(), table["eps"].max(), *table["p"].agg(["min", "max"])
    most, eps, low, high = map(float, ends)
    at, place = by(table, J=most, eps=eps), {"J": most, "eps": eps}
    words: dict[str, Any] = {"low": low, "high": high, "most": most, **analysis.conclusion()}
    fewer = [
        ("fewer", at(MOE, J=j), "~", at(MOE, p=there), {"j": j})
        for j in sorted(table.loc[table["J"].between(1, most, inclusive="neither"), "J"].unique())
        for there in [table.loc[table["J"].eq(j), "p"].tolist()]  # where it was run
    ]
    return [
        *_compared("rivals", at_most(table, "J", "eps"), said="beats"),
        *_compared("Table 2", table, place=place, **words),
        *judged("003", fewer, most=most),
        *_compared("gates", table, place=place, **words),
        *floor_claims(at_most(table, "J", "eps"), "p"),
    ]


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters find the true orientations, and what mixtures over them are worth."""
    found, table = analysis.recovery(frame), scores(frame)
    table, eps = table[table["method"] != REDRAWN], float(found["eps"].max())
    claims = []
    for k in sorted(found["orientations"].unique()):
        turned = at_most(table[table["orientations"] == k], "J")
        here = at_most(table[table["orientations"] == k], "J", "eps")
        claims += _compared("orientations", found[found["orientations"] == k], eps=eps, k=k)
        claims += _exploring(turned, "turned", k=k)
        claims += _compared("rivals", here, said="beats.turned", k=k)
        claims += floor_claims(here, ending=f", {k:g} orientations")
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of its second data set, clients that are writers (Fig. 6b)."""
    every, table = scores(frame), at_most(scores(frame), "J")
    most, eps = at_most(table, "eps"), float(table["eps"].max())
    return [
        *_compared("rivals", most, said="beats.writers"),
        *_compared("writers", table, eps=eps),
        *_exploring(table, "writers"),
        *_compared("a single cluster", every, j=float(table["J"].max()), eps=eps),
        *floor_claims(most, ending=", writers"),
    ]


def _exploring(table: pd.DataFrame, where: str, **words: float) -> list[Claim]:
    """Test what exploration is worth to the mixture and to the clusters that it mixes.

    And whether the mixture beats clusters that exploration has not touched.
    """
    return _compared("exploring", table, where=where, eps=float(table["eps"].max()), **words)


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what the released protocol is worth (docs/READINGS.md, A29)."""
    first = analysis.FIRST
    table = analysis.clients(frame)
    return _compared("as released", table, first=first, evaluated=range(first))


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test on what 003's claims hang that it does not name: how many clients a round has."""
    table = analysis.participation(frame)
    cohorts, eps = sorted(table["cohort"].unique()), float(table["eps"].max())
    words = {"low": cohorts[0], "high": cohorts[-1], "eps": eps}
    claims = _compared("participation", table, **words)
    for cohort in cohorts:
        claims += _compared("a cohort", table, cohort=cohort, **words)
    return claims


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what taking converged clusters out of what is sent saves, and what it costs."""
    most = at_most(frame, "eps")
    sent = most[most["metric"] == "bytes_down"]
    former, explored = (scored(sent, method=method) for method in (STOPPED, BEST))
    saved = ("stopped", {s: former[s] / explored[s] for s in former}, "<", 1.0)
    return [*judged("003", [saved]), *_compared("options", analysis.clients(most))]
