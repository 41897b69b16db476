"""What a notebook ends with: what its paper says, what was found, and how sure that is."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from companion.claims import TESTED, enough, shown
from companion.sections import SCALES


def learned(table: pd.DataFrame, says: str, claim: str, words: Mapping[str, str]) -> Any:
    """Return a notebook's last three sentences: what the paper says, what was found, how sure.

    ``table`` is the notebook's own of claims. One of those that the pattern ``claim`` fits speaks,
    at the largest scale at which one was tested; ``words`` are what it does, by verdict.
    """
    from IPython.display import Markdown

    rows = table[table["claim"].str.match(claim) & table["verdict"].isin(TESTED)]
    if not len(rows):
        return Markdown(f"**The paper says** {says}\n\n**Found:** nothing yet.")
    scale = next(s for s in SCALES[::-1] if rows["tested on"].str.contains(s).any())
    rows = rows[rows["tested on"].str.contains(scale)]
    rows = rows[rows["claim"].eq(rows["claim"].iloc[-1])]
    row, told = rows.iloc[0], shown(rows).iloc[0]
    sure = f"{told['measured']} on {row['tested on']}, from {row['seeds']} seeds"
    sees = f", which can detect a difference of {told['can detect']}" if told["can detect"] else ""
    decide = f"; at the effect seen {enough(row['needed'])} would decide" if row["needed"] else ""
    lines = (
        f"**The paper says** {says}",
        f"**Found:** “{row['claim']}” {words[row['verdict']]} on {row['tested on']}.",
        f"**How sure:** {sure}{sees}{decide}.",
    )
    return Markdown("\n\n".join(lines))
