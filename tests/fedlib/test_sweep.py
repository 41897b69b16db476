"""Many runs: processes change nothing but the time, and one failure does not stop the others."""

import dataclasses
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from filelock import FileLock
from small import AVG, BAD, MIX, TUNED, bits, go, interrupted, play, running

from fedlib import FedAvg, Local, paths, value
from fedlib.parallel import delay_keyboard_interrupt
from fedlib.progress import SweepProgress
from fedrun import RunDiverged, compare, find_result, run_with_state, store
from fedrun import ray as cluster
from fedrun.ray import device_for
from fedrun.results import export
from fedrun.sweeps import SweepFailed, sweep

pytestmark = pytest.mark.slow


@pytest.fixture
def playing(monkeypatch):
    """Call something with the algorithm and the round before every round that is played."""

    def playing(act, play=running.play_round):
        def acting(algorithm, *args, **kwargs):
            act(type(algorithm).__name__, kwargs["round"])
            return play(algorithm, *args, **kwargs)

        monkeypatch.setattr(running, "play_round", acting)

    return playing


def test_a_sweep_of_one_experiment_is_a_list_of_one_and_knows_its_own_arguments():
    assert [result.experiment for result in sweep(AVG, progress=False)] == [AVG]
    with pytest.raises(TypeError, match=r"^sweep\(\) got an unexpected keyword argument 'wrokers'"):
        sweep([AVG], wrokers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_equal_one_and_report_what_failed(tmp_path, monkeypatch, capfd, workers):
    with pytest.raises(SweepFailed, match=r"1 of 3 runs failed") as caught:
        go([BAD, AVG, MIX], workers=workers)
    said, cause = str(caught.value), caught.value.__cause__
    assert f"{BAD}\n  key {BAD.key}: RunDiverged: round 0: the loss of client" in said
    assert isinstance(cause, RunDiverged) and cause.clients and cause.round == 0
    assert capfd.readouterr().err == "" and find_result(BAD) is None
    found = {e: bits(e) for e in (AVG, MIX)}
    assert [r.experiment for r in go([MIX, AVG, MIX], workers=workers)] == [MIX, AVG, MIX]
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "alone"))
    assert all(bits(play(e).experiment) == found[e] for e in (AVG, MIX))


@value
class Dying(FedAvg):
    """Its first step ends the process."""

    def loss(self, net, params, ctx, batch):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_takes_only_its_own_run():
    """`make robust` counts kills of workers, of their parent, and of all."""
    victim, others = dataclasses.replace(AVG, algorithm=Dying()), [AVG, MIX]
    with pytest.raises(SweepFailed, match=r"1 of 3 .*(?s:.*)WorkerDied: its process ended"):
        go([victim, *others], workers=2)
    assert find_result(victim) is None and all(find_result(e) for e in others)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_keeps_the_rounds_of_its_running_experiments(monkeypatch, workers):
    """Its workers were killed, and what they had trained since the last checkpoint was lost."""
    runs = [dataclasses.replace(e, rounds=20_000, evaluate_every=0) for e in (AVG, MIX)][:workers]
    done, told = {}, SweepProgress.round

    def press(self, key, at, *rest):
        told(self, key, at, *rest)
        done[key] = at
        if len(done) == workers and min(done.values()) > 2 and not done.get("pressed"):
            done["pressed"] = True
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGINT)  # as a terminal does
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SweepProgress, "round", press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=f"0 of {workers} .*; the same call continues"):
            go(runs, workers=workers)
    finally:
        signal.signal(signal.SIGINT, before)
    for e in runs:
        assert store.RunFolder(e).restore().completed >= done[e.key]


def test_one_ctrl_c_that_comes_as_two_signals_is_one():
    """In a worker of several threads SIGINT is not blocked; with SIGTERM it ended runs at once."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with delay_keyboard_interrupt(True) as pressed:
            handler = signal.getsignal(signal.SIGINT)
            handler(signal.SIGINT, None)
            handler(signal.SIGTERM, None)
            assert pressed()
            with pytest.raises(KeyboardInterrupt):
                handler(signal.SIGINT, None)
    finally:
        signal.signal(signal.SIGINT, before)


class FakeRay:
    """The names of Ray that a driver uses, on this machine; Ctrl-C is pressed after one run."""

    exceptions, ended, cancelled = SimpleNamespace(RayError=OSError, RayTaskError=OSError), 0, ()
    cluster_resources, options = staticmethod(lambda: {"CPU": 1}), lambda self, **how: self

    def remote(self, *args):
        return self if args == (cluster.train_here,) else partial(cluster.train_here, *args)

    def wait(self, jobs, **how):
        if self.ended == 1:
            self.ended = 2
            raise KeyboardInterrupt
        self.ended += 1
        return jobs[:1], jobs[1:]

    def get(self, job):
        return job()

    def cancel(self, job, force):
        self.cancelled += (job.args[0].key,)


def test_ctrl_c_on_a_cluster_tells_what_ended_and_the_same_call_continues(monkeypatch):
    ray, queue = FakeRay(), mock.MagicMock(**{"get_nowait_batch.return_value": []})
    queue.Queue.return_value = queue
    monkeypatch.setattr(cluster, "connected", lambda address: ray)
    monkeypatch.setattr(cluster, "import_module", lambda name: queue)
    told = "1 of 2 runs ended, others stored the last checkpoint that they sent; the same call cont"
    with pytest.raises(KeyboardInterrupt, match=told):
        go([AVG, MIX], address="auto")
    assert find_result(AVG) and not find_result(MIX) and ray.cancelled == (MIX.key,)
    queue.shutdown.assert_called_once()
    assert [result.experiment for result in go([AVG, MIX], address="auto")] == [AVG, MIX]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("every", "sends"), [("300", False), ("-1", True)])
def test_a_worker_of_a_cluster_sends_files_once_it_has_a_new_checkpoint(
    monkeypatch, every, sends, stored
):
    """Its spec was sent, too, and a run whose workers always die never failed."""
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_MESSAGES", 0.0)
    if stored:
        interrupted(MIX, 2)
    driver = {"code": cluster.code(), "pinned": False, "every": every, "queue": mock.MagicMock()}
    _, error = cluster.train_here(MIX, [store.RunFolder(MIX).pack()], {"device": "cpu"}, driver)
    sent = [message.args[0][2] for message in driver["queue"].put_nowait.call_args_list]
    assert error is None and len(sent) > 2 and any(sent) == sends


LOCKED = """
import multiprocessing
from fedlib import FedAvg, value
from fedrun import Experiment, sweep, tiny

