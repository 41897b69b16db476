"""By which rule a published number counts as reproduced."""

from __future__ import annotations

import numpy as np
import pandas as pd

from companion.frames import LEAST_SEEDS

INSIDE, ORDER, NOT = "inside the interval", "same order", "not reproduced"
TOO_FEW, NEVER, NO = "too few seeds", "not yet run", "not comparable"
ABSENT = "data not at hand"
VERDICTS = {
    INSIDE: "the published value lies in the 95% interval of the mean over seeds",
    ORDER: "it does not, but three quarters or more of the other numbers of its group lie on the "
    "same side of it as in the paper",
    NOT: "neither",
    TOO_FEW: f"fewer than {LEAST_SEEDS} seeds: the interval would hold almost any number",
    NEVER: "no run is stored",
    ABSENT: "no run is stored, and of the data set the standard scale has a sample at most",
    NO: "there is nothing to compare it with, for the reason that is given",
}
AGREES = 0.75


def judged(table: pd.DataFrame) -> pd.Series:
    """Return the verdict of every number.

    ``table`` has columns value, mean, low, high, seeds (0: never run), group, at_hand (whether its
    data set is), and why_not ("" where a run is to be compared).
    """
    agreement = _agreement(table)
    said = np.select(
        [
            table["why_not"].ne(""),
            table["seeds"].eq(0) & ~table["at_hand"],
            table["seeds"].eq(0),
            table["seeds"].lt(LEAST_SEEDS),
            table["value"].between(table["low"], table["high"]),
            agreement.ge(AGREES),
        ],
        [NO, ABSENT, NEVER, TOO_FEW, INSIDE, ORDER],
        NOT,
    )
    return pd.Series(said, index=table.index)


def _agreement(table: pd.DataFrame) -> pd.Series:
    """Return the share of a number's group that lies on the same side of it as published.

    NaN for a number that is alone in its group, or was never run.
    """
    shares = pd.Series(np.nan, index=table.index)
    measured = table[table["seeds"].gt(0) & table["value"].notna()]
    for _, rows in measured.groupby("group"):
        theirs, ours = (
            np.sign(np.subtract.outer(v, v)) for v in rows[["value", "mean"]].to_numpy().T
        )
        if len(rows) > 1:
            shares[rows.index] = ((theirs == ours).sum(1) - 1) / (len(rows) - 1)
    return shares
