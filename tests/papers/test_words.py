"""What is claimed and found, in words: whose words they are, and what they stand on."""

import csv
import re
from string import Formatter

import pandas as pd
import pytest
from rows import settings_of, verdicts

from companion.claims import ELSEWHERE, CONTRADICTED, HOLDS, KINDS, PAPER, Claim, judge
from companion.sections import SCALES
from fedlib import paths
from papers import findings, named
from papers.adaptive.analysis import WITHOUT
from papers.adaptive.experiments import ALL_EQUAL, BEST, EAGER, MOE
from papers.fedmix import BETWEEN, SHARED, STEP
from papers.judging import by, judged, said
from papers.pm_moe import MIXED
from papers.published import published, words
from papers.scaled import MAJORITY, TUNED
from papers.short import Missing, Unsupported, number
from papers.specialists.analysis import LOSSES, SKEWS

ROWS = list(csv.DictReader((paths.ROOT / "papers" / "claims.csv").open(newline="")))
POINTS = dict(enumerate((0.031, 0.030, 0.029)))


def test_a_claim_of_a_paper_has_its_words_and_their_place_and_no_other_has():
    assert {row["kind"] for row in ROWS} < {*KINDS} and len(ROWS) > 100
    for row in ROWS:
        assert row["claim"] and row["place"] and row["exploratory"] in ("", "yes"), row
        assert (row["kind"] == PAPER) == bool(row["quote"]), row
        words = row["quote"].split()
        assert len(words) >= 4 or not words or row["name"] in ("faster", "fewer", "pruned.half")
    names = [(row["paper"], row["name"]) for row in ROWS]
    assert len(set(names)) == len(names)


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


NO_REFUTATION = {
    "000": ["found", "few", "many.apart", "many.doubled"],  # settings chosen on the seeds shown
    "003": ["beats.writers", "writers"],  # MNIST for FEMNIST, another J and rate of exploration
}


def test_what_was_tested_in_a_setting_that_is_not_the_papers_is_exploratory():
    rows = {(row["paper"], row["name"]): row for row in ROWS}
    for paper, names in NO_REFUTATION.items():
        assert all(rows[paper, name]["exploratory"] for name in names)
    # What a collapse "corresponds to" is no claim that there is one.
    assert rows["000", "original.federated"]["kind"] != PAPER


def test_nothing_is_told_that_was_withdrawn():
    """What notebooks, tables and pages said of runs and of papers, and stored runs contradict."""
    words = (
        r"least energy|that need no training|trains FedAvg|FedAvg (itself )?did not train|"
        r"clients train where the federation does not|stopping is in the code only|"
        r"(Fashion-MNIST|CIFAR-10|AG News), which is not among the runs"
    )
    folders = {"notebooks": "*.ipynb", "docs": "*.md", "papers": "*.csv", "docs/pictures": "*"}
    files = [file for folder, kind in folders.items() for file in (paths.ROOT / folder).glob(kind)]
    for file in [*files, *paths.ROOT.glob("*.md")]:
        text = re.sub(r"\\n\",\s*\"", " ", file.read_text())  # lines of a notebook's cell
        assert not re.findall(words, text), file.name


def test_every_claim_is_asked_somewhere():
    folder = paths.ROOT / "papers"
    code = "".join(file.read_text() for file in folder.rglob("*.py"))
    asked = {row["name"] for row in words("compared.csv").values()}
    patterns = [start for name in asked if (start := name.partition("{")[0]) not in ("", name)]
    for row in ROWS:
        name = row["name"]
        starts = any(name.startswith(p) for p in patterns)
        where = f"neither papers/compared.csv nor code asks {name} of {row['paper']}"
        assert name in asked or f'"{name}"' in code or starts, where


def test_what_has_a_look_is_run_or_drawn_somewhere():
    each = [(section, scale, d) for scale in SCALES for section, d in settings_of(scale)]
    runs = [run.method for section, *at in each for run in section.runs(*at, costly=True)]
    drawn = {STEP, "one epoch", "trained, one epoch", "bound", "exact", "drawn", SHARED, BETWEEN}
    drawn |= {*MIXED, *(f"{skew}, {of}" for skew in SKEWS for of in LOSSES)}
    drawn |= {f"{method}, {WITHOUT}" for method in (MOE, EAGER, ALL_EQUAL, BEST, TUNED)}
    assert {*words("theme.csv", "method")} <= {*runs} | drawn


