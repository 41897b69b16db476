"""A sweep over a Ray cluster of two nodes: the bits of one process, also if a worker is killed.

Ray is an optional extra: `make cluster` installs it in an environment of its own and runs this.
"""

import dataclasses
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from small import AVG, BAD, MIX, TASK, bits, go
from test_sweep import TUNINGS, Dying

from fedlib.algorithms import Local
from fedrun import Experiment, find_result, store
from fedrun import ray as cluster
from fedrun.ray import NoCluster, UnfitNode
from fedrun.sweeps import SweepFailed

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason="Ray is an optional extra")
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are looked up in /proc", allow_module_level=True)

SEEDS = [dataclasses.replace(AVG, seed=seed) for seed in (1, 2, 3)]
LONG = [dataclasses.replace(AVG, rounds=3000, evaluate_every=1000, seed=seed) for seed in (8, 9)]
SECOND = Experiment(TASK, Local(batch_size=5), 2, cohort=2, evaluate_every=2, first_stage=LONG[0])
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}


class Nodes:
    """Two nodes with a temporary folder of their own, which is also that of their workers."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(folder)
        self.cluster = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            self.second = self.cluster.add_node(**NODE)
        except Exception:
            self.cluster.shutdown()
            raise
        self.address = self.cluster.address

    def training(self) -> list[int]:
        """Return the processes that train."""
        return [int(home.name) for home in Path("/proc").glob("[0-9]*") if self._trains(home)]

    def _trains(self, home: Path) -> bool:
        try:
            ours = f"TMPDIR={self.folder}\0".encode() in (home / "environ").read_bytes()
            return ours and (home / "cmdline").read_bytes().startswith(b"ray::train")
        except OSError:  # it has ended, or is another user's
            return False

    def kill_workers(self) -> list[int]:
        """Kill the processes that train, and return them."""
        found = self.training()
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return found

    def litter(self) -> list[Path]:
        """Return the folders in which workers train, or have trained."""
        return [*self.folder.glob(f"fedlib-{os.getuid()}-*")]


@pytest.fixture(scope="module")
def nodes():
    """A cluster; Ray gives its own processes 15 seconds to start, which a busy machine exceeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets need a short path
        patch.setenv("TMPDIR", folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        try:
            found = _started(folder)
            yield found
            ray.shutdown()
            found.cluster.shutdown()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _started(folder: str) -> Nodes:
    for _ in range(2):
        try:
            return Nodes(folder)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            why = error
    pytest.skip(f"Ray's nodes do not start here: {why}")


@pytest.fixture
def often(monkeypatch):
    """Let checkpoints come back about every second."""
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0.05")


def at_a_checkpoint(monkeypatch, act):
    """Act when the driver has stored a checkpoint of a run that goes on, until it had an effect."""
    read, done = cluster.Cluster._read_messages, []

    def reading(driver):
        read(driver)
        under_way = {experiment.key for experiment in driver.jobs.values()}
        if not done and any(begun(e) and e.key in under_way for e in LONG):
            done.extend(act())

    monkeypatch.setattr(cluster.Cluster, "_read_messages", reading)
    return done


def begun(experiment):
    return (store.folder(experiment) / store.CHECKPOINT).exists()


def segments(experiment):
    return [s["rounds"] for s in find_result(experiment).provenance["segments"]]


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Compare with runs of this process; every round must have been kept once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_RUNS", str(tmp_path_factory.mktemp("here")))
        go([MIX, *SEEDS, *TUNINGS, *LONG, SECOND])
        expected = {e: bits(e) for e in [AVG, MIX, *SEEDS, *TUNINGS, *LONG, SECOND]}

    def compare(experiments):
        for e in experiments:
            assert bits(e) == expected[e]
            parts = segments(e)
            assert [0, *(end for _, end in parts)] == [*(start for start, _ in parts), e.rounds]

    return compare


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_without_a_cluster_there_is_an_error(address):
    """It comes first, as "auto" finds the nodes that the other tests start."""
    with pytest.raises(NoCluster, match=f"no Ray cluster answers at '{address}'"):
        go([AVG], address=address)


def test_a_sweep_over_two_nodes(nodes, check):
    runs = [MIX, *SEEDS, *TUNINGS]
    with pytest.raises(SweepFailed, match="1 of 9 runs failed"):
        go([BAD, *runs], address=nodes.address)
    assert store.diverged(BAD).round == 0
    assert all(segments(e) == [[0, e.rounds]] for e in [AVG, *runs])
    check([AVG, *runs])
    assert nodes.litter() == []


def test_a_killed_worker(nodes, often, check, monkeypatch):
    killed = at_a_checkpoint(monkeypatch, nodes.kill_workers)
    go([*LONG, *SEEDS, SECOND], address=nodes.address)
    assert killed
    assert any(len(segments(e)) > 1 for e in LONG)
    check([*LONG, *SEEDS, SECOND])


def test_a_run_lost_three_times_fails_with_what_builds_on_it_and_the_others_finish(nodes):
    """Each attempt sent its spec, which passed for a new checkpoint: attempts never ended."""
    victim = dataclasses.replace(AVG, algorithm=Dying())
    builds = dataclasses.replace(TUNINGS[0], first_stage=victim)
    with pytest.raises(SweepFailed, match="2 of 3 runs failed") as caught:
        go([victim, builds, MIX], address=nodes.address)
    assert str(caught.value).count("WorkerDied: its worker was lost 3 times") == 2
    assert find_result(MIX) is not None and find_result(victim) is None


def test_a_machine_with_other_code_stops_the_sweep_and_is_named(nodes, monkeypatch):
    monkeypatch.setattr(cluster, "code", lambda: {"fedlib": "older"})
    with pytest.raises(UnfitNode, match=rf"{socket.gethostname()} has other code.*older"):
        go([AVG, MIX], address=nodes.address)
    assert find_result(AVG) is None
