"""What is claimed and found, in words: whose words they are, and what they stand on."""

import csv
import re

import pandas as pd
import pytest
from rows import settings_of, verdicts

from companion.claims import HOLDS, KINDS, PAPER, UNTESTED
from companion.sections import SCALES
from fedlib import paths
from papers import named, numbers
from papers.adaptive.analysis import WITHOUT
from papers.adaptive.experiments import ALL_EQUAL, BEST, EAGER, MOE
from papers.fedmix import BETWEEN, MINUS, PRUNED, SHARED, STEP
from papers.judging import by, judged, said
from papers.pm_moe import MIXED
from papers.pm_moe.analysis import PLAIN, RENORMALISED, SIDES
from papers.published import claims, published, size, words
from papers.scaled import MAJORITY, TUNED
from papers.specialists.analysis import LOSSES, SKEWS

ROWS = list(csv.DictReader((paths.ROOT / "papers" / "claims.csv").open(newline="")))
CUT = "a and as at by for from in is of on or that the to with"
POINTS = dict(enumerate((0.031, 0.030, 0.029)))


def test_a_claim_of_a_paper_has_its_words_and_their_place_and_no_other_has():
    assert {row["kind"] for row in ROWS} < {*KINDS} and len(ROWS) > 100
    for row in ROWS:
        assert row["claim"] and row["place"] and row["exploratory"] in ("", "yes"), row
        assert (row["kind"] == PAPER) == bool(row["quote"]), row
        # No quote is cut inside a clause.
        *_, last = row["quote"].split() or [""]
        assert not row["quote"] or len(row["quote"].split()) >= 5, row
        assert re.fullmatch(r"[^ ]*[\w%][].)]*|", last) and last not in CUT.split(), row
    names = [(row["paper"], row["name"]) for row in ROWS]
    assert len(set(names)) == len(names)
    assert len(claims()) == sum(row["kind"] == PAPER and not row["exploratory"] for row in ROWS)


def test_quotes_are_the_papers_words():
    """Three words that follow each other do so in the paper; formulas are printed otherwise."""
    found = [*paths.ROOT.parents[0].glob("shared/seeds/00*.txt")]
    found = found or [*paths.ROOT.parents[1].glob("shared/seeds/00*.txt")]
    if not found:
        pytest.skip("the papers' texts are not here")

    def triples(text):
        text = re.sub(r"<[^>]+>|\]\(#[^)]*\)|-\s*\n\s*", "", text)
        every = re.findall(r"[a-z]{2,}", text.lower())
        return [*zip(every, every[1:], every[2:], strict=False)]

    known = {file.name[:3]: {*triples(file.read_text())} for file in found}
    for row in (row for row in ROWS if row["quote"]):
        mine = triples(row["quote"])
        assert (
            sum(t in known[row["paper"]] for t in mine) >= 0.7 * len(mine)
            or row["name"] == "pruned.half"
        ), row


SIZES = [
    (("002", "alone", "over training alone"), (1.15, 1.07)),
    (("004", "all", "", "cifar10"), (0.0, None)),
    (("001", "global", "", "cifar10"), (0.78, None)),
    (("000", "nothing"), (None, None)),
]


@pytest.mark.parametrize(("of", "expected"), SIZES)
def test_the_published_effect_by_hand(of, expected):
    """Deviations over three runs are the only ones that give an error."""
    for found, known in zip(size(*of), expected, strict=True):
        assert found == pytest.approx(known, abs=0.005) if known is not None else pd.isna(found)


def test_every_size_is_of_a_part_that_is_compared():
    rows = {(row["paper"], row["name"]) for row in ROWS}
    printed = published().set_index("row")
    code = "".join(file.read_text() for file in (paths.ROOT / "papers").rglob("claims.py"))
    asked = [row["words"] for row in words("compared.csv").values()]
    for one in words("sizes.csv").values():
        assert (one["paper"], one["name"]) in rows, one
        terms = [int(r) for r in re.findall(r"r(\d+)", one["rows"])]
        of_paper = printed.loc[terms, "paper"].str.startswith(one["paper"])
        assert terms and of_paper.all() and printed.loc[terms, "value"].notna().all(), one
        part = re.sub(r"S = \d+", "S = {s:g}", one["part"])
        assert not part or any(f"part={part}" in w for w in asked) or f'"{part}"' in code, one


def test_every_paper_that_is_run_or_quoted_has_a_title_and_a_line_in_readme():
    """A paper without a title was called by its number in figures, and nothing named it."""
    papers = {name[:3]: f"runs {name}" for name in named.names()}
    papers |= {paper[:3]: f"prints {paper}" for paper in published()["paper"]}
    papers |= {row["paper"]: f"claims {row['name']}" for row in ROWS if row["paper"] != "all"}
    titled = {name for name in words("titles.csv", "name") if name.isdigit()}
    assert {n: why for n, why in papers.items() if n not in titled} == {}, "papers/titles.csv"
    listed = (paths.ROOT / "README.md").read_text().split("## The papers")[1]
    numbers = re.findall(r"^- ([\d, ]+):", listed, re.MULTILINE)
    assert {*re.findall(r"\d+", " ".join(numbers))} == titled, "README, The papers"


def test_what_was_tested_in_a_setting_that_is_not_the_papers_is_exploratory():
    """MNIST for FEMNIST, and another J and rate of exploration."""
    rows = {(row["paper"], row["name"]): row for row in ROWS}
    assert all(rows["003", name]["exploratory"] for name in ("beats.writers", "writers"))


