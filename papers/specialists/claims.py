"""What 001 and 002 claim, tested on runs; and which of 001's departures its numbers show."""

from __future__ import annotations

import pandas as pd

from companion import frames
from companion.claims import Claim, greater, on_par
from papers.floor import FEDAVG, LOCAL, MAJORITY, TUNED, comparing, floor_claims
from papers.specialists.analysis import GLOBAL, HELD, OWN, at_q, of_figure
from papers.specialists.experiments import LAST_CLIENT, MIXTURE, SMALL

GENERALISES = "The mixture generalises better than fine-tuning"
FIG_3, FIG_4 = "Table 1, Fig. 3", "Table 1, Fig. 4"


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what sec. 5 of 001 says of Table 1 and Fig. 3 and 4, without opting out."""
    general, own = comparing(table, metric=GLOBAL), comparing(table, metric=OWN)
    ps = sorted(table["p"].unique())
    low, high = {"p": ps[0]}, {"p": ps[-1]}
    skewed, mild = {"p": [p for p in ps if p >= 0.6]}, {"p": [p for p in ps if p < 1]}
    par = "... and is on par on the clients' own tests (at most a point below)"
    first = "FedAvg generalises better than the mixture: global test, all p"
    home = "On skewed clients (p >= 0.6) the mixture beats FedAvg at home"
    classes = f"{GENERALISES} where clients hold all classes: p < 1"
    ends = f"p = {ps[-1]:g} vs {ps[0]:g}"
    falls = f"FedAvg gets worse on a client's own test as p grows: p = {ps[0]:g} vs {ps[-1]:g}"
    return [
        general(f"{GENERALISES}: global test, all p", f"Sec. 5, {FIG_4}", MIXTURE, TUNED),
        own(par, "Sec. 5, Table 1", MIXTURE, TUNED, rule=on_par),
        general(first, FIG_4, FEDAVG, MIXTURE),
        own(home, FIG_3, MIXTURE, FEDAVG, skewed),
        own("The mixture beats training alone at home: own tests, all p", FIG_3, MIXTURE, LOCAL),
        own(falls, FIG_3, FEDAVG, FEDAVG, low, high),
        own(f"Training alone gets better with p: {ends}", FIG_3, LOCAL, LOCAL, high, low),
        general(classes, f"Sec. 5, {FIG_4}", MIXTURE, TUNED, mild),
        *floor_claims(table[table["metric"] == OWN], "p"),
    ]


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 5: as with majority classes, so with Dirichlet shares."""
    general = comparing(table, metric=GLOBAL)
    return [
        general(f"{GENERALISES}: global test, all alpha", "Sec. 5, Fig. 5", MIXTURE, TUNED),
        *floor_claims(table[table["metric"] == OWN], "alpha"),
    ]


def architecture_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of experts: any differentiable ones will do."""
    small = table[table["method"].isin([SMALL, MAJORITY]) & table["metric"].eq(OWN)]
    text = "A small specialist and a tiny gate beat FedAvg on the clients' {} tests"
    claims = [
        comparing(table, metric=metric)(text.format(where), "Sec. 3", SMALL, FEDAVG)
        for metric, where in ((OWN, "own"), (GLOBAL, "global"))
    ]
    return [*claims, *floor_claims(small)]


def released_claims(
    released: pd.DataFrame, plain: pd.DataFrame, printed: pd.DataFrame
) -> list[Claim]:
    """Test which FedAvg Table 1 shows: the average, or the model of the client that trained last.

    By how far each is from the published accuracy, mean over p; not a claim of the paper (A21).
    """
    last = released[released["method"].eq(FEDAVG) & released["departure"].eq(LAST_CLIENT)]
    average = plain[plain["method"].eq(FEDAVG) & plain["p"].isin(last["p"])]
    theirs = printed[printed["method"] == FEDAVG]

    def distance(table: pd.DataFrame, metric: str) -> dict[int, float]:
        rows = table[table["metric"] == metric]
        known = theirs[theirs["metric"] == metric].set_index("p")["value"]
        rows = rows.assign(off=(rows["value"] - rows["p"].map(known)).abs()).dropna(subset="off")
        return frames.by_seed(rows, "off")

    text = "The published FedAvg is the last client's model: the average is further off, "
    return [
        greater(text + where, "A21, Table 1", distance(average, metric), distance(last, metric))
        for metric, where in ((GLOBAL, "global test"), (OWN, "own tests"))
    ]


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 6, where most clients opted out."""
    general, own = comparing(table, metric=GLOBAL), comparing(table, metric=OWN)
    most, low = float(table["q"].max()), float(table["p"].min())
    found = []
    for q in of_figure(table):
        better = f"q = {q:g}: the mixture generalises better than fine-tuning"
        alike = f"q = {q:g}: ... and is on par on the clients' own tests"
        found += [
            general(better, "Sec. 5, Fig. 6", MIXTURE, TUNED, {"q": q}),
            own(alike, "Sec. 5, Fig. 6", MIXTURE, TUNED, {"q": q}, rule=on_par),
        ]
    text = f"q = {most:g}, i.i.d. (p = {low:g}): the mixture beats FedAvg in "
    for compare, said in ((general, "generalisation"), (own, "specialisation")):
        at = {"p": low, "q": most}
        found.append(compare(text + said, "Sec. 5, Fig. 6b", MIXTURE, FEDAVG, at))
    # Training alone has no q: it is judged with everybody in.
    judged = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    return [*found, *floor_claims(table[judged], "p", " and q")]


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test what 002 says of Table 1 and Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    held, ps = comparing(here, metric=HELD), sorted(here["p"].unique())
    low, high, skewed = {"p": ps[0]}, {"p": ps[-1]}, {"p": [p for p in ps if p > 0.5]}
    beats = f"q = {q:g}: the mixture beats {{}} (p > 0.5, validation)"
    falls = f"q = {q:g}: FedAvg falls as p grows: p = {ps[0]:g} vs {ps[-1]:g}"
    degraded = (
        f"q = {q:g}: once FedAvg has degraded, training alone beats fine-tuning (p = {ps[-1]:g})"
    )
    return [
        *(
            held(beats.format(other), "Sec. 5, Table 1, Fig. 3", MIXTURE, method, skewed)
            for method, other in ((LOCAL, "training alone"), (TUNED, "fine-tuning"))
        ),
        held(falls, FIG_3, FEDAVG, FEDAVG, low, high),
        held(degraded, "Table 1, Fig. 2", LOCAL, TUNED, high),
        *floor_claims(here[here["metric"] == OWN], "p"),
    ]
