"""What was found: sentences whose numbers are read from stored results, or that are refused."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from companion.claims import enough, shown
from companion.sections import SCALES


class Unsupported(ValueError):
    """A sentence that its numbers no longer bear out."""


@dataclass(frozen=True)
class Finding:
    """A sentence with its numbers in braces, "{effect:+.1f} points [{low:.1f}, {high:.1f}]".

    ``numbers()`` reads them from what is stored, and ``supported(numbers)`` says whether they still
    bear the sentence out. ``figure`` and ``notebook`` are where a reader can see it.
    """

    sentence: str
    numbers: Callable[[], Mapping[str, Any]]
    supported: Callable[[Mapping[str, Any]], bool]
    notebook: str = ""
    figure: str = ""

    def said(self) -> str:
        """Return the sentence with its numbers; Unsupported where they say otherwise."""
        known = self.numbers()
        if not self.supported(known):
            told = ", ".join(f"{name} = {value}" for name, value in known.items())
            raise Unsupported(f"stored results no longer support {self.sentence!r}: {told}")
        return self.sentence.format(**known)


def document(findings: Sequence[Finding], head: str) -> str:
    """Return a page of Markdown: ``head``, and every sentence with its figure and notebook."""
    parts = [head.strip()]
    for one in findings:
        links = {"figure": f"figures/{one.figure}" if one.figure else ""}
        links |= {"notebook": f"notebooks/{one.notebook}.ipynb" if one.notebook else ""}
        told = ", ".join(f"[{name}]({path})" for name, path in links.items() if path)
        parts.append(f"- {one.said()} ({told})" if told else f"- {one.said()}")
    return "\n\n".join(parts) + "\n"


def write(findings: Sequence[Finding], head: str, path: Path) -> Path:
    """Write `document`; Unsupported, and nothing is written, where a sentence is not borne out."""
    text = document(findings, head)
    path.write_text(text)
    return path


def learned(table: pd.DataFrame, says: str, claim: str, found: Mapping[str, str]) -> Any:
    """Return a notebook's last three sentences: what the paper says, what was found, how sure.

    ``table`` is the notebook's own of claims; that with the text ``claim`` decides, at the largest
    scale that is there. ``found`` are templates by verdict, with the claim's fields in braces.
    Unsupported where there is none for the verdict.
    """
    from IPython.display import Markdown

    rows = table[table["claim"].eq(claim)]
    if not len(rows):
        raise Unsupported(f"nothing tests {claim!r}")
    size = rows["tested on"].map(lambda on: max(i for i, s in enumerate(("", *SCALES)) if s in on))
    largest = int(size.to_numpy().argmax())
    row, told = rows.iloc[largest], shown(rows).iloc[largest]
    if row["verdict"] not in found:
        raise Unsupported(f"no sentence for {claim!r}, which is {row['verdict']!r}: {told}")
    sure = f"{told['measured']} on {row['tested on']}, from {row['seeds']} seeds"
    sees = f", which can detect a difference of {told['can detect']}" if told["can detect"] else ""
    decide = f"; at the effect seen {enough(row['needed'])} would decide" if row["needed"] else ""
    lines = (
        f"**The paper says** {says}",
        f"**Found:** {found[str(row['verdict'])].format_map(row)}",
        f"**How sure:** {sure}{sees}{decide}.",
    )
    return Markdown("\n\n".join(lines))
