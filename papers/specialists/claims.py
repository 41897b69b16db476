"""What 001 and 002 claim, tested on runs."""

import pandas as pd

from companion.claims import Claim
from papers.judging import by, floor_claims, judged
from papers.scaled import FEDAVG, LOCAL, MAJORITY, TUNED
from papers.specialists.analysis import GLOBAL, HELD, OWN, at_q, of_figure
from papers.specialists.experiments import MIXTURE, SMALL


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what sec. 5 of 001 says of Table 1 and Fig. 3 and 4, without opting out."""
    general, own = by(table, metric=GLOBAL), by(table, metric=OWN)
    ps = sorted(table["p"].unique())
    skewed, mild, low, high = [p for p in ps if p >= 0.6], [p for p in ps if p < 1], ps[0], ps[-1]
    rows = (
        ("global", general(MIXTURE), ">", general(TUNED)),
        ("par", own(MIXTURE), "~", own(TUNED)),
        ("fedavg", general(FEDAVG), ">", general(MIXTURE)),
        ("home", own(MIXTURE, p=skewed), ">", own(FEDAVG, p=skewed)),
        ("alone", own(MIXTURE), ">", own(LOCAL)),
        ("worse", own(FEDAVG, p=low), ">", own(FEDAVG, p=high)),
        ("better", own(LOCAL, p=high), ">", own(LOCAL, p=low)),
        ("mild", general(MIXTURE, p=mild), ">", general(TUNED, p=mild)),
        ("apart", general(MIXTURE, p=high), ">", general(TUNED, p=high)),
    )
    floors = floor_claims(table[table["metric"] == OWN], "p")
    return judged("001", rows, low=low, high=high) + floors


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 5: as with majority classes, so with Dirichlet shares."""
    general = by(table, metric=GLOBAL)
    better = judged("001", [("alpha", general(MIXTURE), ">", general(TUNED))])
    return better + floor_claims(table[table["metric"] == OWN], "alpha")


def architecture_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of experts: any differentiable ones will do."""
    small = table[table["method"].isin([SMALL, MAJORITY]) & table["metric"].eq(OWN)]
    kinds = {"local": by(table, metric=OWN), "global": by(table, metric=GLOBAL)}
    rows = [("small", at(SMALL), ">", at(FEDAVG), {"where": kind}) for kind, at in kinds.items()]
    return judged("001", rows) + floor_claims(small)


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 6, where most clients opted out."""
    general, own = by(table, metric=GLOBAL), by(table, metric=OWN)
    most, low, claims = float(table["q"].max()), float(table["p"].min()), []
    for q in of_figure(table):
        rows = (
            ("q.global", general(MIXTURE, q=q), ">", general(TUNED, q=q)),
            ("q.par", own(MIXTURE, q=q), "~", own(TUNED, q=q)),
        )
        claims += judged("001", rows, q=q)
    iid = [
        ("q.iid", at(MIXTURE, p=low, q=most), ">", at(FEDAVG, p=low, q=most), {"where": where})
        for at, where in ((general, "generalisation"), (own, "specialisation"))
    ]
    # Training alone has no q: it is judged with everybody in.
    beside = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    floors = floor_claims(table[beside], "p", " and q")
    return claims + judged("001", iid, q=most, p=low) + floors


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test what 002 says of Table 1 and Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    held, ps = by(here, metric=HELD), sorted(here["p"].unique())
    low, high, skewed = ps[0], ps[-1], [p for p in ps if p > 0.5]
    rows = (
        ("alone", held(MIXTURE, p=skewed), ">", held(LOCAL, p=skewed)),
        ("tuned", held(MIXTURE, p=skewed), ">", held(TUNED, p=skewed)),
        ("falls", held(FEDAVG, p=low), ">", held(FEDAVG, p=high)),
        ("degraded", held(LOCAL, p=high), ">", held(TUNED, p=high)),
    )
    floors = floor_claims(here[here["metric"] == OWN], "p", f", q = {q:g}")
    return judged("002", rows, q=q, low=low, high=high) + floors
