"""What makes trouble must make it: children die, deadlines end, and broken promises are told."""

import os
import signal
import time

import pytest

from benchmarks.robustness import __main__ as command
from benchmarks.robustness import child, fuzz, odd, tiny
from benchmarks.robustness.known import FOUND, HOW, UNPROTECTED
from benchmarks.robustness.plan import Plan, Row
from benchmarks.robustness.report import Part, written
from fedlib.runs import StoreError


@pytest.mark.slow
def test_a_child_says_what_it_returned_raised_or_died_of():
    assert child.call(lambda: {"a": [1]}) == (0, {"a": [1]}, "")
    assert child.call(lambda: 1 / 0) == (1, None, "ZeroDivisionError: division by zero")
    assert child.call(lambda: os.kill(os.getpid(), signal.SIGKILL)).killed
    slow = child.Child(lambda: time.sleep(600))
    slow.kill(after=0.01)
    assert slow.wait().killed
    assert child.call(lambda: time.sleep(600), seconds=0.1).error == "hung for 0 s"


@pytest.mark.slow
def test_a_child_dies_before_it_touches_a_file_for_the_nth_time(tmp_path):
    def act():
        for name in "abc":
            (tmp_path / name).write_text(name)

    assert child.touches(act) == 3
    for path in tmp_path.iterdir():
        path.unlink()
    assert child.call(child.dying_at(3, act)).killed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.slow
def test_fuzzing_goes_on_after_a_crash_and_tells_of_everything(tmp_path):
    def act(case):
        if case == "crash":
            os.kill(os.getpid(), signal.SIGUSR1)
        if case == "code":
            os.system("true")
        if case == "foreign":
            return {}["x"]
        if case == "ours":
            raise StoreError("cannot write")
        return "fine"

    row = Row("fuzz")
    with tiny.home(tmp_path):
        fuzz.every(row, ["a", "crash", "ours", "foreign", "b", "code"], act)
    assert row.outcomes == {"fine": 2, "clear error": 1, "BROKEN": 3} and row.times == 6
    assert [said.split()[0] for said in row.broken] == ["SIGUSR1:", "KeyError", "code"]


# Not a set: workers collect the same tests in the same order.
def test_the_report_counts_and_says_what_broke_and_a_plan_draws_the_same_again(tmp_path):
    row = Row("kills")
    for outcome in ("killed", "killed", "done before the kill"):
        row.note(outcome)
    row.check(True, "same bits")
    row.check(False, "no litter", "left: <a|b>")
    said = written([Part("storms", "Killed runs", [row], 60.0)], 3, 4, 5)
    assert "| kills | 3 | 2 killed, 1 done before the kill; 1 same bits | 1 |" in said
    assert "3 cases in 1 minutes, among them 2 processes that were killed" in said
    assert "**Promises broken: 1.**" in said and "left: &lt;a\\|b>" in said
    assert all(text in said for text in (*FOUND, *UNPROTECTED, HOW["storms"]))
    assert set(HOW) == set(command.KINDS)
    plan = Plan(1, 1, 0, tmp_path)
    assert plan.rng("a").random() == plan.rng("a").random() != plan.rng("b").random()


@pytest.mark.slow
def test_the_command_measures_what_it_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDLIB_BUILD", str(tmp_path))
    monkeypatch.setattr(tiny, "warm", lambda folder: None)
    monkeypatch.setattr(odd, "ODD", {"one client only": [[0, 1, 2]]})
    monkeypatch.setattr(odd, "every_algorithm", lambda: {"FedMix": tiny.MIX.algorithm})
    assert command.main(["--only", "odd"]) == 0
    assert "odd clients: one client only: 1 times: 1 two rounds" in capsys.readouterr().out
    assert "## Odd clients" in (tmp_path / "robustness.md").read_text()
    monkeypatch.setattr(odd, "judged", lambda algorithm, fed: "!a loss is not finite")
    assert command.main(["--only", "odd"]) == 1
    assert "BROKEN: FedMix: a loss is not finite" in capsys.readouterr().out
