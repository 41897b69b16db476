"""What 003 claims of clusters found with exploration, and of a mixture over all of them."""

from functools import partial

import pandas as pd

from companion.claims import Claim
from papers.adaptive import analysis, experiments
from papers.adaptive.analysis import at_most, scores
from papers.adaptive.experiments import ALL_EQUAL, BEST, EAGER, MOE, REDRAWN
from papers.judging import by, floor_claims, judged, scored
from papers.scaled import FEDAVG, LOCAL, TUNED

RIVALS = {
    BEST: "the best cluster",
    ALL_EQUAL: "the ensemble",
    TUNED: "the fine-tuned best cluster",
    LOCAL: "training alone",
}
RECOVERED = 0.9  # an adjusted Rand index above which clusters count as found


def _beats(table: pd.DataFrame, said: str = "beats", **words: float) -> list[Claim]:
    at = by(table)
    rows = [(said, at(MOE), ">", at(method), {"name": name}) for method, name in RIVALS.items()]
    return judged("003", rows, **words)


def adaptive_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of Table 2 and Fig. 3 to 5, at the largest J and most exploration."""
    most, eps, low, high = (
        float(x) for x in (table["J"].max(), table["eps"].max(), *table["p"].agg(["min", "max"]))
    )
    at, spread = (by(table, column, J=most, eps=eps) for column in ("value", "spread"))
    fewer = [
        ("fewer", at(MOE, J=j), "~", at(MOE, p=there), {"j": j})
        for j in sorted(table.loc[table["J"].between(1, most, inclusive="neither"), "J"].unique())
        for there in [table.loc[table["J"].eq(j), "p"].tolist()]  # where it was run
    ]
    rows = (
        ("explored", at(MOE), ">", at(MOE, eps=0.0)),
        ("worse", at(BEST, p=high, eps=0.0), ">", at(BEST, p=high)),
        ("alike", spread(MOE, p=low, eps=0.0), ">", spread(MOE, p=low)),
        ("ifca", at(MOE, p=high), ">", at(BEST, p=high, eps=0.0)),
        ("local", at(MOE, p=high), ">", at(LOCAL, p=high)),
        ("spread", spread(BEST, p=high, eps=0.0), ">", spread(MOE, p=high)),
        ("apart", spread(MOE, p=high), ">", spread(LOCAL, p=high)),
        *fewer,
        ("still", at(ALL_EQUAL), "~", at(MOE)),
        ("eager", at(EAGER), ">", at(MOE)),
    )
    return [
        *_beats(at_most(table, "J", "eps")),
        *judged("003", rows, low=low, high=high, most=most, **analysis.conclusion()),
        *floor_claims(at_most(table, "J", "eps"), "p"),
    ]


def recovery_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test whether clusters find the true orientations, and what mixtures over them are worth."""
    found, table = analysis.recovery(frame), scores(frame)
    table, eps = table[table["method"] != REDRAWN], float(found["eps"].max())
    claims = []
    for k in sorted(found["orientations"].unique()):
        at, ending = by(found, orientations=k), f", {k:g} orientations"
        here = at_most(table[table["orientations"] == k], "J", "eps")
        rows = (
            (f"greedy.{k:g}", at(BEST, eps=0.0), ">", RECOVERED),
            ("exploring", at(BEST, eps=eps), ">", RECOVERED),
            ("recovers", at(BEST, eps=eps), ">", at(BEST, eps=0.0), {"unit": ""}),
        )
        claims += judged("003", rows, k=k)
        claims += _exploring(at_most(table[table["orientations"] == k], "J"), "turned", k=k)
        claims += [*_beats(here, "beats.turned", k=k), *floor_claims(here, ending=ending)]
    return claims


def writer_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what 003 says of its second data set, clients that are writers (Fig. 6b)."""
    table = at_most(scores(frame), "J")
    spread, most, ending = by(table, "spread"), at_most(table, "eps"), ", writers"
    sides = spread(MOE, eps=0.0), ">", spread(MOE, eps=float(table["eps"].max()))
    alike = judged("003", [("writers", *sides)])
    every, eps, j = by(scores(frame)), float(table["eps"].max()), float(table["J"].max())
    single = judged(
        "003",
        (
            ("single.writers", every(MOE, J=j, eps=eps), ">", every(TUNED, J=1.0)),
            ("gated.writers", every(MOE, J=j, eps=eps), ">", every(MOE, J=1.0)),
        ),
    )
    beats = [*_beats(most, "beats.writers"), *alike, *_exploring(table, "writers"), *single]
    return [*beats, *floor_claims(most, ending=ending)]


def _exploring(table: pd.DataFrame, where: str, **words: float) -> list[Claim]:
    """Test what exploration is worth to the mixture and to the clusters that it mixes.

    And whether the mixture beats clusters that exploration has not touched.
    """
    explored, plain = by(table, eps=float(table["eps"].max())), by(table, eps=0.0)
    rows = (
        (f"explored.{where}", explored(MOE), ">", plain(MOE)),
        (f"cluster.{where}", explored(BEST), ">", plain(BEST)),
        (f"plain.{where}", explored(MOE), ">", plain(BEST)),
    )
    return judged("003", rows, **words)


def protocol_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what the released protocol is worth (docs/READINGS.md, A29)."""
    at, first = by(analysis.clients(frame)), analysis.FIRST
    peeking, released = experiments.PEEKING, experiments.ALL_RELEASED
    rows = (
        ("peeking", at(peeking), ">", at(MOE)),
        ("released", at(released, client=range(first)), ">", at(MOE)),
    )
    return judged("003", rows, first=first)


def participation_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test on what 003's claims hang that it does not name: how many clients a round has."""
    table = analysis.participation(frame)
    at, cohorts, eps = by(table), sorted(table["cohort"].unique()), float(table["eps"].max())
    low, high = cohorts[0], cohorts[-1]
    rows = (
        ("many", at(BEST, cohort=high, eps=0.0), ">", at(BEST, cohort=low, eps=0.0)),
        ("one", at(FEDAVG, cohort=low, eps=0.0), ">", at(BEST, cohort=low, eps=0.0)),
        *(
            ("taking", at(MOE, cohort=c, eps=eps), ">", at(MOE, cohort=c, eps=0.0), {"cohort": c})
            for c in cohorts
        ),
    )
    return judged("003", rows, low=low, high=high)


def option_claims(frame: pd.DataFrame) -> list[Claim]:
    """Test what taking converged clusters out of what is sent saves, and what it costs."""
    most, stopped = at_most(frame, "eps"), experiments.STOPPED
    sent, at = partial(scored, most[most["metric"] == "bytes_down"]), by(analysis.clients(most))
    former, explored = sent(method=stopped), sent(method=BEST)
    rows = (
        ("stopped", {s: former[s] / explored[s] for s in former}, "<", 1.0),
        ("cost", at(stopped), "~", at(BEST)),
    )
    return judged("003", rows)
