"""A federation over a real wire has the bits of its simulation, and sends what the ledger says."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from playing import FAST
from playing import TASK as PICTURES

from fedlib import paths
from fedlib.algorithms import IFCA, SCAFFOLD, FedAvg, FedMix
from fedlib.algorithms.ifca import Explore
from fedlib.optim import adam
from fedlib.partition import Majority, OptOut
from fedlib.runs import Experiment, begun, rounds
from fedlib.runs.atomic import load_tensors

app = pytest.importorskip("flwr.app", reason="needs fedlib[flower]")
flower = pytest.importorskip("fedlib.flower")
identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity

# Five clients, of which one stays out.
TASK = replace(PICTURES, partition=Majority(5, size=30, p=0.6), opt_out=OptOut(clients=0.2))
FOUR = {
    "FedAvg": FedAvg(**FAST),
    "FedMix": FedMix(experts=2, server=adam(0.01), personal_bias=True, **FAST),
    "SCAFFOLD": SCAFFOLD(**FAST),
    "IFCA": IFCA(clusters=3, explore=Explore(0.3), **FAST),
}


def experiment(algorithm, cohort=3):
    return Experiment(TASK, algorithm, rounds=3, cohort=cohort, seed=1)


def simulated(e):
    """The final state of a simulation, and the reports of its rounds."""
    fed = e.task.build(e.seed)
    *_, reports = zip(*rounds(e, fed, begun(e, fed, ()), chunk=1), strict=True)
    *_, (state, _, _) = rounds(e, fed, begun(e, fed, ()), chunk=1)
    return state, reports[1:]


def bits(leaves):
    return {
        n: (t.dtype, tuple(t.shape), t.contiguous().numpy().tobytes()) for n, t in leaves.items()
    }


def check(e, keeps):
    """What lies at the server and at every client is what the simulation has; what was sent.

    ``keeps(name)`` is the folder in which "server" or "client-3" keeps what is its own.
    """
    state, reports = simulated(e)
    # Of each client that takes part the server remembers a row, and of the others none.
    there = np.flatnonzero(e.task.build(e.seed).train.sizes)
    held = {n: t[there] if "clients/" in n else t for n, t in state.flat().items()}
    found = load_tensors(keeps("server") / flower.SERVER)[0]
    assert bits(found) == bits({n: t for n, t in held.items() if not n.startswith("local:")})
    rows = {int(row) for r in reports for row in r.rows} if state.local else set()
    for row in rows:
        own, name = {n: t[[row]] for n, t in state.local.items()}, f"client-{row}"
        assert bits(load_tensors(keeps(name) / f"{name}.safetensors")[0]) == bits(own)
    sent = json.loads((keeps("server") / flower.LEDGER).read_text())
    assert [s["clients"] for s in sent] == [r.rows.tolist() for r in reports]
    assert [s["ledger"] for s in sent] == [[r.down.tolist(), r.up.tolist()] for r in reports]
    return sent


class Loop:
    """A grid whose nodes are called in this process."""

    def __init__(self, e, nodes, clients=flower.client):
        self.config = {"experiment": repr(e), "clients": len(nodes)}
        self.nodes, self.client, self.seen = nodes, clients, []

    def get_node_ids(self):
        return [100 + n for n in self.nodes]

    def send_and_receive(self, messages, timeout=None):
        for message in messages:
            to = message.metadata.dst_node_id
            self.seen.append((to - 100, message.metadata.message_type))
            reply = self.client(message, self.context(to - 100))
            yield SimpleNamespace(
                metadata=SimpleNamespace(src_node_id=to),
                content=reply.content,
                has_error=lambda: False,
            )

    def context(self, node=None):
        config = {} if node is None else {"client": node}
        return app.Context(7, node or 0, config, app.RecordDict(), self.config)

    def play(self):
        identity.run_id, identity.node_id, identity.task_id = 7, 1, 1  # as Flower's processes do
        flower.main(self, self.context())
        return flower.kept(flower.asked(self.context()), self.context())


def opted_out():
    (row,) = np.flatnonzero(TASK.build(1).train.sizes == 0)
    return int(row)


@pytest.mark.parametrize("algorithm", FOUR.values(), ids=FOUR)
def test_apps_have_the_bits_of_the_simulation(algorithm, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path))
    e, out = experiment(algorithm), opted_out()
    loop = Loop(e, [3, 0, 4, 2, 1])
    home = loop.play()
    assert all(s["wire"] == s["ledger"] for s in check(e, lambda name: home))
    assert {what for row, what in loop.seen if row == out} == {"query.join"}


EXAMPLE = paths.ROOT / "examples" / "flower"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


def waited(what, seconds=120):
    """Wait until ``what()`` is true of something, and return that."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.2)
    return found


