"""What makes trouble must make it: children die, deadlines end, and broken promises are told."""

import os
import signal
import time

import pytest

from benchmarks.robustness import child, files, fuzz, odd, rivals, tiny
from benchmarks.robustness.plan import Plan, Row
from fedrun import StoreError


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
@pytest.mark.parametrize("part", [rivals, files, odd], ids=lambda m: m.__name__)
def test_few_of_its_cases_break_no_promise(part, tmp_path):
    """An argument of `trace` was gone, and a sweep's workers had become pools: nobody noticed."""
    plan = Plan(kills=1, cases=1, seed=0, folder=tmp_path)
    tiny.warm(plan.place("warm"))  # else every child imports what a run needs
    rows = part.measure(plan)
    assert all(row.times and not row.broken for row in rows), [row.broken for row in rows]


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