def test_nothing_is_told_that_was_withdrawn():
    """What notebooks, tables and pages said of runs and of papers, and stored runs contradict."""
    words = (
        r"least energy|that need no training|trains FedAvg|FedAvg (itself )?did not train|"
        r"clients train where the federation does not|stopping is in the code only|"
        r"(Fashion-MNIST|CIFAR-10|AG News), which is not among the runs"
    )
    folders = {"notebooks": "*.ipynb", "docs": "*.md", "papers": "*.csv", "docs/pictures": "*"}
    folders["papers/told"] = "*.csv"
    files = [file for folder, kind in folders.items() for file in (paths.ROOT / folder).glob(kind)]
    for file in [*files, *paths.ROOT.glob("*.md")]:
        text = re.sub(r"\\n\",\s*\"", " ", file.read_text())  # lines of a notebook's cell
        assert not re.findall(words, text), file.name


# What no run tests yet, and what is not run here: it has the verdict "not tested".
NOT_YET = {("000", "more.sixteen"), ("000", "reconstruct"), ("000", "split.input")}
NOT_YET |= {("001", "rates")}


def test_every_claim_is_asked_somewhere():
    folder = paths.ROOT / "papers"
    code = "".join(file.read_text() for file in folder.rglob("*.py"))
    compared = [*words("compared.csv").values()]
    names = [(row["paper"], row["name"]) for row in compared if "{" not in row["name"]]
    assert {*names} <= {(row["paper"], row["name"]) for row in ROWS}
    asked = {row["name"] for row in compared}
    patterns = [start for name in asked if (start := name.partition("{")[0]) not in ("", name)]
    for row in ROWS:
        name = row["name"]
        starts = any(name.startswith(p) for p in patterns)
        where = f"neither papers/compared.csv nor code asks {name} of {row['paper']}"
        found = name in asked or f'"{name}"' in code or starts
        assert found != ((row["paper"], name) in NOT_YET), where


def test_what_has_a_look_is_run_or_drawn_somewhere():
    each = [(section, scale, d) for scale in SCALES for section, d in settings_of(scale)]
    runs = [run.method for section, *at in each for run in section.runs(*at, costly=True)]
    drawn = {STEP, "one epoch", "trained, one epoch", SHARED, BETWEEN, PLAIN, RENORMALISED}
    drawn |= {
        PRUNED,
        *MINUS.values(),
        *MIXED,
        *SIDES,
        *(f"{skew}, {of}" for skew in SKEWS for of in LOSSES),
    }
    drawn |= {f"{method}, {WITHOUT}" for method in (MOE, EAGER, ALL_EQUAL, BEST, TUNED)}
    assert {*words("theme.csv", "method")} <= {*runs} | drawn


def test_open_words_are_filled_and_the_paper_is_quoted():
    claim, place, about = said("001", "q.global", "q = {q:g}, global test", q=0.9)
    assert claim.endswith("on par locally: q = 0.9, global test") and place == "Sec. 5, Fig. 6"
    assert about["kind"] == PAPER and about["part"] == "q = 0.9, global test"
    (late,) = judged("001", [("mild", POINTS, ">", 0.0)])
    assert late.exploratory and late.kind == "ours" and late.verdict == HOLDS
    (elsewhere,) = judged("000", [("rounds.4", POINTS, ">", 0.0)], here=False)
    assert elsewhere.verdict == UNTESTED and elsewhere.place == "Sec. 4.1, Fig. 3 and 4d"


def test_what_is_the_floor_cannot_hold():
    """Both lie a tenth of a point above the floor: better than the other, and nothing learned."""
    values = {"one": 0.504, "other": 0.502, MAJORITY: 0.5, "far": 0.9}
    rows = [(m, s, v + s / 1e4) for m, v in values.items() for s in range(3)]
    at = by(pd.DataFrame(rows, columns=["method", "seed", "value"]))
    found = judged("001", [("small", at(m), ">", at("other")) for m in ("one", "far")])
    assert verdicts(found) == [UNTESTED, HOLDS] and "floor" in found[0].measured


@pytest.mark.parametrize(("name", "word", "value"), [
    ("floor", "cifar10 cells", "5"), ("too small", "count", "16"), ("energies", "same", "1."),
])  # fmt: skip
def test_sentences_of_what_is_printed_need_no_runs(name, word, value):
    assert str(numbers.NUMBERS[name]()[word]).startswith(value)


def test_what_contradicts_a_sentence_is_refused(monkeypatch):
    """FedAvg above the floor; and a factor that is not 7.6."""
    known = numbers.private.beside_floor()
    higher = known.assign(value=known["value"] + 0.2)
    monkeypatch.setattr(numbers.private, "beside_floor", lambda: higher)
    with pytest.raises(numbers.Unsupported, match="below the baseline"):
        numbers._floor()
    rows = published("001", "Table 1e").assign(value=lambda t: t["value"] + 1)
    monkeypatch.setattr(numbers, "published", lambda *_: rows)
    with pytest.raises(numbers.Unsupported, match="Table 1e"):
        numbers._too_small()


def test_a_number_that_is_printed_twice_is_marked_once():
    rows = published("004").set_index("row")
    again = rows[rows["repeats"] >= 0]
    assert again["table_or_figure"].value_counts().to_dict() == {"Table 2": 105, "Table 4": 6}
    first = rows.loc[again["repeats"]]
    assert first["value"].tolist() == again["value"].tolist() and first["repeats"].eq(-1).all()
    assert first["method"].tolist() == again["method"].tolist()