def free_ports(count):
    """Ports on which nothing listens."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Machines:
    """A SuperLink and SuperNodes, each a process with a store of its own, and Flower's command."""

    def __init__(self, home):
        self.home, self.started = home, []
        self.path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.link, *self.ports = free_ports(1 + TASK.partition.clients)
        (home / "flwr").mkdir()
        address = f'address = "127.0.0.1:{self.link}"\ninsecure = true\n'
        (home / "flwr" / "config.toml").write_text(f"[superlink.here]\n{address}")

    def environment(self, name):
        own = {
            "PATH": self.path,
            "FLWR_HOME": str(self.home / "flwr"),
            "PYTHONPATH": str(paths.ROOT),
        }
        return {**os.environ, **QUIET, **own, "FEDLIB_RUNS": str(self.home / name)}

    def log(self, name):
        return (self.home / f"{name}.log").read_text()

    def start(self, name, *words):
        with (self.home / f"{name}.log").open("w") as log:
            how = {"stdout": log, "stderr": log, "env": self.environment(name)}
            self.started.append(subprocess.Popen([*words], **how))

    def begin(self):
        address = "--host", "127.0.0.1", "--port"
        self.start("server", "flower-superlink", "--insecure", *address, str(self.link))
        waited(lambda: "startup complete" in self.log("server"))
        for row, port in enumerate(self.ports):
            where = "--superlink", f"127.0.0.1:{self.link}", *address, str(port)
            node = "--node-config", f"client={row}"
            self.start(f"client-{row}", "flower-supernode", "--insecure", *where, *node)
        return self

    def run(self, e, name):
        config = {"experiment": repr(e), "clients": len(self.ports)}
        file = self.home / f"{name}.toml"
        file.write_text("\n".join(f"{n} = {json.dumps(v)}" for n, v in config.items()))
        words = "flwr", "run", str(EXAMPLE), "here", "--run-config", str(file)
        done = subprocess.run(words, env=self.environment("server"), capture_output=True, text=True)
        assert "Successfully started run" in done.stdout, done.stdout + done.stderr

    def end(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(30)


@pytest.mark.slow
def test_processes_of_their_own_have_the_bits_of_the_simulation(tmp_path):
    """Four algorithms at once, between a server and five clients of which one stayed out."""
    asked, out = {name: experiment(algorithm) for name, algorithm in FOUR.items()}, opted_out()
    machines = Machines(tmp_path)
    try:
        machines.begin()
        for name, e in asked.items():
            machines.run(e, name)

        def ended():
            said = machines.log("server")
            assert "Traceback" not in said, said[-3000:]
            return said.count("Finished task") == len(asked)

        waited(ended, 600)
    finally:
        machines.end()
    for e in asked.values():
        (home,) = (tmp_path / "server" / ".flower").glob(f"{e.key}-*")
        sent = check(e, lambda name, run=home.name: tmp_path / name / ".flower" / run)
        assert all(s["wire"] == s["ledger"] for s in sent)
    assert "train message" not in machines.log(f"client-{out}")
    assert not (tmp_path / f"client-{out}").exists()
