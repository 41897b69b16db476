"""Claims of 001 and 002 about clients that opt out, and of 002, 001's first version."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import Claim, greater, on_par
from papers.claims.floor import floor_claims
from papers.claims.specialists import GLOBAL, HELD, OWN, lookup
from papers.recipes import FEDAVG, LOCAL, MAJORITY, MIXTURE, TUNED


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 6, where most clients opted out."""
    score = lookup(table)
    most, low = float(table["q"].max()), float(table["p"].min())
    found = []
    for q in of_figure(table):
        found += [
            greater(
                f"q = {q:g}: the mixture generalises better than fine-tuning",
                "Sec. 5, Fig. 6",
                score(MIXTURE, GLOBAL, q=q),
                score(TUNED, GLOBAL, q=q),
            ),
            on_par(
                f"q = {q:g}: ... and is on par on the clients' own tests",
                "Sec. 5, Fig. 6",
                score(MIXTURE, OWN, q=q),
                score(TUNED, OWN, q=q),
            ),
        ]
    for metric, said in ((GLOBAL, "generalisation"), (OWN, "specialisation")):
        found.append(
            greater(
                f"q = {most:g}, i.i.d. (p = {low:g}): the mixture beats FedAvg in {said}",
                "Sec. 5, Fig. 6b",
                score(MIXTURE, metric, p=low, q=most),
                score(FEDAVG, metric, p=low, q=most),
            )
        )
    # Training alone has no q: it is judged with everybody in.
    judged = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    return [*found, *floor_claims(table[judged], "p", " and q")]


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test what 002 says of Table 1 and Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    score = lookup(here)
    low, high = float(here["p"].min()), float(here["p"].max())
    skewed = sorted(p for p in here["p"].unique() if p > 0.5)
    return [
        *(
            greater(
                f"q = {q:g}: the mixture beats {other} (p > 0.5, validation)",
                "Sec. 5, Table 1, Fig. 3",
                score(MIXTURE, HELD, p=skewed),
                score(method, HELD, p=skewed),
            )
            for method, other in ((LOCAL, "training alone"), (TUNED, "fine-tuning"))
        ),
        greater(
            f"q = {q:g}: FedAvg falls as p grows: p = {low:g} vs {high:g}",
            "Table 1, Fig. 3",
            score(FEDAVG, HELD, p=low),
            score(FEDAVG, HELD, p=high),
        ),
        greater(
            f"q = {q:g}: once FedAvg has degraded, training alone beats fine-tuning (p = {high:g})",
            "Table 1, Fig. 2",
            score(LOCAL, HELD, p=high),
            score(TUNED, HELD, p=high),
        ),
        *floor_claims(here[here["metric"] == OWN], "p"),
    ]


def at_q(table: pd.DataFrame, q: float) -> pd.DataFrame:
    """Return the scores where the fraction q opts out, and *Local*'s, without q, at the same p."""
    here = table["q"] == q
    return table[here | (table["q"].isna() & table["p"].isin(table["p"][here].unique()))]


def of_figure(table: pd.DataFrame) -> list[float]:
    """Return the fractions of Fig. 6: nobody opts out, and the two largest that there are."""
    qs = sorted(table["q"].dropna().unique().tolist())
    return [*qs[:1], *qs[1:][-2:]]


def over_q(table: pd.DataFrame, p: float, metric: str) -> pd.DataFrame:
    """Return scores at p by q, *Local*'s at every q and at q = 1; on own tests with the floor.

    Where everybody opts out there is no federation to mix in, and what is left is training alone.
    """
    rows = table[(table["p"] == p) & (table["metric"] == metric)]
    alone, qs = rows[rows["method"] == LOCAL], sorted(rows["q"].dropna().unique())
    everywhere = [alone.assign(q=q) for q in (*qs, 1.0)]
    floor = rows[rows["method"].eq(MAJORITY) & (metric == OWN)]
    return pd.concat([rows.dropna(subset="q"), *everywhere, floor], ignore_index=True)


def ledger(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what clients sent to the federation by q: those who take part and those who opted out.

    Means over seeds and p: clients, largest and smallest cohort, and megabytes sent in all.
    """
    table = frames.apart(frame[frame["method"].str.startswith(FEDAVG)])
    runs = []
    for (q, _, seed), run in table.groupby(["q", "p", "seed"]):
        part = run[run["metric"] == "opted_in"].set_index("client")["value"] > 0
        sent = run[run["metric"] == "client_bytes_up"]
        if not len(sent):
            continue
        ours = sent["client"].map(part)
        cohorts = sent.groupby("round").size()
        runs.append(
            {
                "q": q,
                "seed": seed,
                "clients that take part": part.sum(),
                "clients that opted out": (~part).sum(),
                "smallest cohort": cohorts.min(),
                "largest cohort": cohorts.max(),
                "MB sent by the former": sent["value"][ours].sum() / 1e6,
                "MB sent by the latter": sent["value"][~ours].sum() / 1e6,
            }
        )
    return pd.DataFrame(runs).groupby("q").mean().drop(columns="seed")
