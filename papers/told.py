"""Findings: sentences written by hand whose numbers are computed, and the table of promises.

`python -m papers.told` writes docs/FINDINGS.md, its figure, and the parts of README between marks.

A sentence is written by hand (``papers/told/*.csv``). A number in it stands in brackets, by name:

    [[000 rounds.4]]                       the effect of a claim, with its interval
    [[000 rounds.4 | +]]                   the same without a plus sign
    [[000 rounds.4 | -]]                   with its sign turned: the other method minus this one
    [[000 rounds.4 | mean]]                its mean; further forms are published and seeds
    [[000 sized.4, K = 2]]                 the effect of a part of the claim
    [[000 rounds.4 @ CIFAR-10 (standard)]] the effect in one place
    [[label sets | clients]]               a number of `papers.numbers`

The column ``stands`` has the verdicts that a sentence rests on, such as "000 rounds.4: holds; 000
special.ensemble: undecided". If one of them has changed, `Unsupported` is raised, and the sentence
must be rewritten.
"""

import re
from collections.abc import Mapping
from functools import cache, partial
from math import isinf
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown

from companion import plotting, scorecard
from companion.claims import (
    CONTRADICTED,
    EQUAL,
    HOLDS,
    OPEN,
    PAPER,
    TRAINING,
    UNTESTED,
    answers,
    demonstrations,
    effect,
    ranks,
    relations,
)
from companion.inference import Z
from companion.plotting import title
from fedlib import paths
from fedrun import files
from papers import numbers
from papers.numbers import Unsupported
from papers.published import claims, words

README = paths.ROOT / "README.md"
FIGURES = paths.ROOT / "figures"  # the stored ones, whatever $FEDLIB_FIGURES is
MARK = re.compile(r"(<!-- told: (\w+) -->\n).*?(\n?<!-- end -->)", re.DOTALL)
FIELD = re.compile(r"\[\[([^\]]+)\]\]")
_NAMED = re.compile(r"(\d{3}|all) ([\w.]+)(?:, ([^@]+?))?(?: @ (.*))?$")
Row = Mapping[Any, Any]


# Tests by name.


@cache
def tests() -> pd.DataFrame:
    """Return every stored test on real data, the most faithful settings first."""
    rows = scorecard.collected(FIGURES)
    rows = rows[~demonstrations(rows)]
    rows = rows.assign(order=ranks(rows), relation=relations(rows), few=-rows["seeds"])
    return rows.sort_values(["order", "few"], kind="stable").reset_index(drop=True)


@cache
def verdicts() -> pd.DataFrame:
    """Return the papers' claims, each with one verdict: `companion.claims.answers`."""
    return answers(scorecard.collected(FIGURES), claims())


def test(name: str) -> Row:
    """Return the test with a name such as "000 sized.4, K = 2 @ CIFAR-10 (standard)".

    A claim without a part and a place is the claim with its verdict; our own is its most faithful
    test.

    Raises:
        LookupError: if nothing has the name.
    """
    if not (named := _NAMED.match(name)):
        raise LookupError(f"{name!r} is no name of a test")
    paper, claim, part, where = (each or "" for each in named.groups())
    return _deciding(paper, claim, part, **{"tested on": where})


def _deciding(paper: str, claim: str, part: str, **starts: str) -> Row:
    """Return the claim with its verdict, or the most faithful test of one of its parts or places.

    Args:
        paper, claim, part: of the claim; "" for no part.
        starts: values of columns of tests, or their beginnings if no value is equal.

    Raises:
        LookupError: if there is no such test.
    """
    known, rows = (t[t["paper"].eq(paper) & t["name"].eq(claim)] for t in (verdicts(), tests()))
    if len(known) and not part and not any(starts.values()):
        return known.iloc[0].to_dict()
    rows = rows[rows["part"].eq(part)] if part else rows
    for column, start in starts.items():
        exact = rows[column].eq(start)
        rows = rows[exact if exact.any() else rows[column].str.startswith(start)]
    if not len(rows):
        raise LookupError(f"no test is called {paper} {claim}, {part}: {starts}")
    return rows.iloc[0].to_dict()


def number(name: str, form: str = "") -> str:
    """Return a number by its name in a form; see the module's docstring.

    Raises:
        LookupError: if nothing has the name.
        Unsupported: if the paper gives no number of which the published form is asked for.
    """
    if not _NAMED.match(name):
        return str(numbers.NUMBERS[name]()[form])
    row = test(name)
    if form == "seeds":
        return f"{int(row['seeds'])}"
    if form == "published":
        if pd.isna(row["published"]):
            raise Unsupported(f"nothing is published for {name!r}")
        return f"{row['published']:+.1f}"
    if form == "mean":
        return effect(row).partition(" ")[0]
    if form == "-":
        row = _turned(row)
    told = _measured(row)
    return told.removeprefix("+") if form in ("+", "-") else told


