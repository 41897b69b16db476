"""The scorecard's files, in figures/."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from companion.book import Book
from companion.scorecard.collected import collected
from companion.scorecard.joined import numbers
from companion.scorecard.page import latex, page
from fedlib import paths


def write(book: Book) -> tuple[list[Path], pd.DataFrame, pd.DataFrame]:
    """Write scorecard.html, .tex, .parquet and scorecard_claims.parquet; return them.

    Also the tables that are in them: published numbers and claims.
    """
    home = paths.figures()
    home.mkdir(parents=True, exist_ok=True)
    table, claims = numbers(book), collected()
    files = [home / f"scorecard{end}" for end in (".html", ".tex", ".parquet", "_claims.parquet")]
    files[0].write_text(page(table, claims))
    files[1].write_text(latex(table, claims))
    table.to_parquet(files[2], index=False)
    claims.astype({"measured": str, "seeds": str}).to_parquet(files[3], index=False)
    return files, table, claims


def main(book: Book) -> None:
    """Write page, tables and numbers; say where, and how verdicts are spread."""
    files, numbers, claims = write(book)
    for name, table in (("published numbers", numbers), ("claims", claims)):
        said = ", ".join(f"{n} {v}" for v, n in table["verdict"].value_counts().items())
        print(f"{len(table)} {name}: {said or 'none tested yet, run make figures'}")
    for file in files:
        print(file.relative_to(paths.ROOT) if file.is_relative_to(paths.ROOT) else file)
