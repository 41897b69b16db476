"""What 001 and 002 claim, tested on runs: `papers/compared.csv` has what is compared."""

import pandas as pd

from companion.claims import Claim
from papers.judging import asked, by, compared, floor_claims
from papers.scaled import MAJORITY
from papers.specialists.analysis import GLOBAL, HELD, OWN, at_q, of_figure
from papers.specialists.experiments import SMALL

IID = (0.2, 0.5)  # p at which two majority classes hold their share: two of ten, or of four
KINDS = {"general": GLOBAL, "own": OWN, "held": HELD}


def _compared(paper: str, of: str, table: pd.DataFrame, **words: object) -> list[Claim]:
    """Test what is said of a table: ``low`` and ``high`` are its ends in p, others parts of it."""
    if "p" in table:
        ps = sorted(table["p"].unique())
        parts = {"skewed": [p for p in ps if p > 0.5], "mild": [p for p in ps if p < 1]}
        words = {"low": ps[0], "high": ps[-1], **parts, **words}
    at = {what: by(table, metric=metric) for what, metric in KINDS.items()}
    return compared(paper, asked(paper, of), at, **words)


def generalisation_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what sec. 5 and 6 of 001 say of Table 1 and Fig. 3 and 4, without opting out."""
    iid = _compared("001", "i.i.d.", table) if table["p"].min() in IID else []
    every = _compared("001", "Table 1", table) + iid
    return every + floor_claims(table[table["metric"] == OWN], "p")


def alpha_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 5: as with majority classes, so with Dirichlet shares."""
    return _compared("001", "Fig. 5", table) + floor_claims(table[table["metric"] == OWN], "alpha")


def architecture_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of experts: any differentiable ones will do."""
    small = table[table["method"].isin([SMALL, MAJORITY]) & table["metric"].eq(OWN)]
    return _compared("001", "Sec. 3", table) + floor_claims(small)


def opt_out_claims(table: pd.DataFrame) -> list[Claim]:
    """Test what 001 says of Fig. 6, where most clients opted out."""
    iid = {"q": float(table["q"].max()), "p": float(table["p"].min())}
    claims = [c for q in of_figure(table) for c in _compared("001", "Fig. 6", table, q=q)]
    # Training alone has no q: it is judged with everybody in.
    beside = table["metric"].eq(OWN) & (table["q"].notna() | table["method"].eq(MAJORITY))
    floors = floor_claims(table[beside], "p", " and q")
    return claims + _compared("001", "Fig. 6, i.i.d.", table, **iid) + floors


def first_version_claims(table: pd.DataFrame, q: float = 0.0) -> list[Claim]:
    """Test what 002 says of Table 1 and Fig. 2 and 3, on the validation data that it reports."""
    here = at_q(table, q)
    floors = floor_claims(here[here["metric"] == OWN], "p", f", q = {q:g}")
    every = _compared("002", "Table 1", here, q=q) + _compared("002", "Fig. 2", here, q=q)
    return every + floors
