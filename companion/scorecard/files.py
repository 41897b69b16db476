"""The scorecard's files, in figures/."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from companion.scorecard.collected import collected
from companion.scorecard.joined import numbers
from companion.scorecard.page import latex, page
from fedlib import paths


def write() -> tuple[list[Path], pd.DataFrame, pd.DataFrame]:
    """Write scorecard.html, .tex, .parquet and scorecard_claims.parquet; return them.

    Also the tables that are in them: published numbers and claims.
    """
    home = paths.figures()
    home.mkdir(parents=True, exist_ok=True)
    table, claims = numbers(), collected()
    files = [home / f"scorecard{end}" for end in (".html", ".tex", ".parquet", "_claims.parquet")]
    files[0].write_text(page(table, claims))
    files[1].write_text(latex(table, claims))
    table.to_parquet(files[2], index=False)
    claims.astype({"measured": str, "seeds": str}).to_parquet(files[3], index=False)
    return files, table, claims