def filled(text: str) -> str:
    """Return a text with numbers in place of its brackets."""

    def field(match: re.Match[str]) -> str:
        name, _, form = (part.strip() for part in match[1].partition("|"))
        return number(name, form)

    return FIELD.sub(field, text)


def supported(stands: str) -> None:
    """Check the assertions of a sentence: "NAME: VERDICT", or "NAME: RELATION".

    Raises:
        Unsupported: if one of them is wrong.
    """
    for assertion in filter(None, stands.split("; ")):
        name, _, wanted = assertion.rpartition(": ")
        row = test(name)
        if wanted not in (row["verdict"], row["relation"]):
            raise Unsupported(f"{assertion!r}: it is {row['verdict']!r}, {row['measured']}")


def told(row: Mapping[str, str], column: str) -> str:
    """Return the sentence in a column of a row, whose assertions are checked."""
    supported(row["stands"])
    return filled(row[column])


# The table of promises, and its figure.


@cache
def promises() -> pd.DataFrame:
    """Return the papers' main promises beside the results: rows of ``papers/told/promises.csv``.

    Columns paper, promise, evidence, and those of the deciding test.
    """
    rows = []
    for row in words("told/promises.csv").values():
        place = {"dataset": row["data"], "kind": PAPER if row["part"] or row["data"] else ""}
        rows.append(
            {**_as_promised(_deciding(row["paper"], row["name"], row["part"], **place)), **row}
        )
    return pd.DataFrame(rows)


def _as_promised(row: Row) -> Row:
    """Return a test in points such that a positive effect is in the direction of the promise."""
    lower = row["unit"] == "points" and isinf(row["least"])
    return _turned(row) if lower else row


def _turned(row: Row) -> Row:
    """Return a test with the sign of its effect turned: the other method minus this one."""
    ends = {"effect": "effect", "low": "high", "high": "low", "published": "published"}
    return {**row, **{name: -row[of] for name, of in ends.items()}}


def _cells(row: Row) -> list[str]:
    """Return the cells of a row of the table of promises."""
    tested = row["verdict"] != UNTESTED
    published: str = "" if pd.isna(row["published"]) else f"{row['published']:+.2g}"
    if not pd.isna(row["published_se"]):
        published += f" ± {Z * row['published_se']:.2g}"
    where = f"{row['setting']}, {title(str(row['dataset']))}" if tested else ""
    link = _link(row["evidence"])
    seeds = f"{int(row['seeds'])}" if tested else ""
    return [
        row["promise"], f"**{row['verdict']}**", _measured(row) if tested else "", seeds,
        published, row["relation"], where, link,
    ]  # fmt: skip


def _link(notebook: str) -> str:
    """Return a link to a notebook as on pages in docs/."""
    return f"[{notebook.replace('_', ' ')}](../notebooks/{notebook}.ipynb)"


def _measured(row: Row) -> str:
    """Return an effect, and p if an undecided interval does not contain the boundary."""
    near = row["verdict"] in (OPEN, EQUAL) and row["p"] < 0.05
    return f"{effect(row)}, p = {row['p']:.2g}" if near else effect(row)


HEADS = (
    "promise",
    "verdict",
    "measured",
    "seeds",
    "published",
    "vs published",
    "setting",
    "evidence",
)


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(line).replace("\n", " ") + " |" for line in lines)


def promised(only: str = "") -> str:
    """Return the table of promises as Markdown.

    It has a heading row per paper, unless it is the table of one paper (``only``).
    """
    rows = []
    for paper, some in promises().groupby("paper", sort=False):
        if only not in ("", paper):
            continue
        if not only:
            rows.append([f"***{title(str(paper))}***", *[""] * (len(HEADS) - 1)])
        rows += [_cells(row) for row in some.to_dict("records")]
    return _table(HEADS, rows)


def audits() -> str:
    """Return the table of audits and own results as Markdown."""
    rows = [
        [told(row, "result"), told(row, "number"), row["kind"],
         _link(row["evidence"])]
        for row in words("told/audits.csv").values()
    ]  # fmt: skip
    return _table(("result", "number", "kind", "evidence"), rows)


