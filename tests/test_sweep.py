"""Many runs: processes change nothing but the time, and one failure does not stop the others."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch
from test_experiment import AVG, MIX, TASK

from fedlib import sweep as module
from fedlib.algorithms import FedAvg
from fedlib.experiment import Experiment, find, store
from fedlib.optim import Optimizer
from fedlib.sweep import SweepFailed, sweep

BAD = Experiment(
    TASK, FedAvg(client=Optimizer("sgd", lr=1e30), epochs=3, batch_size=2), rounds=2, cohort=2
)


def go(experiments, workers=1):
    return sweep(experiments, workers=workers, device="cpu", progress=False)


def snapshot(experiment):
    state, _, metrics = store.restore(experiment)
    return state.flat(), metrics


def test_two_processes_equal_one_and_report_what_failed(tmp_path, monkeypatch, capsys):
    with pytest.raises(SweepFailed, match=r"lr=1e\+30.*: TrainingDiverged: round 0: the loss of"):
        go([BAD, AVG, MIX], workers=2)
    assert "failed: Experiment(" in capsys.readouterr().err
    assert find(BAD) is None
    two = {e: snapshot(e) for e in (AVG, MIX)}
    assert [r.experiment for r in go([MIX, AVG, MIX], workers=2)] == [MIX, AVG, MIX]
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "alone"))
    for result in go([AVG, MIX]):
        state, metrics = snapshot(result.experiment)
        there, others = two[result.experiment]
        assert state.keys() == there.keys()
        assert all(torch.equal(state[n], there[n]) for n in state)
        pd.testing.assert_frame_equal(metrics, others, check_exact=True)


def test_one_worker_also_finishes_the_others_and_keeps_the_cause():
    with pytest.raises(SweepFailed, match="TrainingDiverged") as caught:
        go([BAD, AVG])
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert find(AVG) is not None and find(BAD) is None


def test_a_run_asked_for_twice_is_trained_once(monkeypatch):
    asked = []

    def counted(experiment, plain=module.run, **kwargs):
        asked.append(find(experiment) is None)
        return plain(experiment, **kwargs)

    monkeypatch.setattr(module, "run", counted)
    results = go([AVG, dataclasses.replace(AVG), AVG])
    assert len(results) == 3 and sum(asked) == 1
    assert all(r.provenance == results[0].provenance for r in results)


def test_no_runs_are_no_results():
    assert go([]) == [] == go([], workers=3)


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_an_error(workers):
    with pytest.raises(ValueError, match=f"workers must be >= 1, got {workers}"):
        go([AVG], workers=workers)