def test_open_words_are_filled_and_the_paper_is_quoted():
    claim, place, about = said("003", "greedy.2", k=2)
    assert claim.startswith("Clusters recover 2 orientations") and place == "Sec. 4.5"
    assert about["kind"] == PAPER and "IFCA manages" in about["quote"]
    (late,) = judged("001", [("mild", POINTS, ">", 0.0)])
    assert late.exploratory and late.kind == "ours" and late.verdict == HOLDS
    (elsewhere,) = judged("000", [("rounds.4", POINTS, ">", 0.0)], part="d", here=False)
    assert elsewhere.verdict == "not at this scale" and elsewhere.place == "Sec. 4.1, Fig. 4d"


def test_what_is_the_floor_cannot_hold():
    """Both lie a tenth of a point above the floor: better than the other, and nothing learned."""
    values = {"one": 0.504, "other": 0.502, MAJORITY: 0.5, "far": 0.9}
    rows = [(m, s, v + s / 1e4) for m, v in values.items() for s in range(3)]
    at = by(pd.DataFrame(rows, columns=["method", "seed", "value"]))
    words = {"where": "own"}
    found = judged("001", [("small", at(m), ">", at("other")) for m in ("one", "far")], **words)
    assert verdicts(found) == [ELSEWHERE, HOLDS] and "floor" in found[0].measured


def claim(a, b=None):
    return judge("a", "", a, b or dict.fromkeys(a, 0.0))


def test_a_sentence_has_its_number_or_is_none():
    assert number(claim(POINTS), HOLDS) == "3.0 points [2.8, 3.2; 3 seeds]"
    assert number(claim(POINTS), HOLDS, sign=-1) == "-3.0 points [-3.2, -2.8; 3 seeds]"
    with pytest.raises(Unsupported, match=r"'a' holds: .*the sentence says it does not hold"):
        number(claim(POINTS), CONTRADICTED)
    with pytest.raises(Missing):
        number(claim({0: 0.3}), HOLDS)
    plain = Claim("a", "", "", HOLDS, 3, effect=0.5, low=0.25, high=0.75)
    assert number(plain, HOLDS) == "0.50 [0.25, 0.75; 3 seeds]"


def test_every_sentence_has_its_numbers_a_notebook_and_a_figure():
    for name, row in words("findings.csv", "name").items():
        assert (name in findings.NUMBERS) == bool(re.search(r"\{[a-z]", row["sentence"])), name
        assert (paths.ROOT / "notebooks" / f"{row['notebook']}.ipynb").exists()
        assert not row["figure"] or (paths.ROOT / f"{row['figure']}.png").exists(), name
    assert {*words("findings.csv", "name")} >= {*findings.NUMBERS}


@pytest.mark.parametrize("name", ["floor", "too small", "energies"])
def test_sentences_of_what_is_printed_need_no_runs(name):
    numbers = findings.NUMBERS[name]()
    sentence = words("findings.csv", "name")[name]["sentence"]
    assert {f for _, f, _, _ in Formatter().parse(sentence) if f} == {*numbers}
    expected = {"floor": ("points", "10.8"), "too small": ("count", 16), "energies": ("same", "1.")}
    word, value = expected[name]
    assert str(numbers[word]).startswith(str(value))


def test_what_contradicts_a_sentence_is_refused(monkeypatch):
    """FedAvg above the floor; and a factor that is not 7.6."""
    known = findings.analysis.beside_floor()
    higher = known.assign(value=known["value"] + 0.2)
    monkeypatch.setattr(findings.analysis, "beside_floor", lambda: higher)
    with pytest.raises(Unsupported, match="below the floor"):
        findings._floor()
    rows = published("001", "Table 1e").assign(value=lambda t: t["value"] + 1)
    monkeypatch.setattr(findings, "published", lambda *_: rows)
    with pytest.raises(Unsupported, match="Table 1e"):
        findings._too_small()


def test_a_number_that_is_printed_twice_is_marked_once():
    rows = published("004").set_index("row")
    again = rows[rows["repeats"] >= 0]
    assert again["table_or_figure"].value_counts().to_dict() == {"Table 2": 105, "Table 4": 6}
    first = rows.loc[again["repeats"]]
    assert first["value"].tolist() == again["value"].tolist() and first["repeats"].eq(-1).all()
    assert first["method"].tolist() == again["method"].tolist()