def believe() -> str:
    """Return what to believe about each paper as Markdown, a paragraph each."""
    rows = words("told/believe.csv").values()
    return "\n\n".join(f"**{title(row['paper'])}.** {told(row, 'text')}" for row in rows)


def papers() -> list[str]:
    """Return the numbers of the papers with such a paragraph, such as "000"."""
    return [row["paper"] for row in words("told/believe.csv").values()]


def paper_page(paper: str) -> str:
    """Return the page of one paper as Markdown, with links as in docs/."""
    text = next(told(r, "text") for r in words("told/believe.csv").values() if r["paper"] == paper)
    evidence = promises()[promises()["paper"].eq(paper)]["evidence"]
    links = [f"- {_link(name)}" for name in sorted({*evidence})]
    return "\n\n".join(
        (
            f"# {title(paper)}",
            f"**What to believe.** {text}",
            f"![{title(paper)}: measured effects and published ones](figures/forest_{paper}.png)",
            promised(paper),
            "**The evidence**, notebook by notebook:",
            "\n".join(links),
        )
    )


def forest(paper: str = "", *, simplest: bool = False) -> Any:
    """Return the figure of the promises that are measured in points, and its numbers.

    Args:
        paper: the number of a paper; "" for all.
        simplest: whether only comparisons with the simplest alternative of the same ingredients are
            drawn.
    """
    rows = promises()
    rows = rows[rows["paper"].eq(paper)] if paper else rows
    rows = rows[rows["unit"].eq("points") & rows["verdict"].ne(UNTESTED)]
    rows = rows[rows["simplest"].eq("yes")] if simplest else rows
    named = rows.assign(group=rows["paper"].map(title))
    return plotting.forest(named[["group", "promise", "setting", "verdict", *ENDS]])


ENDS = ("effect", "low", "high", "published", "published_se")


# Notebooks, FINDINGS and README.

LINES = {
    "says": "The paper says",
    "found": "Found here",
    "sure": "How sure",
    "change": "What would change it",
}


def in_short(notebook: str) -> Markdown:
    """Return the opening of a notebook: what the paper says, what was found, how sure it is."""
    row = words("told/openings.csv", "name")[notebook]
    heads = {**LINES, "says": row["who"] or LINES["says"]}
    lines = [f"**{heads[k]}:** {told(row, k)}" for k in LINES if row[k]]
    return Markdown("\n\n".join(lines))


def notebooks() -> str:
    """Return README's table of notebooks as Markdown."""
    rows = []
    for name, row in words("told/openings.csv", "name").items():
        stem = next(paths.notebooks().glob(f"{name}_*.ipynb")).stem
        link = f"[{stem.replace('_', ' ')}](notebooks/{stem}.ipynb)"
        rows.append(["<br>".join(filter(None, (link, row["of"]))), row["asks"], told(row, "out")])
    return _table(("notebook", "asks", "what came out"), rows)


SAID = {HOLDS: "hold", CONTRADICTED: "are contradicted", EQUAL: "show no difference of a point"}
SAID |= {OPEN: "are undecided", TRAINING: "are still training", UNTESTED: "are not tested"}


def counts() -> str:
    """Return how many claims have which verdict, in a sentence."""
    found = verdicts()["verdict"].value_counts()
    *most, last = (f"{found.get(verdict, 0)} {words}" for verdict, words in SAID.items())
    return f"Of {len(verdicts())} claims of the papers {', '.join(most)} and {last}."


PARTS = {"answer": lambda: told(words("told/page.csv", "name")["answer"], "text")}
PARTS |= {"notebooks": notebooks, "counts": counts}


def page() -> str:
    """Return docs/FINDINGS.md."""
    text = (Path(__file__).with_name("told") / "findings.md").read_text("utf-8")
    parts = {
        "answer": PARTS["answer"](),
        "promises": promised(),
        "audits": audits(),
        "counts": counts(),
    }
    for name, part in parts.items():
        text = text.replace(f"<<{name}>>", part)
    return filled(text)


def written(text: str) -> str:
    """Return README's text with the parts between marks as they are now."""
    return MARK.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}\n<!-- end -->", text)


def main() -> None:
    """Write FINDINGS, its figure, and README."""
    plotting.use_style()
    figure, _ = forest()
    plotting.save_picture(figure, paths.ROOT / "docs" / "figures" / "forest.png")
    readme = written(README.read_text("utf-8"))
    for file, text in ((paths.ROOT / "docs" / "FINDINGS.md", page()), (README, readme)):
        files.write(file, partial(Path.write_text, data=text, encoding="utf-8"), "the findings")
        print(file)


if __name__ == "__main__":
    main()
