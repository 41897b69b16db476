"""Many runs: processes change nothing but the time, and one failure does not stop the others."""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import types

import pandas as pd
import pytest
import torch
from test_experiment import AVG, MIX, TASK

from fedlib import sweep as module
from fedlib.algorithms import FedAvg, Local
from fedlib.experiment import Experiment, RunDiverged, find, store
from fedlib.optim import Optimizer
from fedlib.partition import IID
from fedlib.sweep import SweepFailed, local, sweep
from fedlib.sweep.table import Table, duration, names

running = importlib.import_module("fedlib.experiment.run")

BAD = Experiment(
    TASK, FedAvg(client=Optimizer("sgd", lr=1e30), epochs=3, batch_size=2), rounds=2, cohort=2
)
TUNED = Experiment(TASK, Local(batch_size=5), 2, cohort=2, evaluate_every=2, after=AVG)


def go(experiments, workers=1, **options):
    return sweep(experiments, workers=workers, device="cpu", progress=False, **options)


def snapshot(experiment):
    kept = store.restore(experiment)
    return kept.state.flat(), kept.metrics


def test_two_processes_equal_one_and_report_what_failed(tmp_path, monkeypatch, capfd):
    with pytest.raises(SweepFailed, match=r"1 of 3 runs failed") as caught:
        go([BAD, AVG, MIX], workers=2)
    said = str(caught.value)
    assert f"{BAD}\n  key {BAD.key}: RunDiverged: round 0: the loss of client" in said
    assert isinstance(caught.value.__cause__, RunDiverged)
    assert caught.value.__cause__.clients and caught.value.__cause__.round == 0
    assert capfd.readouterr().err == ""
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
    with pytest.raises(SweepFailed, match="RunDiverged") as caught:
        go([BAD, AVG])
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert find(AVG) is not None and find(BAD) is None


def test_a_killed_worker_takes_only_its_own_run(monkeypatch):
    """A worker is killed when its first round is heard of; the others finish."""
    victims = [AVG, dataclasses.replace(AVG, seed=1), dataclasses.replace(AVG, seed=2)]
    killed = []
    listen = local._Worker.listen

    def murder(worker, table, failures):
        if not killed:
            killed.append(worker._experiment)
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
            while worker.pipe.poll():
                try:
                    worker.pipe.recv()
                except EOFError:
                    break
        return listen(worker, table, failures)

    monkeypatch.setattr(local._Worker, "listen", murder)
    with pytest.raises(SweepFailed, match=r"WorkerDied: its process ended \(signal SIGKILL, perh"):
        go(victims, workers=2)
    assert [find(e) is None for e in victims] == [e in killed for e in victims]
    assert len(killed) == 1


