"""Verdicts of two executions: rounding may move one to its boundary, and never beyond."""

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from companion.agreement import contradictions, moved, trained
from companion.claims import CLOSE, FAILS, HOLDS, UNTESTED, printed, told
from companion.notebooks import verdicts
from companion.notebooks.__main__ import main
from fedlib import paths
from papers import claims

QUICK, STORED = "Digits (quick), alpha", "CIFAR-10 (standard)"


def frame(*rows) -> pd.DataFrame:
    """Rows of where, claim, verdict; a close call is one that holds, and is not clear."""
    full = [
        (where, claim, "000", "1.0", 3, HOLDS if told == CLOSE else told, told != CLOSE)
        for where, claim, told in rows
    ]
    return pd.DataFrame(full, columns=claims.table({}).columns)


def test_what_is_printed_is_read_back(capsys):
    rows = [
        (QUICK, "a beats b", CLOSE),
        (QUICK, "  ... and c: d", UNTESTED),
        (STORED, "a", FAILS),
        (STORED, "", HOLDS),
    ]
    claims.print_verdicts(frame(*rows))
    assert printed(capsys.readouterr().out) == rows == told(frame(*rows))
    assert trained(rows) == 2


def test_a_claim_that_names_the_quick_scale_is_not_therefore_trained():
    assert contradictions([(STORED, "a (quick)", HOLDS)], [(STORED, "a (quick)", CLOSE)])


@pytest.mark.parametrize("where", [QUICK, STORED])
@pytest.mark.parametrize("old", [HOLDS, FAILS, CLOSE, UNTESTED])
@pytest.mark.parametrize("new", [HOLDS, FAILS, CLOSE, UNTESTED])
def test_only_trained_verdicts_may_come_near_their_boundary(where, old, new):
    before, after = [(where, "a", old)], [(where, "a", new)]
    near = where == QUICK and {old, new} in ({HOLDS, CLOSE}, {FAILS, CLOSE})
    assert bool(moved(before, after)) == near
    assert bool(contradictions(before, after)) == (old != new and not near)


def test_a_claim_that_only_one_tests_is_a_contradiction():
    one, both = [(QUICK, "a", HOLDS)], [(QUICK, "a", HOLDS), (QUICK, "b", CLOSE)]
    assert contradictions(one, both) == [f"{QUICK}: b was not tested"]
    assert contradictions(both, one) == [f"{QUICK}: b is tested no longer"]
    assert not moved(one, both)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Keep notebooks and figures in folders of their own, and return them."""
    found = tmp_path / "notebooks", tmp_path / "figures" / "quick"
    for name, folder in zip(
        ("NOTEBOOKS", "FIGURES"), (found[0], tmp_path / "figures"), strict=True
    ):
        monkeypatch.setenv(f"FEDLIB_{name}", str(folder))
    for folder in found:
        folder.mkdir(parents=True)
    return found


def store(folder, name, rows, capsys):
    claims.print_verdicts(frame(*rows))
    shown = new_output("stream", name="stdout", text=capsys.readouterr().out)
    cells = [
        new_code_cell("print(1)", outputs=[new_output("stream", name="stdout", text="1\n")]),
        new_code_cell("claims.print_verdicts(table)", outputs=[shown]),
    ]
    nbformat.write(new_notebook(cells=cells), folder / name)


def test_an_execution_is_compared_with_the_notebooks(folders, capsys):
    notebooks, drawn = folders
    rows = [(QUICK, str(i), HOLDS) for i in range(20)]
    store(notebooks, "07_some.ipynb", rows, capsys)
    file = drawn / "07_claims.csv"

    def outcome(new):
        frame(*new).to_csv(file, index=False)
        return main(["verdicts"]), capsys.readouterr().out

    assert outcome(rows) == (
        0,
        "20 verdicts, 20 of them on runs trained anew: 0 contradict those stored, 0 came near "
        "their boundary or left it (5% of those trained anew may): they agree\n",
    )
    one_near = [(QUICK, "0", CLOSE), *rows[1:]]
    code, said = outcome(one_near)
    assert code == 0 and "near its boundary: 07, Digits (quick), alpha: 0: was 'holds'" in said
    assert outcome([(QUICK, str(i), CLOSE) for i in range(2)] + rows[2:])[0] == 1
    code, said = outcome([(QUICK, "0", FAILS), *rows[1:]])
    assert code == 1 and "contradiction: 07, " in said and "THEY DO NOT AGREE" in said
    file.unlink()
    assert main(["verdicts"]) == 1
    assert "is tested no longer" in capsys.readouterr().out


def test_every_notebook_of_claims_prints_and_saves_them():
    """The comparison would pass over a notebook whose verdicts it cannot find."""
    found = {}
    for notebook in sorted(paths.notebooks().glob("*.ipynb")):
        sources = [c.source for c in nbformat.read(notebook, as_version=4).cells]
        if any("claims_table(" in s for s in sources):
            number = notebook.name[:2]
            assert any(f'"{number}_claims", scale)' in s for s in sources), notebook.name
            found[number] = verdicts.stored(notebook)
            tested = [told[:2] for told in found[number]]
            assert len(tested) == len(set(tested)), "two claims with one name would be one"
    assert len(found) == 16 and all(found.values())
