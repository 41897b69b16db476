"""`make gpu`: its measurements, tried on a CPU, and its report, which its tables make."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch  # noqa: F401  # a condition asks it

from benchmarks import __main__ as benchmarks_main
from benchmarks import gpu, graphs
from benchmarks.cases import CASES
from benchmarks.determinism.subjects import subjects
from fedlib import processor
from papers.registry import REGISTRY, hours_of


def test_the_report_is_what_its_tables_make():
    assert (gpu.KEPT.parent / "GPU.md").read_text() == gpu.text()


def test_a_device_that_is_the_cpu_has_its_bits(tmp_path):
    rows = gpu.bits(subjects()[0], "cpu", tmp_path)
    assert [row["way"] for row in rows] == [gpu.GPU, gpu.AGAIN, gpu.TF32]
    assert all(row["same"] and row["relative"] == 0 for row in rows)


@pytest.mark.parametrize("part", ["adaptive:digits", "private_parts:digits"])
def test_every_algorithm_of_a_part_is_timed_by_a_few_rounds(part):
    """One of each algorithm; there are several lengths and inner algorithms of some."""
    kinds = gpu.kinds(part, "quick")
    each = {type(one.algorithm): (one, runs) for one, runs in kinds}
    found = pd.DataFrame(gpu.cost((part, *kind), "cpu") for kind in each.values())
    assert len(kinds) == len({tuple(gpu._kind(one).items()) for one, _ in kinds}) > len(each) >= 3
    assert found["seconds"].ge(0).all() and found["runs"].ge(1).all()


def test_a_run_of_one_round_is_timed_by_its_epochs(monkeypatch):
    """Three epochs in 6 seconds are 2 seconds each; ten rounds have a scored one in five."""
    local, rounds = (
        next(e for e, _ in gpu.kinds("adaptive:digits", "quick") if (e.rounds > 1) == many)
        for many in (False, True)
    )
    monkeypatch.setattr(gpu, "_federation", lambda *_: None)
    monkeypatch.setattr(gpu, "initial_state", lambda *_: None)
    monkeypatch.setattr(gpu, "_timed", lambda *_: iter([6.0]))
    assert local.algorithm.epochs == 40 and gpu.seconds_of(local, "cpu") == 6 * 40 / 3
    monkeypatch.setattr(gpu, "_timed", lambda *_: iter([9.0, 1.0, 3.0, 5.0]))
    assert (rounds.rounds, rounds.evaluate_every) == (30, 5)
    assert gpu.seconds_of(rounds, "cpu") == 30 * 2 + 6 * 3


def test_what_fails_is_no_time(capsys, monkeypatch):
    def none(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu, "seconds_of", none)
    of = gpu.kinds("adaptive:digits", "quick")[0]
    assert np.isnan(gpu.cost(("adaptive:digits", *of), "cpu")["seconds"])
    assert "out of memory" in capsys.readouterr().out


@pytest.mark.skipif("torch.cuda.is_available()", reason="there is a CUDA device")
@pytest.mark.parametrize("of", [gpu, benchmarks_main])
def test_a_device_that_is_not_there_is_one_line(of, capsys):
    with pytest.raises(SystemExit):
        of.main(["--device", "cuda"])
    assert capsys.readouterr().err.strip().endswith("torch finds no CUDA device")


def test_hours_of_a_part_fill_what_was_not_timed():
    """By hand: 2 runs of 7200 s and 4 that count as them, two at a time."""
    costs = pd.DataFrame({"runs": [2, 4], "seconds": [7200.0, np.nan], "jobs": [2, 2]})
    assert hours_of(costs) == 6.0
    assert {*REGISTRY.gpu_hours} == {*gpu.PARTS}


def test_both_ways_of_a_step_are_measured_once_and_told(monkeypatch, tmp_path, capsys):
    """On a CPU both train kernel by kernel: no distance, and what is in the table stays."""
    monkeypatch.setattr(graphs.report, "folder", lambda keep: tmp_path)
    monkeypatch.setattr(graphs.fresh, "call", lambda act, *args: act(*args))
    small = replace(CASES["F"], clients=4, size=20, cohort=2)
    monkeypatch.setattr(graphs, "cases", lambda: {"F": small})
    monkeypatch.setenv(processor.GRAPHS, "0")
    for _ in range(2):
        graphs.main(["--device", "cpu", "--rounds", "1"])
    table = pd.read_csv(tmp_path / "gpu" / "graphs.csv")
    assert table["way"].tolist() == [*graphs.WAYS]
    assert table["distance"].tolist() == [0, 0]
    said = capsys.readouterr().out
    assert said.count("is in") == 1
    assert said.count(small.title) == 2


def test_every_case_of_graphs_has_an_algorithm_that_a_graph_may_train():
    for name, case in graphs.cases().items():
        assert all(p.optimizer.is_functional for p in case.algorithm.phases()), name
