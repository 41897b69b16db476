"""What was found, told: sentences by hand, what they stand on, and their length."""

import re
import shlex

import pandas as pd
import pytest

from companion import scorecard
from companion.plan import of_block, planned
from fedlib import paths
from fedrun import find_result
from papers import numbers, told
from papers.claimed import of_stored
from papers.published import words
from papers.registry import REGISTRY

OPENINGS, PAGE = words("told/openings.csv", "name"), words("told/page.csv", "name")
SENTENCES = [
    *((f"opening {name}", row) for name, row in OPENINGS.items()),
    *((f"page {name}", row) for name, row in PAGE.items()),
    *((f"believe {row['paper']}", row) for row in words("told/believe.csv").values()),
    *((f"audit {i}", row) for i, row in words("told/audits.csv").items()),
]
TEXTS = ("says", "found", "sure", "change", "out", "text", "result", "number")
# Names and settings hold digits that are no numbers of a finding.
NAMES = re.compile(r"[A-Za-z]-\d+|(Fig|Table|App|Theorem)[.s]* [\d.]+|\b\w+ = [\d.]+")
COUNTED = re.compile(r"\d[\d,]*(\.\d+)?|\.\d+")
KNOWN = [
    {"name": "rounds.4", "verdict": "holds", "effect": 7.1, "low": 3.6, "high": 10.6},
    {"name": "sized.4", "part": "K = 2", "verdict": "undecided", "effect": -1.0, "low": -3.0,
     "high": 1.0, "published": 2.0, "p": 0.2},
    {"name": "near", "verdict": "undecided", "effect": -2.1, "low": -3.7, "high": -0.5, "p": 0.03},
]  # fmt: skip


@pytest.fixture
def known(monkeypatch):
    """Two tests, in place of those that are stored."""
    rest = {"paper": "000", "part": "", "unit": "points", "seeds": 3, "relation": "smaller"}
    rest |= {"tested on": "CIFAR-10 (standard)", "measured": "so", "published": float("nan")}
    rows = pd.DataFrame([{**rest, **row} for row in KNOWN])
    monkeypatch.setattr(told, "tests", lambda: rows)
    monkeypatch.setattr(told, "verdicts", lambda: rows[rows["part"].eq("")])


FILLED = {
    "[[000 rounds.4]]": "+7.1 points [3.6, 10.6]",
    "by [[000 rounds.4 | +]]": "by 7.1 points [3.6, 10.6]",
    "[[000 sized.4, K = 2 | -]]": "1.0 points [-1.0, 3.0]",
    "[[000 rounds.4 | mean]], [[000 rounds.4|seeds]] seeds": "+7.1, 3 seeds",
    "[[000 sized.4, K = 2]]": "-1.0 points [-3.0, 1.0]",
    "[[000 sized.4, K = 2 @ CIFAR-10 | published]]": "+2.0",
    "[[000 near | mean]], [[000 near]]": "-2.1, -2.1 points [-3.7, -0.5], p = 0.03",
    "[[000 near | +]]": "-2.1 points [-3.7, -0.5], p = 0.03",
}


@pytest.mark.parametrize(("text", "expected"), FILLED.items())
def test_a_number_is_found_by_its_name(known, text, expected):
    assert told.filled(text) == expected


def test_a_published_number_that_no_paper_gives_is_refused(known):
    with pytest.raises(numbers.Unsupported, match=r"nothing is published for '000 rounds.4'"):
        told.filled("[[000 rounds.4 | published]]")


def test_a_name_of_nothing_is_refused(known):
    for name in ("000 sized.4, K = 3", "000 nothing", "000 sized.4, K = 2 @ MNIST"):
        with pytest.raises(LookupError):
            told.filled(f"[[{name}]]")


def test_a_sentence_that_is_no_longer_so_is_refused(known):
    told.supported("000 rounds.4: holds; 000 sized.4, K = 2: smaller")
    for stands in ("000 rounds.4: contradicted", "000 rounds.4: holds; 000 sized.4, K = 2: inside"):
        with pytest.raises(told.Unsupported, match="it is"):
            told.told({"stands": stands, "text": "[[000 rounds.4]]"}, "text")


def test_every_name_is_of_a_claim_or_a_number():
    said = words("claims.csv", "paper", "name")
    for where, row in SENTENCES:
        fields = [m[1] for k in TEXTS if k in row for m in told.FIELD.finditer(row[k])]
        names = [field.partition("|")[0].strip() for field in fields]
        names += [one.rpartition(": ")[0] for one in row["stands"].split("; ") if one]
        for name in names:
            claim = told._NAMED.match(name)
            assert name in numbers.NUMBERS or (claim and claim.groups()[:2] in said), (where, name)
    for row in words("told/promises.csv").values():
        assert (row["paper"], row["name"]) in said, row
        assert (paths.notebooks() / f"{row['evidence']}.ipynb").exists(), row


def test_every_notebook_opens_with_its_own_sentences():
    notebooks = sorted(paths.notebooks().glob("*.ipynb"))
    assert [path.name[:2] for path in notebooks] == [*OPENINGS]
    for path in notebooks:
        assert f'in_short(\\"{path.name[:2]}\\")' in path.read_text(), path.name
    readme = (paths.ROOT / "README.md").read_text()
    assert {*told.MARK.findall(readme)} and {m[1] for m in told.MARK.findall(readme)} <= {
        *told.PARTS
    }
    assert all(row[k] for row in OPENINGS.values() for k in ("says", "found", "sure", "change"))


