"""Many runs: processes change nothing but the time, and one failure does not stop the others."""

import dataclasses
import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from filelock import FileLock
from small import AVG, BAD, MIX, TUNED, bits, go, play, running

from fedlib import FedAvg, Local, paths, value
from fedlib.progress import SweepProgress
from fedrun import RunDiverged, compare, find_result, run_with_state, store
from fedrun import ray as cluster
from fedrun.ray import UnfitNode
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


LOCKED = """
import multiprocessing
from fedlib import FedAvg, value
from fedrun import Experiment
from fedrun.sweeps import sweep
from small import TASK

@value
class Locking(FedAvg):
    def loss(self, net, params, ctx, batch):
        global lock
        lock = multiprocessing.Lock()  # a progress bar has one
        return super().loss(net, params, ctx, batch)

if __name__ == "__main__":
    runs = [Experiment(TASK, Locking(), 1, cohort=2, seed=s) for s in range(2)]
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
    text = "from fedlib import *\nfrom fedrun import *\nfrom small import AVG, MIX\n"
    done = script(f"{text}sweep([AVG, MIX], workers=2, progress=False)")
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


@pytest.fixture
def ray(monkeypatch):
    """A Ray that runs everything here, one task at a time, in the order of asking.

    Its ``log`` hears of addresses, of what tasks need, and of every key that is handed out.
    """
    ray = MagicMock(log=(log := []))
    monkeypatch.setitem(sys.modules, "ray", ray)
    ray.exceptions.RayError = lost = type("RayError", (Exception,), {})
    ray.exceptions.RayTaskError = type("RayTaskError", (lost,), {})

    class Remote:
        def __init__(self, what):
            self.what = what

        def options(self, **needs):
            if needs["num_cpus"]:
                log.append(needs)
            return self

        def remote(self, *args):
            if isinstance(self.what, type):
                return Actor(self.what(*args))
            log.append(args[0].key)
            return Job((self.what, args))

    class Actor:
        def __init__(self, one):
            self.one = one

        def __getattr__(self, name):
            def remote(*args):
                said = getattr(self.one, name)(*args)
                return Job((lambda: said, ()))

            return types.SimpleNamespace(remote=remote)

    class Job(tuple):
        __hash__ = object.__hash__

    def get(job, timeout=None):
        """What went to another process and came back."""
        try:
            return pickle.loads(pickle.dumps(job[0](*job[1])))
        except UnfitNode as error:
            raise ray.exceptions.RayTaskError(str(error)) from error

    ray.is_initialized.return_value = False
    ray.init = lambda address, **_: log.append(address)
    ray.remote = Remote
    ray.wait = lambda jobs, num_returns, timeout: (jobs[:1], jobs[1:])
    ray.get = get
    ray.cancel = lambda job, **_: log.append("cancelled")
    ray.cluster_resources.return_value = {"CPU": 2.0}
    return ray


TUNINGS = [dataclasses.replace(TUNED, algorithm=Local(batch_size=b)) for b in (5, 10, 20)]


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_shared_first_stage_is_trained_once_and_first(ray, playing, address):
    played = []
    playing(lambda name, _: played.append(name))
    assert [r.experiment for r in go([MIX, *TUNINGS], address=address)] == [MIX, *TUNINGS]
    assert played == ["FedMix"] * 5 + ["FedAvg"] * 2 + ["Local"] * 6


def test_a_cluster_that_does_not_answer_is_an_error(ray):
    ray.init = lambda address, **_: (_ for _ in ()).throw(ConnectionError("refused"))
    with pytest.raises(RuntimeError, match="no Ray cluster answers at 'auto': refused"):
        go([AVG], address="auto")


def test_a_cluster_trains_elsewhere_and_its_files_come_back(ray, monkeypatch):
    runs = os.environ["FEDLIB_RUNS"]
    with pytest.raises(SweepFailed, match=r"(?s)1 of 4 runs failed.*RunDiverged: .* on \w"):
        go([BAD, TUNED, MIX], address="auto")
    assert ray.log[0] == "auto"
    assert ray.log[1] == {"num_cpus": 1, "num_gpus": 0, "max_retries": 0}
    assert sorted(ray.log[2:]) == sorted(e.key for e in (BAD, AVG, TUNED, MIX))
    assert os.environ["FEDLIB_RUNS"] == runs
    assert find_result(TUNED) is not None and find_result(AVG) is not None, (
        "the stage before it, too"
    )
    assert find_result(MIX) is not None and store.diverged(BAD).round == 0
    here = bits(MIX)
    monkeypatch.setenv("FEDLIB_RUNS", f"{runs}-here")
    go([MIX])
    assert bits(MIX) == here


DEVICES = [("auto", 1, "cuda"), ("auto", 0, "cpu"), ("cuda:3", 4, "cuda"), ("cpu", 4, "cpu")]


@pytest.mark.parametrize(("asked", "gpus", "device"), DEVICES)
def test_a_run_asks_for_a_gpu_where_the_cluster_has_one(ray, monkeypatch, asked, gpus, device):
    given, train = [], cluster.train_here
    ray.cluster_resources.return_value = {"CPU": 8.0, "GPU": float(gpus)}

    def on_a_cpu(experiment, packed, options, *more):
        given.append(options["device"])
        return train(experiment, packed, {**options, "device": "cpu"}, *more)

    monkeypatch.setattr(cluster, "train_here", on_a_cpu)
    sweep([AVG], device=asked, progress=False, address="auto")
    assert given == [device]
    assert ray.log[1] == {"num_cpus": 1, "num_gpus": int(device == "cuda"), "max_retries": 0}


@pytest.mark.parametrize("held", [True, False])
def test_a_machine_pins_where_the_driver_is_pinned(ray, monkeypatch, held):
    asked = []
    monkeypatch.setattr(cluster, "pinned", lambda: held)
    monkeypatch.setattr(cluster, "pin", lambda: asked.append("to pin"))
    go([AVG], address="auto")
    assert asked == ["to pin"] * held


def test_a_run_lost_three_times_fails_with_what_builds_on_it_and_the_others_finish(ray):
    get = ray.get

    def losing(job, timeout=None):
        if job[1] and job[1][0] == AVG:
            raise ray.exceptions.RayError("worker crashed")
        return get(job)

    ray.get = losing
    with pytest.raises(SweepFailed, match="4 of 5 runs failed") as caught:
        go([MIX, *TUNINGS], address="auto")
    said = "WorkerDied: its worker was lost 3 times, last by RayError: worker crashed"
    assert str(caught.value).count(said) == 4
    assert ray.log.count(AVG.key) == 3 and find_result(MIX) is not None
    assert not {e.key for e in TUNINGS} & {key for key in ray.log if isinstance(key, str)}


@pytest.mark.parametrize("place", [0, 3])
def test_few_runs_are_handed_out_at_once_and_those_that_build_on_others_in_time(ray, place):
    """With two processors four are under way; who waits for a first stage lets others pass."""
    sizes = []
    wait = ray.wait
    ray.wait = lambda jobs, **how: (sizes.append(len(jobs)), wait(jobs, **how))[1]
    o = [dataclasses.replace(AVG, seed=s) for s in range(1, 7)]
    t = TUNINGS[:2]
    go([*o[:place], AVG, *o[place:3], *t, *o[3:]], address="auto")
    expected = [*o[:3], AVG, *o[3:], *t] if place else [AVG, *o[:3], *t, *o[3:]]
    assert ray.log[2:] == [e.key for e in expected]
    assert max(sizes) == 4


def test_a_lost_run_goes_on_from_the_checkpoint_that_came_back(ray, playing, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "-1")
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_MESSAGES", -1.0)
    played = []

    def crash(_, at):
        played.append(at)
        if played == [0, 1, 2, 3]:
            raise ray.exceptions.RayError("worker crashed")

    playing(crash)
    monkeypatch.setattr(cluster, "picklable_error", lambda error: (_ for _ in ()).throw(error))
    (result,) = go([MIX], address="auto")
    assert played == [0, 1, 2, 3, 3, 4]
    assert [s["rounds"] for s in result.provenance["segments"]] == [[0, 3], [3, 5]]
    assert not list((tmp_path / "temporary").iterdir())


def test_a_machine_with_other_code_stops_the_sweep_and_is_named(ray, monkeypatch):
    codes = iter(["older", "older", *["newer"] * 9])  # of two orders, and of who takes them
    monkeypatch.setattr(cluster, "code", lambda: {"fedlib": next(codes)})
    with pytest.raises(UnfitNode, match=rf"{socket.gethostname()} has other code.*older"):
        go([AVG, MIX], address="auto")
    assert ray.log.count("cancelled") == 1 and find_result(AVG) is None


def test_first_stages_of_which_only_the_result_is_kept_are_trained_once(ray):
    export(go([AVG]), "some")
    shutil.rmtree(store.folder(AVG))
    go(TUNINGS, address="auto")
    assert ray.log[2:] == [e.key for e in (AVG, *TUNINGS)]


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
