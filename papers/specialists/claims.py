"""What 001 and 002 claim, tested on runs; and which of 001's departures its numbers show."""

import pandas as pd

from companion import frames
from companion.claims import Claim, greater, on_par
from papers.floor import FEDAVG, LOCAL, MAJORITY, TUNED, comparing, floor_claims
from papers.specialists.analysis import GLOBAL, HELD, OWN, at_q, of_figure
from papers.specialists.experiments import LAST_CLIENT, MIXTURE, SMALL

BETTER = "The mixture generalises better than fine-tuning"
FIG_3, FIG_4 = "Table 1, Fig. 3", "Table 1, Fig. 4"


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what sec. 5 of 001 says of Table 1 and Fig. 3 and 4, without opting out."""
    general, own = comparing(table, metric=GLOBAL), comparing(table, metric=OWN)
    ps = sorted(table["p"].unique())
    low, high = {"p": ps[0]}, {"p": ps[-1]}
    skewed, mild = {"p": [p for p in ps if p >= 0.6]}, {"p": [p for p in ps if p < 1]}
    return [
        general(f"{BETTER}: global test, all p", f"Sec. 5, {FIG_4}", MIXTURE, TUNED),
        own("... and is on par on the clients' own tests (at most a point below)",
            "Sec. 5, Table 1", MIXTURE, TUNED, rule=on_par),
        general("FedAvg generalises better than the mixture: global test, all p",
                FIG_4, FEDAVG, MIXTURE),
        own("On skewed clients (p >= 0.6) the mixture beats FedAvg at home",
            FIG_3, MIXTURE, FEDAVG, skewed),
        own("The mixture beats training alone at home: own tests, all p", FIG_3, MIXTURE, LOCAL),
        own(f"FedAvg gets worse on a client's own test as p grows: p = {ps[0]:g} vs {ps[-1]:g}",
            FIG_3, FEDAVG, FEDAVG, low, high),
        own(f"Training alone gets better with p: p = {ps[-1]:g} vs {ps[0]:g}",
            FIG_3, LOCAL, LOCAL, high, low),
        general(f"{BETTER} where clients hold all classes: p < 1",
                f"Sec. 5, {FIG_4}", MIXTURE, TUNED, mild),
        *floor_claims(table[table["metric"] == OWN], "p"),
    ]  # fmt: skip


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 5: as with majority classes, so with Dirichlet shares."""
    general = comparing(table, metric=GLOBAL)
    better = general(f"{BETTER}: global test, all alpha", "Sec. 5, Fig. 5", MIXTURE, TUNED)
    return [better, *floor_claims(table[table["metric"] == OWN], "alpha")]


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
    last = released[released["departure"] == LAST_CLIENT]
    theirs = printed.set_index(["method", "metric", "p"])["value"].rename("theirs")
    text = "The published FedAvg is the last client's model: the average is further off, "

    def distance(table: pd.DataFrame, metric: str) -> dict[int, float]:
        here = table["method"].eq(FEDAVG) & table["metric"].eq(metric) & table["p"].isin(last["p"])
        rows = table[here].join(theirs, on=["method", "metric", "p"]).dropna(subset="theirs")
        return frames.by_seed(rows.assign(off=(rows["value"] - rows["theirs"]).abs()), "off")

    return [
        greater(text + where, "A21, Table 1", distance(plain, metric), distance(last, metric))
        for metric, where in ((GLOBAL, "global test"), (OWN, "own tests"))
    ]


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 6, where most clients opted out."""
    general, own = comparing(table, metric=GLOBAL), comparing(table, metric=OWN)
    most, low, claims = float(table["q"].max()), float(table["p"].min()), []
    place, iid = "Sec. 5, Fig. 6", {"p": low, "q": most}
    for q in of_figure(table):
        claims += [
            general(f"q = {q:g}: the mixture generalises better than fine-tuning",
                    place, MIXTURE, TUNED, {"q": q}),
            own(f"q = {q:g}: ... and is on par on the clients' own tests",
                place, MIXTURE, TUNED, {"q": q}, rule=on_par),
        ]  # fmt: skip
    text = f"q = {most:g}, i.i.d. (p = {low:g}): the mixture beats FedAvg in "
    for compare, said in ((general, "generalisation"), (own, "specialisation")):
        claims.append(compare(text + said, "Sec. 5, Fig. 6b", MIXTURE, FEDAVG, iid))
    # Training alone has no q: it is judged with everybody in.
    judged = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    return [*claims, *floor_claims(table[judged], "p", " and q")]


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test what 002 says of Table 1 and Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    held, ps = comparing(here, metric=HELD), sorted(here["p"].unique())
    low, high, skewed = {"p": ps[0]}, {"p": ps[-1]}, {"p": [p for p in ps if p > 0.5]}
    at, beats = f"q = {q:g}", f"q = {q:g}: the mixture beats {{}} (p > 0.5, validation)".format
    return [
        held(beats("training alone"), "Sec. 5, Table 1, Fig. 3", MIXTURE, LOCAL, skewed),
        held(beats("fine-tuning"), "Sec. 5, Table 1, Fig. 3", MIXTURE, TUNED, skewed),
        held(f"{at}: FedAvg falls as p grows: p = {ps[0]:g} vs {ps[-1]:g}",
             FIG_3, FEDAVG, FEDAVG, low, high),
        held(f"{at}: once FedAvg has degraded, training alone beats fine-tuning (p = {ps[-1]:g})",
             "Table 1, Fig. 2", LOCAL, TUNED, high),
        *floor_claims(here[here["metric"] == OWN], "p"),
    ]  # fmt: skip
