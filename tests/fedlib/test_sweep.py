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

from fedlib.algorithms import Local
from fedlib.data import DatasetError
from fedlib.progress import Table, duration
from fedlib.runs import RunDiverged, StoreError, cluster, export, find, store
from fedlib.runs import sweep as module
from fedlib.runs.cluster import UnfitNode
from fedlib.runs.sweep import SweepFailed, sweep

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


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_equal_one_and_report_what_failed(tmp_path, monkeypatch, capfd, workers):
    with pytest.raises(SweepFailed, match=r"1 of 3 runs failed") as caught:
        go([BAD, AVG, MIX], workers=workers)
    said, cause = str(caught.value), caught.value.__cause__
    assert f"{BAD}\n  key {BAD.key}: RunDiverged: round 0: the loss of client" in said
    assert isinstance(cause, RunDiverged) and cause.clients and cause.round == 0
    assert capfd.readouterr().err == "" and find(BAD) is None
    found = {e: bits(e) for e in (AVG, MIX)}
    assert [r.experiment for r in go([MIX, AVG, MIX], workers=workers)] == [MIX, AVG, MIX]
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "alone"))
    assert all(bits(play(e).experiment) == found[e] for e in (AVG, MIX))


def test_a_killed_worker_takes_only_its_own_run(monkeypatch):
    """A worker is killed when its first round is heard of; the others finish."""
    victims = [AVG, dataclasses.replace(AVG, seed=1), dataclasses.replace(AVG, seed=2)]
    killed, listen = [], module.Processes._listen

    def murder(team, worker):
        if not killed:
            killed.append(worker.experiment)
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
            while worker.pipe.poll():
                try:
                    worker.pipe.recv()
                except EOFError:
                    break
        return listen(team, worker)

    monkeypatch.setattr(module.Processes, "_listen", murder)
    with pytest.raises(SweepFailed, match=r"WorkerDied: its process ended \(signal SIGKILL, perh"):
        go(victims, workers=2)
    assert [find(e) is None for e in victims] == [e in killed for e in victims]
    assert len(killed) == 1


def test_an_interrupted_sweep_says_how_far_it_came_and_continues(playing):
    def stop(_, at):
        if at == 3 and store.restore(MIX) is None:
            raise KeyboardInterrupt

    playing(stop)
    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 runs are done.*the same call continues"):
        go([AVG, MIX])
    assert find(AVG) is not None and store.restore(MIX).completed == 3
    assert len(go([AVG, MIX])) == 2


def test_a_run_asked_for_twice_is_trained_once(playing):
    played = []
    playing(lambda *told: played.append(told))
    results = go([AVG, dataclasses.replace(AVG), AVG])
    assert len(results) == 3 and played == [("FedAvg", 0), ("FedAvg", 1)]
    assert all(r.provenance == results[0].provenance for r in results)


def test_no_runs_are_no_results_and_no_workers_an_error():
    assert go([]) == [] == go([], workers=3)
    for workers in (0, -1):
        with pytest.raises(ValueError, match=f"workers must be >= 1, got {workers}"):
            go([AVG], workers=workers)


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
            log.append(args[0][:16])
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

    ray.is_initialized.return_value = False
    ray.init = lambda address, **_: log.append(address)
    ray.remote = Remote
    ray.wait = lambda jobs, num_returns, timeout: (jobs[:1], jobs[1:])
    ray.get = lambda job, timeout=None: job[0](*job[1])
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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RuntimeError, match=f"no Ray cluster answers at '{free}': .*refused"):
        go([AVG], address=free)


class Pipe:
    """One end, at which something is said."""

    def __init__(self, said):
        self.said, self.sent = said, []
        self.send = self.sent.append

    def recv(self):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def test_a_worker_tells_the_beginning_of_both_stages_and_every_end_and_what_it_does_not_know():
    pipe = Pipe(TUNED)
    assert module._answer(pipe, {"device": "cpu"}) is None
    said = [message[:2] for _, message in pipe.sent]
    assert [m for m in said if m != (1, 2)] == [(0, 2), (2, 2), (0, 2), (2, 2)]
    error = module._answer(Pipe(AttributeError("Can't get attribute 'Mine'")), {})
    assert "'Mine'. A worker knows no class of a notebook" in str(error)