def test_what_would_change_an_answer_is_a_command_or_nothing_would():
    for name, row in OPENINGS.items():
        assert re.match(r"`make .+`|Nothing", row["change"]), name


COMMANDS = {n: m for n, row in OPENINGS.items() if (m := re.match("`make (.+?)`", row["change"]))}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_of_an_opening_trains_runs_that_are_not_stored(name, monkeypatch):
    """One could not be read, and one asked for seeds that no setting has."""
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    target, *given = shlex.split(COMMANDS[name][1])
    asked = dict(one.split("=") for one in given)
    if target == "paper":
        plan = planned(REGISTRY, "paper", asked.pop("SECTIONS").split())
    else:
        blocks = {f"{block.number}": block for block in REGISTRY.blocks}
        numbers = asked.pop("BLOCKS").split() if asked else blocks
        plan = [run for number in numbers for run in of_block(REGISTRY, blocks[number])]
    assert not asked and any(find_result(run.experiment) is None for run in plan)


@pytest.fixture
def stored(monkeypatch):
    """The stored results and figures of the repository."""
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    monkeypatch.setenv("FEDLIB_FIGURES", str(paths.ROOT / "figures"))
    if not len(scorecard.collected()):
        pytest.skip("no figures are stored")


@pytest.mark.slow
def test_every_sentence_is_so_and_short_enough(stored):
    for where, row in SENTENCES:
        text = {k: told.told(row, k) for k in TEXTS if row.get(k)}
        if where.startswith("opening"):
            said = " ".join(text[k] for k in ("says", "found", "sure"))
            count = len(COUNTED.findall(NAMES.sub("", said)))
            assert len(said.split()) <= 60 and count <= 8, (where, count, said)
            assert len(text["out"].split()) <= 12, (where, text["out"])
        elif where.startswith("believe"):
            assert len(text["text"].split()) <= 80, (where, len(text["text"].split()))
        assert "[[" not in " ".join(text.values()), where


@pytest.mark.slow
def test_both_pages_have_what_results_say(stored):
    """`python -m papers.told` writes them."""
    readme = (paths.ROOT / "README.md").read_text()
    assert told.written(readme) == readme
    assert told.page() == (paths.ROOT / "docs" / "FINDINGS.md").read_text()
    assert len(told.promises()) == len(words("told/promises.csv"))
    drawn = told.promises().query("unit == 'points'")["promise"]
    assert drawn.str.len().max() <= 70, "longer names squeeze docs/figures/forest.png"
    assert not told.verdicts()["claim"].str.contains("{", regex=False).any(), "words are filled in"


@pytest.mark.slow
@pytest.mark.parametrize(("figure", "only"), [("16_promises", False), ("15_simplest", True)])
def test_figures_of_promises_have_what_the_table_has(stored, figure, only):
    """They showed verdicts and effects of a time before seeds were added."""
    _, now = told.forest(simplest=only)
    kept = pd.read_csv(paths.ROOT / "figures" / "standard" / f"{figure}.csv")
    assert kept["promise"].tolist() == now["promise"].tolist()
    assert kept["verdict"].tolist() == now["verdict"].tolist()
    assert kept[["effect", "low", "high"]].to_numpy() == pytest.approx(
        now[["effect", "low", "high"]].to_numpy(), rel=1e-4, abs=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "place"), [("mnist", "MNIST"), ("cifar10", "CIFAR-10")])
def test_the_mean_gain_of_weighted_clients_is_that_of_the_claim(stored, dataset, place):
    """The numbers of clients of equal weight thus differ from it by the weights alone."""
    claim = told.number(f"004 improves @ {place}")
    assert claim.startswith(numbers.mean_gain(dataset, weighted=True)), claim
    assert not claim.startswith(numbers.mean_gain(dataset)), claim


@pytest.mark.slow
def test_a_lead_of_the_same_sign_at_both_p_is_refused(stored, monkeypatch):
    found = numbers.NUMBERS["over p"]()
    assert found["0.2"].startswith("+4.0") and found["0.8 published"] == "+1.0"
    monkeypatch.setattr(numbers, "minus", lambda a, b: "+1.0 points [0.5, 1.5]")
    with pytest.raises(numbers.Unsupported, match="have the same sign"):
        numbers._over_p()


def test_an_effect_is_positive_if_it_is_in_the_direction_of_the_promise():
    """A promise that a difference is negative stood on the side of those that fail."""
    row = {"unit": "points", "effect": -2.0, "low": -3.0, "high": -1.0, "published": -4.0}
    lower = told._as_promised({**row, "least": float("-inf")})
    assert [lower[c] for c in ("effect", "low", "high", "published")] == [2.0, 1.0, 3.0, 4.0]
    for other in ({"least": 0.0}, {"least": float("-inf"), "unit": ""}):
        assert told._as_promised({**row, **other}) == {**row, **other}


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["paper", "standard"])
def test_verdicts_that_are_kept_are_what_stored_runs_say(scale, monkeypatch):
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    keys, said = ["tested on", "claim"], ["verdict", "seeds", "kind", "setting", "exploratory"]
    now = of_stored(scale)
    assert len(now)
    assert now["effect"].dtype == float, "else a table has all digits, and not six"
    for number, rows in now.groupby("notebook"):
        kept = pd.read_csv(paths.ROOT / "figures" / scale / f"{number}_claims.csv", dtype=str)
        both = rows.merge(kept.fillna(""), "outer", keys, suffixes=("", " kept"))
        for column in said:
            assert both[column].astype(str).tolist() == both[f"{column} kept"].tolist(), number
