"""Verdicts of two executions: rounding may move one to its boundary, and never beyond."""

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_notebook

from companion import claims
from companion.claims import (
    CLOSE,
    FAILS,
    HOLDS,
    OPEN,
    UNTESTED,
    changed,
    compare,
    told,
    trained,
)
from fedlib import paths

QUICK, STORED = "Digits (quick), alpha", "CIFAR-10 (standard)"


def frame(*rows) -> pd.DataFrame:
    """Rows of where, claim, verdict; a close call is one that holds, and is not clear."""
    full = [
        (where, claim, "000", "1.0", 3, HOLDS if told == CLOSE else told, told != CLOSE)
        for where, claim, told in rows
    ]
    return pd.DataFrame(full, columns=claims.table({}).columns)


def test_a_close_call_is_told_as_such_and_no_verdict():
    rows = [(QUICK, "a beats b", CLOSE), (QUICK, "c", UNTESTED), (STORED, "a", FAILS)]
    assert told(frame(*rows)) == rows and trained(rows) == 2


@pytest.mark.parametrize("where", [QUICK, STORED])
@pytest.mark.parametrize("old", [HOLDS, FAILS, CLOSE, UNTESTED])
@pytest.mark.parametrize("new", [HOLDS, FAILS, CLOSE, UNTESTED])
def test_only_trained_verdicts_may_come_near_their_boundary(where, old, new):
    """A claim that names the quick scale is not therefore trained."""
    wrong, near = changed([(where, "a (quick)", old)], [(where, "a (quick)", new)])
    may = where == QUICK and {old, new} in ({HOLDS, CLOSE}, {FAILS, CLOSE})
    assert bool(near) == may and bool(wrong) == (old != new and not may)


def test_a_claim_that_only_one_tests_is_a_contradiction():
    one, both = [(QUICK, "a", HOLDS)], [(QUICK, "a", HOLDS), (QUICK, "b", CLOSE)]
    assert changed(one, both) == ([f"{QUICK}: b was not tested"], [])
    assert changed(both, one) == ([f"{QUICK}: b is tested no longer"], [])


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Keep notebooks and figures in folders of their own; return them."""
    found = tmp_path / "notebooks", tmp_path / "figures" / "quick"
    monkeypatch.setenv("FEDLIB_NOTEBOOKS", str(found[0]))
    for folder in found:
        folder.mkdir(parents=True)
    return found


def execute(folders, number, rows):
    """Have a notebook of that number written its claims; return its path."""
    notebook = folders[0] / f"{number}_some.ipynb"
    nbformat.write(new_notebook(), notebook)
    frame(*rows).to_csv(folders[1] / f"{number}_claims.csv", index=False)
    return notebook


ROWS = [(QUICK, str(i), HOLDS) for i in range(20)]


def test_what_is_stored_is_what_an_execution_told(folders):
    odd = [*ROWS[:1], (STORED, 'a, "b" and c: d', CLOSE), (STORED, "x" * 99, UNTESTED)]
    for number, rows in (("07", ROWS), ("03", odd), ("09", ROWS)):
        claims.keep(execute(folders, number, rows), folders[1])
    kept = claims.stored()
    assert kept["notebook"].drop_duplicates().tolist() == ["03", "07", "09"]
    assert told(kept[kept["notebook"] == "03"]) == odd and len(kept) == 43
    assert compare(folders[1])
    (folders[0] / "09_some.ipynb").unlink()
    claims.keep(execute(folders, "07", ROWS[1:]), folders[1])
    assert claims.stored()["notebook"].value_counts().to_dict() == {"03": 3, "07": 19}


@pytest.mark.parametrize(
    ("new", "agree", "said"),
    [
        (ROWS, True, "20 verdicts, 20 of them on runs trained anew: 0 contradict those stored"),
        ([(QUICK, "0", CLOSE), *ROWS[1:]], True, f"near its boundary: 07, {QUICK}: 0: was 'holds'"),
        ([(QUICK, str(i), CLOSE) for i in range(2)] + ROWS[2:], False, "THEY DO NOT AGREE"),
        ([(QUICK, "0", FAILS), *ROWS[1:]], False, "contradiction: 07, Digits (quick), alpha: 0"),
        ([*ROWS, (STORED, "new", HOLDS)], False, f"07, {STORED}: new was not tested"),
        (None, False, "0 is tested no longer"),
    ],
    ids=["same", "one near", "two near", "turned", "one more", "not run"],
)
def test_an_execution_is_compared_with_what_is_stored(folders, capsys, new, agree, said):
    claims.keep(execute(folders, "07", ROWS), folders[1])
    if new is None:
        (folders[1] / "07_claims.csv").unlink()
    else:
        execute(folders, "07", new)
    assert compare(folders[1]) == agree and said in capsys.readouterr().out


def test_every_notebook_of_claims_saves_them_and_has_its_verdicts_stored():
    """The comparison would pass over a notebook whose verdicts it cannot find."""
    claiming = set()
    for notebook in sorted(paths.notebooks().glob("*.ipynb")):
        sources = [c.source for c in nbformat.read(notebook, as_version=4).cells]
        if any("claims_table(" in s for s in sources):
            number = notebook.name[:2]
            assert any(f'"{number}_claims", scale)' in s for s in sources), notebook.name
            claiming.add(number)
    kept = claims.stored()
    assert set(kept["notebook"]) == claiming and len(claiming) == 16
    assert not kept.duplicated(["notebook", "tested on", "claim"]).any(), "two would be one"
    assert set(kept["verdict"]) <= {HOLDS, FAILS, OPEN, UNTESTED}