@value
class Locking(FedAvg):
    def loss(self, net, params, ctx, batch):
        global lock
        lock = multiprocessing.Lock()  # a progress bar has one
        return super().loss(net, params, ctx, batch)

if __name__ == "__main__":
    runs = [Experiment(tiny.task, Locking(), 1, cohort=2, seed=s) for s in range(2)]
    sweep(runs, workers=2, progress=False)
"""


@pytest.fixture
def script(tmp_path):
    """Run a script, which workers can import, as a process of its own."""

    def script(text):
        (tmp_path / "script.py").write_text(text)
        here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        how = {"env": os.environ | {"PYTHONPATH": here}, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, tmp_path / "script.py"], **how)

    return script


def test_idle_workers_give_back_what_they_hold(script):
    """They were killed, and Python warned of a leaked semaphore after every campaign."""
    done = script(LOCKED)
    assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr


def test_a_script_that_its_workers_would_do_again_is_told_so(script):
    """The error of every run said that memory ran out."""
    text = "from dataclasses import replace\nfrom fedrun import sweep, tiny\n"
    done = script(f"{text}sweep([tiny, replace(tiny, seed=1)], workers=2, progress=False)")
    words = 'its process ended, possibly because the script has no if __name__ == "__main__":'
    assert done.returncode and words in done.stderr, done.stderr


def test_a_run_asked_for_twice_is_trained_once(playing):
    played = []
    playing(lambda *told: played.append(told))
    results = go([AVG, dataclasses.replace(AVG), AVG])
    assert len(results) == 3 and played == [("FedAvg", 0), ("FedAvg", 1)]
    assert all(r.provenance == results[0].provenance for r in results)


def test_a_generator_is_as_good_as_a_list():
    """It was read once, to train: the results of none of them came back."""
    seeds = [dataclasses.replace(AVG, seed=s) for s in range(2)]
    assert [r.experiment for r in go(e for e in seeds)] == seeds
    runs = {"mine": [find_result(e) for e in seeds]}
    assert str(compare({"mine": iter(runs["mine"])})) == str(compare(runs))
    told = []
    run_with_state(MIX, progress=False, callbacks=iter([lambda m: told.append(m.round)]))
    assert told == [0, 1, 2, 3, 4, 5]


def test_a_run_that_somebody_else_trains_comes_last(playing):
    """A second sweep on a store waited for every run of the first, and took no other."""
    other, played = FileLock(paths.runs() / f"{AVG.key}.lock"), []

    def act(name, round):
        played.append((name, round))
        other.release(force=True)

    paths.runs().mkdir(parents=True, exist_ok=True)
    other.acquire()
    playing(act)
    go([AVG, MIX])
    assert [*dict.fromkeys(name for name, _ in played)] == ["FedMix", "FedAvg"]


TUNINGS = [dataclasses.replace(TUNED, algorithm=Local(batch_size=b)) for b in (5, 10, 20)]


@pytest.mark.parametrize("kept", ["nothing", "its result"])
def test_a_shared_first_stage_is_trained_once_and_first(playing, kept):
    """Also where of the first stage only the result is stored, which has no state."""
    if kept == "its result":
        export(go([AVG]), "some")
        shutil.rmtree(store.folder(AVG))
    played = []
    playing(lambda name, _: played.append(name))
    assert [r.experiment for r in go([MIX, *TUNINGS])] == [MIX, *TUNINGS]
    assert played == ["FedMix"] * 5 + ["FedAvg"] * 2 + ["Local"] * 6


DEVICES = [("auto", 1, "cuda"), ("auto", 0, "cpu"), ("cuda:3", 4, "cuda"), ("cpu", 4, "cpu")]


@pytest.mark.parametrize(("asked", "gpus", "device"), DEVICES)
def test_a_run_asks_for_a_gpu_where_the_cluster_has_one(asked, gpus, device):
    assert device_for(asked, {"CPU": 8.0, "GPU": float(gpus)}) == device


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_says_how_far_and_what_was_heard_last(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stderr", err := Terminal())
    with SweepProgress({"a" * 16: "one", "b" * 16: "two"}) as tally:
        tally.end("b" * 16, ValueError("no"))
        tally.round("a" * 16, 4, 9, 2.25, "on node-7")
    said = err.getvalue()
    assert "runs done, 1 failed:  50%" in said and "1/2" in said
    assert "aaaaaaaa 4/9 loss 2.25 on node-7" in said