def test_what_is_started_deaf_never_hears_of_ctrl_c():
    look = "import signal as s, sys; sys.exit(s.SIGINT in s.pthread_sigmask(s.SIG_BLOCK, []))"
    with module._deaf_to_ctrl_c():
        deaf = subprocess.run([sys.executable, "-c", look], timeout=300)
    hearing = subprocess.run([sys.executable, "-c", look], timeout=300)
    assert (deaf.returncode, hearing.returncode) == (1, 0)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, print])
def test_a_node_started_in_the_background_can_be_cancelled(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        cluster.hear_cancel()
        heard = signal.default_int_handler if handler is signal.SIG_IGN else handler
        assert signal.getsignal(signal.SIGINT) is heard
    finally:
        signal.signal(signal.SIGINT, before)


class Twofold(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_an_error_reaches_another_process_with_the_place_that_it_came_from():
    foreign = type("Foreign", (Exception,), {"__module__": "__main__"})
    for error, same in ((ValueError("no"), True), (Twofold(1, 2), False), (foreign("no"), False)):
        try:
            raise error
        except Exception as caught:
            sent = pickle.loads(pickle.dumps(module.sendable(caught)))
        assert (type(sent) is type(error)) == same and str(error) in str(sent)
        assert "test_sweep.py" in sent.__notes__[0]


def test_a_cluster_trains_elsewhere_and_its_files_come_back(ray, monkeypatch):
    runs = os.environ["FEDLIB_RUNS"]
    with pytest.raises(SweepFailed, match=r"(?s)1 of 4 runs failed.*RunDiverged: .* on \w"):
        go([BAD, TUNED, MIX], address="auto")
    assert ray.log[0] == "auto"
    assert ray.log[1] == {"num_cpus": 1, "num_gpus": 0, "max_retries": 0}
    assert sorted(ray.log[2:]) == sorted(e.key for e in (BAD, AVG, TUNED, MIX))
    assert os.environ["FEDLIB_RUNS"] == runs
    assert find(TUNED) is not None and find(AVG) is not None, "the stage before it, too"
    assert find(MIX) is not None and store.failure(BAD).round == 0
    here = bits(MIX)
    monkeypatch.setenv("FEDLIB_RUNS", f"{runs}-here")
    go([MIX])
    assert bits(MIX) == here


@pytest.mark.parametrize(
    ("asked", "gpus", "device"),
    [("auto", 1, "cuda"), ("auto", 0, "cpu"), ("cuda:3", 4, "cuda"), ("cpu", 4, "cpu")],
)
def test_a_run_asks_for_a_gpu_where_the_cluster_has_one(ray, monkeypatch, asked, gpus, device):
    given, train = [], cluster.train
    ray.cluster_resources.return_value = {"CPU": 8.0, "GPU": float(gpus)}

    def on_a_cpu(name, experiment, packed, options, *more):
        given.append(options["device"])
        return train(name, experiment, packed, {**options, "device": "cpu"}, *more)

    monkeypatch.setattr(cluster, "train", on_a_cpu)
    sweep([AVG], device=asked, progress=False, address="auto")
    assert given == [device]
    assert ray.log[1] == {"num_cpus": 1, "num_gpus": int(device == "cuda"), "max_retries": 0}


def lossy(ray, times, whose, error=None):
    """Let the first tasks of an experiment end as those of a killed worker do, or otherwise."""
    get, left = ray.get, [times]

    def losing(job, timeout=None):
        if job[1] and job[1][1] == whose and left[0]:
            left[0] -= 1
            raise error or ray.exceptions.RayError("worker crashed")
        return get(job)

    ray.get = losing


def test_a_lost_run_is_tried_again(ray):
    lossy(ray, 2, AVG)
    assert [r.experiment for r in go([AVG, MIX], address="auto")] == [AVG, MIX]
    assert ray.log[2:] == [e.key for e in (AVG, MIX, AVG, AVG)]


def test_a_run_lost_three_times_fails_with_what_builds_on_it_and_the_others_finish(ray):
    lossy(ray, 99, AVG)
    with pytest.raises(SweepFailed, match="4 of 5 runs failed") as caught:
        go([MIX, *TUNINGS], address="auto")
    said = "WorkerDied: its worker was lost 3 times, at last: RayError: worker crashed"
    assert str(caught.value).count(said) == 4
    assert ray.log.count(AVG.key) == 3 and find(MIX) is not None
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
    monkeypatch.setattr(module, "sendable", lambda error: (_ for _ in ()).throw(error))
    (result,) = go([MIX], address="auto")
    assert played == [0, 1, 2, 3, 2, 3, 4]
    assert [s["rounds"] for s in result.provenance["segments"]] == [[0, 2], [2, 5]]
    assert not list((tmp_path / "temporary").iterdir())


def test_what_killed_processes_left_is_deleted_and_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive, dead = (tmp_path / f"{cluster.FOLDER}{name}" for name in ("alive", "dead"))
    for folder in (alive, dead):
        folder.mkdir()
        folder.with_suffix(".lock").touch()
    with FileLock(alive.with_suffix(".lock")), cluster._own_store("300"):
        assert alive.is_dir() and not dead.exists()
        assert Path(os.environ["FEDLIB_RUNS"]).parent == tmp_path
    assert [p.name for p in tmp_path.iterdir() if "alive" not in p.name] == []


def test_a_machine_with_other_code_stops_the_sweep_and_is_named(ray, monkeypatch):
    codes = iter(["older", "older", *["newer"] * 9])  # of two orders, and of who takes them
    monkeypatch.setattr(cluster, "code", lambda: {"fedlib": next(codes)})
    with pytest.raises(UnfitNode, match=rf"{socket.gethostname()} has other code.*here is .*older"):
        go([AVG, MIX], address="auto")
    assert ray.log.count("cancelled") == 1 and find(AVG) is None


def test_a_machine_that_cannot_run_fedlib_stops_the_sweep(ray):
    lossy(ray, 1, AVG, ray.exceptions.RayTaskError("ip=10.0.0.7: No module named 'fedlib'"))
    with pytest.raises(UnfitNode, match=r"cannot run fedlib: ip=10.0.0.7: No module"):
        go([AVG], address="auto")


def test_missing_data_name_the_machine(ray, playing):
    def missing(*_):
        raise DatasetError("digits is in none of the places")

    playing(missing)
    with pytest.raises(SweepFailed, match=rf"none of the places on {socket.gethostname()}"):
        go([AVG], address="auto")


def test_a_full_disk_stops_a_sweep_over_a_cluster(ray, monkeypatch):
    """Else one run after the other would be trained and lost."""
    mine = os.environ["FEDLIB_RUNS"]

    def full(experiment, files, plain=store.unpack):
        if os.environ["FEDLIB_RUNS"] == mine:
            raise StoreError("no space")
        plain(experiment, files)

    monkeypatch.setattr(store, "unpack", full)
    with pytest.raises(StoreError, match="no space"):
        go([AVG, MIX], address="auto")
    assert ray.log.count("cancelled") == 1


def test_first_stages_of_which_only_the_result_is_kept_are_trained_once(ray):
    export(go([AVG]), "some")
    shutil.rmtree(store.folder(AVG))
    go(TUNINGS, address="auto")
    assert ray.log[2:] == [e.key for e in (AVG, *TUNINGS)]


def test_the_table_says_who_is_where_and_never_scrolls(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    many = {f"{n:016x}": f"FedAvg() on digits, seed {n}" for n in range(20)}
    first, second, *others = many
    with Table(many) as table:
        for key in (first, second):
            table.start(key, 9, "node-7" if key == first else "")
            table.round(key, 0, 9, float("nan"))
        table.round(first, 4, 9, 2.25)
        table.end(second, ValueError("no"))
        table.draw(always=True)
        lines = err.getvalue().split("\x1b[2K")[-1].splitlines()
        assert "0/20" in lines[-2] and "runs done, 1 failed" in lines[-2]
        assert "4/9" in lines[-1] and "00000000 loss 2.25 on node-7 FedAvg" in lines[-1]
        for key in others:
            table.start(key, 9)
        table.draw(always=True)
        assert len(err.getvalue().split("\x1b[2K")[-1].splitlines()) == 8


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "expected"),
    [
        (Terminal, "0", "1/1"),
        (io.StringIO, "0", f"[1/1] {AVG.key} FedAvg() on digits, "),
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


def test_durations_are_words():
    said = [duration(s) for s in (0, 89, 300, 7200, 86400 * 9)]
    assert said == ["0 s", "89 s", "5 min", "2.0 h", "9 days"]