def test_an_interrupted_sweep_says_how_far_it_came_and_continues(monkeypatch):
    play = running.play_round

    def stopping(algorithm, *args, **kwargs):
        if kwargs["round"] == 3:
            raise KeyboardInterrupt
        return play(algorithm, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(running, "play_round", stopping)
        with pytest.raises(KeyboardInterrupt, match=r"1 of 2 runs are done.*the same call contin"):
            go([AVG, MIX])
    assert find(AVG) is not None and store.restore(MIX).completed == 3
    assert len(go([AVG, MIX])) == 2


def test_a_run_asked_for_twice_is_trained_once(monkeypatch):
    asked = []

    def counted(experiment, plain=local.run, **kwargs):
        asked.append(find(experiment) is None)
        return plain(experiment, **kwargs)

    monkeypatch.setattr(local, "run", counted)
    results = go([AVG, dataclasses.replace(AVG), AVG])
    assert len(results) == 3 and asked == [True]
    assert all(r.provenance == results[0].provenance for r in results)


def test_no_runs_are_no_results():
    assert go([]) == [] == go([], workers=3)


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_an_error(workers):
    with pytest.raises(ValueError, match=f"workers must be >= 1, got {workers}"):
        go([AVG], workers=workers)


def fake_ray(log):
    """A Ray that runs everything here, one task at a time, in the order of asking."""
    ray = types.ModuleType("ray")

    class Remote:
        def __init__(self, function):
            self.function = function

        def options(self, **needs):
            log.append(needs)
            return self

        def remote(self, *args):
            return Job((self.function, args))

    class Job(tuple):
        __hash__ = object.__hash__

    ray.is_initialized = lambda: False
    ray.init = lambda address: log.append(address)
    ray.remote = Remote
    ray.wait = lambda jobs, num_returns, timeout: (jobs[:1], jobs[1:])
    ray.get = lambda job: job[0](*job[1])
    ray.cancel = lambda job: None
    return ray


TUNINGS = [dataclasses.replace(TUNED, algorithm=Local(batch_size=b)) for b in (5, 10, 20)]


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_shared_first_stage_is_trained_once_and_first(monkeypatch, address):
    monkeypatch.setitem(sys.modules, "ray", fake_ray([]))
    played, play = [], running.play_round

    def count(algorithm, *args, **kwargs):
        played.append(type(algorithm).__name__)
        return play(algorithm, *args, **kwargs)

    monkeypatch.setattr(running, "play_round", count)
    assert [r.experiment for r in go([MIX, *TUNINGS], address=address)] == [MIX, *TUNINGS]
    assert played == ["FedAvg"] * 2 + ["FedMix"] * 5 + ["Local"] * 6


def test_a_cluster_that_does_not_answer_is_an_error(monkeypatch):
    ray = fake_ray([])
    ray.init = lambda address: (_ for _ in ()).throw(ConnectionError("refused"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RuntimeError, match="no Ray cluster answers at 'ray://x': refused"):
        go([AVG], address="ray://x")


class Pipe:
    """One end, at which something is said."""

    def __init__(self, said):
        self.said, self.sent = said, []

    def recv(self):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def send(self, message):
        self.sent.append(message)


def test_a_worker_says_that_it_knows_no_class_of_a_notebook():
    kind, error = local._answer(Pipe(AttributeError("Can't get attribute 'Mine'")), {})
    assert kind == "failed" and "'Mine'. A worker knows no class of a notebook" in str(error)


def test_a_worker_tells_the_beginning_of_both_stages_and_every_end():
    pipe = Pipe(TUNED)
    assert local._answer(pipe, {"device": "cpu"}) == ("done", None)
    said = [message[:2] for _, message in pipe.sent]
    assert [m for m in said if m != (1, 2)] == [(0, 2), (2, 2), (0, 2), (2, 2)]


def test_what_is_started_deaf_never_hears_of_ctrl_c():
    look = "import signal as s, sys; sys.exit(s.SIGINT in s.pthread_sigmask(s.SIG_BLOCK, []))"
    with local._deaf_to_ctrl_c():
        deaf = subprocess.run([sys.executable, "-c", look], timeout=300)
    hearing = subprocess.run([sys.executable, "-c", look], timeout=300)
    assert (deaf.returncode, hearing.returncode) == (1, 0)


class Twofold(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_an_error_reaches_another_process_with_the_place_that_it_came_from():
    foreign = type("Foreign", (Exception,), {"__module__": "__main__"})
    for error, same in ((ValueError("no"), True), (Twofold(1, 2), False), (foreign("no"), False)):
        try:
            raise error
        except Exception as caught:
            sent = pickle.loads(pickle.dumps(local.sendable(caught)))
        assert (type(sent) is type(error)) == same and str(error) in str(sent)
        assert "test_sweep.py" in sent.__notes__[0]


def test_a_table_never_scrolls_a_terminal(monkeypatch):
    many = [dataclasses.replace(AVG, seed=s) for s in range(40)]
    table = Table(many, show=False)
    for experiment in many:
        table.start(experiment)
        table.round(experiment, 0, 2, float("nan"))
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((60, 12)))
    table._live = True
    table.draw()
    drawn = err.getvalue().split("\x1b[J")[-1].splitlines()
    assert len(drawn) == 11 and "more" in drawn[-2] and all(len(line) < 60 for line in drawn)


def test_a_cluster_trains_elsewhere_and_its_files_come_back(monkeypatch):
    log = []
    monkeypatch.setitem(sys.modules, "ray", fake_ray(log))
    runs = os.environ["FEDLIB_RUNS"]
    with pytest.raises(SweepFailed, match="1 of 3 runs failed"):
        go([BAD, TUNED, MIX], address="ray://head:10001")
    assert log == ["ray://head:10001", {"num_cpus": 1, "num_gpus": 0}]
    assert os.environ["FEDLIB_RUNS"] == runs
    assert find(TUNED) is not None and find(AVG) is not None, "the first stage comes back, too"
    assert find(MIX) is not None and store.failure(BAD)["round"] == 0
    here = snapshot(MIX)
    monkeypatch.setenv("FEDLIB_RUNS", f"{runs}-here")
    go([MIX])
    assert all(torch.equal(here[0][n], t) for n, t in snapshot(MIX)[0].items())


def test_a_cluster_without_ray_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r'pip install "fedlib\[ray\]"'):
        go([AVG], address="auto")


def test_the_table_says_who_is_where():
    table = Table([AVG, MIX, BAD], show=False)
    table.start(AVG)
    table.round(AVG, 1, 2, 2.25)
    table.start(MIX)
    table.fail(MIX, ValueError("no"))
    head, row, summary = table.lines()
    assert head.split() == ["key", "round", "loss", "left", "seed", "run"]
    assert row.split()[:3] == [AVG.key[:8], "1/2", "2.25"] and " 0  digits FedAvg(" in row
    assert summary.startswith("0 of 3 runs done, 1 running, 1 waiting, 1 failed")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "expected"),
    [
        (Terminal, "0", "\x1b[J"),
        (io.StringIO, "0", f"[1/1] {AVG.key} digits FedAvg, seed 0: done"),
        (Terminal, "1", None),
        (io.StringIO, "1", None),
    ],
)
def test_a_terminal_is_redrawn_a_log_gets_lines_and_quiet_is_quiet(
    monkeypatch, stream, quiet, expected
):
    monkeypatch.setenv("FEDLIB_QUIET", quiet)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    err = stream()
    monkeypatch.setattr(sys, "stderr", err)
    sweep([AVG], device="cpu")
    said = err.getvalue()
    assert (expected in said) if expected else said == ""
    if expected and stream is io.StringIO:
        assert len(said.splitlines()) == 2 and "\x1b" not in said


def test_names_tell_runs_apart():
    wide = dataclasses.replace(AVG, task=dataclasses.replace(TASK, partition=IID(clients=6)))
    slow = dataclasses.replace(AVG, algorithm=FedAvg(epochs=2))
    said = names([AVG, slow, MIX])
    assert said[AVG.key] == "digits FedAvg(epochs=1)"
    assert said[slow.key] == "digits FedAvg(epochs=2)" and said[MIX.key] == "digits FedMix"
    assert names([AVG, wide])[wide.key] == "digits IID FedAvg"


def test_durations_are_words():
    said = [duration(s) for s in (float("nan"), 0, 89, 300, 7200)]
    assert said == ["", "0 s", "89 s", "5 min", "2.0 h"]


def test_the_module_keeps_its_names():
    assert set(module.__all__) == {"SweepFailed", "sweep"}
