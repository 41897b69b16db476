"""The claims of 001 and 002: `papers/compared.csv` lists the comparisons."""

from dataclasses import replace

import numpy as np
import pandas as pd

from companion.claims import Claim, looked
from papers.judging import asked, by, compared, floor_claims, judged
from papers.scaled import FEDAVG, MAJORITY, TUNED
from papers.specialists.analysis import GLOBAL, HELD, OWN, at_q, of_fedavg, of_figure
from papers.specialists.experiments import MIXTURE, SMALL

IID = (0.2, 0.5)  # p without skew: the share of two majority classes of ten, or of four
DEGRADED = 0.8  # the p from which on FedAvg is degraded according to 002
KINDS = {"general": GLOBAL, "own": OWN, "held": HELD}


def _compared(paper: str, of: str, table: pd.DataFrame, **words: object) -> list[Claim]:
    """Test the comparisons of a table: ``low`` and ``high`` are its least and largest p."""
    if "p" in table:
        ps = sorted(table["p"].unique())
        parts: dict[str, object] = {"skewed": [p for p in ps if p > 0.5], "low": ps[0]}
        parts |= {"mild": [p for p in ps if p < 1], "high": ps[-1]}
        words = {**parts, "degraded": [p for p in ps if p >= DEGRADED], **words}
    at = {what: by(table, metric=metric) for what, metric in KINDS.items()}
    if "p" in table:
        at["share"] = by(of_fedavg(table, GLOBAL, "p"))
    return compared(paper, asked(paper, of), at, **words)


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test the claims of 001, sec. 5 and 6, on Table 1, Fig. 3 and 4, without opting out."""
    iid = _compared("001", "i.i.d.", table) if table["p"].min() in IID else []
    every = _compared("001", "Table 1", table) + furthest_behind(table) + iid
    return every + floor_claims(table[table["metric"] == OWN], "p")


def furthest_behind(table: pd.DataFrame) -> list[Claim]:
    """Test "in all settings": the mixture against fine-tuning at its worst fraction p.

    That is the p with the least t statistic of the difference. The p-value is multiplied by the
    number of fractions p (Bonferroni), as for so many looks.
    """
    at, ps = by(table, metric=GLOBAL), sorted(table["p"].unique())
    sides = {p: (at(MIXTURE, p=p), at(TUNED, p=p)) for p in ps}
    gaps = {p: [a[s] - b[s] for s in a.keys() & b.keys()] for p, (a, b) in sides.items()}
    lead = {p: np.mean(g) / (np.std(g, ddof=1) or 1e-9) for p, g in gaps.items() if len(g) > 1}
    if not lead:
        return []
    worst = min(lead, key=lambda p: lead[p])
    a, b = sides[worst]
    tries = len(lead) * looked(None, len(gaps[worst]))
    (claim,) = judged("001", [("each", a, ">", b, {"looks": {0: tries}})])
    return [replace(claim, measured=f"p = {worst:g}: {claim.measured}")]


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test the claims of 001 on Fig. 5: Dirichlet shares give the results of majority classes."""
    return _compared("001", "Fig. 5", table) + floor_claims(table[table["metric"] == OWN], "alpha")


def architecture_claims(table: pd.DataFrame) -> list[Claim]:
    """Test the claim of 001 that any differentiable experts will do."""
    small = table[table["method"].isin([SMALL, MAJORITY]) & table["metric"].eq(OWN)]
    return _compared("001", "Sec. 3", table) + floor_claims(small)


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test the claims of 001 on Fig. 6, in which most clients opt out."""
    iid = {"q": float(table["q"].max()), "p": float(table["p"].min())}
    opted = [q for q in of_figure(table) if q > 0]
    claims = [c for q in opted for c in _compared("001", "Fig. 6", table, q=q)]
    # Training alone has no q: it is judged with all clients.
    beside = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    floors = floor_claims(table[beside], "p", " and q")
    return claims + _compared("001", "Fig. 6, i.i.d.", table, **iid) + robust(table) + floors


def robust(table: pd.DataFrame) -> list[Claim]:
    """Test that opting out costs the mixture less generalisation than FedAvg.

    Accuracies are means over those p at which runs without opting out are at hand.
    """
    table = table[table["p"].isin(table.loc[table["q"].eq(0), "p"])]
    at, most = by(table, metric=GLOBAL), float(table["q"].max())
    lost = {}
    for method in (FEDAVG, MIXTURE):
        before, after = at(method, q=0.0), at(method, q=most)
        lost[method] = {s: before[s] - after[s] for s in before.keys() & after.keys()}
    return judged("001", [("q.robust", lost[FEDAVG], ">", lost[MIXTURE])])


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test the claims of 002 on Table 1, Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    floors = floor_claims(here[here["metric"] == OWN], "p", f", q = {q:g}")
    if q:
        return _compared("002", "opted", here, q=q) + floors
    said = ("Table 1", "Fig. 2") if {0.8, 1.0} <= {*here["p"]} else ("Table 1",)
    return [claim for of in said for claim in _compared("002", of, here)] + floors
