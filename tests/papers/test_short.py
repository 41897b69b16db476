"""What notebooks open with: sentences written by hand, whose numbers are computed."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from companion.claims import ELSEWHERE, OPEN, UNTESTED, Claim, judge
from fedlib import paths
from papers import findings, short
from papers.comparison import PROPOSED
from papers.published import words
from papers.registry import REGISTRY
from papers.scaled import FEDAVG, TUNED

ROWS = words("short.csv", "name")
WRITTEN = ("says", "found", "sure", "out", "asks")
ABOVE = {0: 0.530, 1: 0.531, 2: 0.532}


def of(gain, **more):
    other = {s: v - gain - 0.001 * s for s, v in ABOVE.items()}
    return judge("a beats b", "", ABOVE, other, **more)


def fields():
    every = (m[1] for row in ROWS.values() for k in WRITTEN for m in short.FIELD.finditer(row[k]))
    return [[part.strip() for part in field.split("|")] for field in every]


SAID = {
    0.05: "beats b by 5.1 points [4.9, 5.3; 3 seeds]",
    -0.05: "trails b by 4.9 points [4.7, 5.1; 3 seeds]",
    -0.001: "does not differ clearly from b (+0.0 points [-0.2, 0.2; 3 seeds])",
}


@pytest.mark.parametrize(("gain", "said"), SAID.items())
def test_a_number_has_a_direction_or_a_sign_and_never_both(gain, said):
    assert short.told(of(gain), "b") == said


def test_an_interval_to_one_side_that_decides_nothing_has_its_reason():
    close = replace(of(-0.05), verdict=OPEN, p=0.03)
    said = "does not differ clearly from b (-4.9 points [-5.1, -4.7; 3 seeds]"
    assert short.told(close, "b") == f"{said}; it may be chance among so many claims)"
    assert short.told(replace(close, p=0.2), "b") == f"{said})"


def test_what_was_not_trained_is_said_to_be_so():
    none = Claim("a beats b", "", "", UNTESTED, 0)
    assert short.told(none, "b") == "is not compared with b (not trained here yet)"
    assert short.short(Claim("a beats b", "", "", UNTESTED, 1)) == "too few seeds (1)"
    smaller = of(0.05, here=False)
    assert smaller.verdict == ELSEWHERE and short.short(smaller) == "+5.1 points [4.9, 5.3]"


def test_every_field_names_a_section_a_data_set_and_a_claim():
    claims = [row["claim"] for row in words("claims.csv", "paper", "name").values()]
    texts = [re.split(r"\{[^}]*\}", text) for text in claims]
    for where, *rest in fields():
        section, _, dataset = where.partition("/")
        if not dataset:
            assert where in {*findings.NUMBERS, "scorecard"}
            continue
        dataset, _, scale = dataset.partition("@")
        assert dataset in REGISTRY.sections[section].settings(scale or "standard")
        assert section in short.CLAIMS, f"papers.short.CLAIMS does not say how {section} is judged"
        if rest:
            start = re.split(r"\.\.\.|\d", rest[0])[0].strip() or "..."
            assert any(not text[0] or text[0].startswith(start) for text in texts), rest


def test_fields_of_the_leaderboard_name_a_paper_and_a_rival():
    """Their claims begin with names, and a field that names none is found only when runs are."""
    starts = [rest[0] for where, *rest in fields() if where.startswith("every_method/") and rest]
    named = [f"{paper} beats {rival}" for paper in PROPOSED for rival in (FEDAVG, TUNED)]
    assert starts and all(any(name.startswith(start) for name in named) for start in starts)


def test_every_notebook_opens_with_its_own_sentences():
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        assert f'in_short(\\"{path.name[:2]}\\")' in path.read_text(), path.name
        assert path.name[:2] in ROWS, f"papers/short.csv has no row of {path.name}"
        assert all(ROWS[path.name[:2]][k] for k in WRITTEN)
    readme = (paths.ROOT / "README.md").read_text()
    assert all(readme.count(mark) == 2 for mark in findings.MARKS)


def test_what_is_filled_into_sentences_names_its_sides():
    """ "The latter is nearer" was filled into a sentence with the sides the other way round."""
    for module in (findings, short):
        strings = [
            node.value
            for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        by_place = re.compile(r"\b(former|latter|(the )?(first|second) (one )?is)\b")
        assert not [s for s in strings if by_place.search(s)], module.__name__


def test_a_claim_that_was_not_tested_is_at_no_scale(monkeypatch):
    rows = [("holds", "(paper)"), ("not tested", "(paper)"), ("undecided", "(standard)")]
    claims = pd.DataFrame(rows, columns=["verdict", "tested on"]).assign(counted=True)
    monkeypatch.setattr(findings.scorecard, "collected", lambda: claims)
    monkeypatch.setenv("FEDLIB_FIGURES", str(paths.ROOT / "figures"))
    assert (
        findings.line().startswith("Of 2 tests") and ", 1 of them at a paper's" in findings.line()
    )


@pytest.mark.slow
def test_every_sentence_can_be_filled_and_both_pages_have_what_results_say(monkeypatch):
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    monkeypatch.setenv("FEDLIB_FIGURES", str(paths.ROOT / "figures"))
    for name in ROWS:
        assert "[[" not in findings.in_short(name).data
    readme = (paths.ROOT / "README.md").read_text()
    assert findings.written(readme) == readme
    assert findings.page() == (paths.ROOT / "docs" / "FINDINGS.md").read_text()
