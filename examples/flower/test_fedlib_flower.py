"""A federation over a real wire has the bits of its simulation, and sends what the ledger says."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fedlib_flower as flower
import numpy as np
import pytest
import torch
from conftest import _own_folders, _own_names, places  # noqa: F401
from flwr import app
from flwr.supercore.task_identity import TaskIdentity as identity
from playing import BATTERY, FAST, SKEWED

import fedlib.algorithms
from fedlib import MajorityClasses, OptOut, adam, data, paths
from fedlib.algorithms import IFCA, SCAFFOLD, FedAvg, FedMix, ifca
from fedlib.values import from_code
from fedrun import Experiment
from fedrun.files import load_tensors
from fedrun.train import initial_state, rounds

# Five clients, of which one stays out.
TASK = replace(SKEWED, partition=MajorityClasses(5, size=30, p=0.6), opt_out=OptOut(clients=0.2))
SIDES = "server", "client"
FOUR = {
    "FedAvg": FedAvg(**FAST),
    "FedMix": FedMix(experts=2, server=adam(0.01), personal_bias=True, **FAST),
    "SCAFFOLD": SCAFFOLD(**FAST),
    "IFCA": IFCA(clusters=3, explore=ifca.EpsilonGreedy(0.3), **FAST),
}


def experiment(algorithm, cohort=3):
    return Experiment(TASK, algorithm, rounds=3, cohort=cohort, seed=1)


def simulated(e):
    """The final state of a simulation, and the reports of its rounds."""
    fed = e.task.build(e.seed)
    *_, reports = zip(*rounds(e, fed, initial_state(e, fed, ()), chunk=1), strict=True)
    *_, (state, _, _) = rounds(e, fed, initial_state(e, fed, ()), chunk=1)
    return state, reports[1:]


def bits(params):
    return {n: (t.dtype, t.shape, t.contiguous().numpy().tobytes()) for n, t in params.items()}


def check(e, keeps):
    """What lies at the server and at every client is what the simulation has; what was sent.

    ``local(name)`` is the folder in which "server" or "client-3" keeps what is its own.
    """
    state, reports = simulated(e)
    # Of each client that takes part the server remembers a row, and of the others none.
    there = np.flatnonzero(e.task.build(e.seed).train.sizes)
    held = {n: t[there] if "clients/" in n else t for n, t in state.flat().items()}
    found = load_tensors(keeps("server") / flower.SERVER)[0]
    assert bits(found) == bits({n: t for n, t in held.items() if not n.startswith("local:")})
    clients = {int(row) for r in reports for row in r.clients} if state.client_params else set()
    for row in clients:
        own, name = {n: t[[row]] for n, t in state.client_params.items()}, f"client-{row}"
        assert bits(load_tensors(keeps(name) / f"{name}.safetensors")[0]) == bits(own)
    sent = json.loads((keeps("server") / flower.LEDGER).read_text("utf-8"))
    assert [s["clients"] for s in sent] == [r.clients.tolist() for r in reports]
    assert [s["ledger"] for s in sent] == [
        [r.download.tolist(), r.upload.tolist()] for r in reports
    ]
    return sent


class Loop:
    """A grid whose nodes are called in this process."""

    def __init__(self, e, nodes, clients=flower.client, lie=None, liar=None, config=None):
        self.config = {"experiment": repr(e), "clients": len(nodes)}
        self.nodes, self.client, self.seen = nodes, clients, []
        self.lie, self.liar, self.own = lie, liar, config or {}

    def get_node_ids(self):
        return [100 + n for n in self.nodes]

    def send_and_receive(self, messages, timeout=None):
        for message in messages:
            to = message.metadata.dst_node_id
            self.seen.append((to - 100, message.metadata.message_type))
            content = self.client(message, self.context(to - 100)).content
            if self.lie and self.liar in (None, to - 100):
                content = self.lie(message.metadata.message_type, content)
            yield SimpleNamespace(
                metadata=SimpleNamespace(src_node_id=to), content=content, has_error=lambda: False
            )

    def context(self, node=None):
        config = {} if node is None else {"client": node, **self.own}
        return app.Context(7, node or 0, config, app.RecordDict(), self.config)

    def play(self):
        identity.run_id, identity.node_id, identity.task_id = 7, 1, 1  # as Flower's processes do
        flower.main(self, self.context())
        return flower.run_folder(flower.experiment_of(self.context()), self.context())


def opted_out():
    (row,) = np.flatnonzero(TASK.build(1).train.sizes == 0)
    return int(row)


NOT_THERE = "VAEDensity", "DBE"  # before it a round of its own
FEDERATED = {
    name: a if hasattr(a, "of") else replace(a, batch_size=4)
    for name, a in BATTERY.items()
    if a.communicates and name in {*fedlib.algorithms.__all__} - {*FOUR, *NOT_THERE}
}
# What travels beside the ledger: every label's row and not only held ones, experts that are pruned,
# p(y) of all clients, and a number.
MORE = {"FedGH", "PrunedFedMix", "FedGen", "FedAMP"}


@pytest.mark.parametrize(
    "name", [*FOUR, *(pytest.param(name, marks=pytest.mark.slow) for name in FEDERATED)]
)
def test_apps_have_the_bits_of_the_simulation(name):
    e, out = experiment({**FEDERATED, **FOUR}[name]), opted_out()
    loop = Loop(e, [3, 0, 4, 2, 1])
    home = loop.play()
    sent = check(e, lambda name: home)
    assert all(s["wire"] == s["ledger"] for s in sent) == (name not in MORE)
    assert {what for row, what in loop.seen if row == out} == {"query.join"}


EXAMPLE = Path(__file__).parent


def test_the_example_is_played_as_it_stands():
    told = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]
    e = from_code(told["config"]["experiment"])
    assert told["components"] == {f"{side}app": f"fedlib_flower:{side}" for side in SIDES}
    home = Loop(e, [*range(told["config"]["clients"])]).play()
    assert len(check(e, lambda name: home)) == e.rounds


@pytest.mark.usefixtures("places")
def test_a_machine_can_have_examples_that_nobody_else_has():
    text = (EXAMPLE / "README.md").read_text("utf-8")
    (code,) = (t.split("```")[0] for t in text.split("```python\n") if t.startswith("from"))
    page = {}
    exec(code, page)
    drawn = np.random.default_rng(0)
    pictures = drawn.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    data.add_data("ward", (pictures, np.arange(40) % 3))
    e = replace(experiment(FedAvg(**FAST), cohort=2), rounds=1)
    out = opted_out()
    loop = Loop(e, [out, *[n for n in range(5) if n != out][:2]], page["client"])
    home = loop.play()
    (sent,) = json.loads((home / flower.LEDGER).read_text("utf-8"))
    assert out not in sent["clients"] and len(sent["clients"]) == 2, "OptOut holds here, too"
    assert sent["wire"] == sent["ledger"] and sent["refused"] == {}
    assert (out, "train") not in loop.seen and (out, "query.shares") not in loop.seen
    with pytest.raises(ValueError, match=r"of 5 clients, and this is no\. 9"):
        ask(loop, 9, "query.join")
    # Whose training parts are all of the 40 examples but those that it holds out.
    params = load_tensors(home / flower.SERVER)[0]
    assert params["shared:head.bias"].shape == (3,) and params["shared:head.bias"].isfinite().all()


def test_arrays_come_back_as_they_went():
    odd = torch.tensor([float("nan"), -0.0, 1e-45])
    params = {"b": odd, "a": torch.arange(6).view(2, 3).mT, "none": torch.zeros(0, 3).bool()}
    params["half"], params["one"] = torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor(True)
    record = flower.packed(params)
    assert flower.unpacked(record).keys() == params.keys()
    for name, t in flower.unpacked(record).items():
        assert t.dtype == params[name].dtype and t.shape == params[name].shape
        raw = (x.contiguous().flatten().view(torch.uint8) for x in (t, params[name]))
        assert torch.equal(*raw)
    assert flower.payload(app.RecordDict({"x": record})) == 12 + 48 + 0 + 2 + 1


ONE = experiment(FedAvg(**FAST))


NO_WIRE = {
    "replace(ONE, algorithm=fedlib.algorithms.Local())": "nothing travels",
    "replace(ONE, algorithm=fedlib.algorithms.Local(), first_stage=ONE)": "nothing travels",
    "replace(ONE, algorithm=IFCA(stop=ifca.ClusterStop()))": "do not send the losses",
    "replace(ONE, algorithm=IFCA(least_share=0.1))": "the examples are at the clients",
}


@pytest.mark.parametrize(("code", "message"), NO_WIRE.items())
def test_what_cannot_travel_is_refused(code, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        Loop(eval(code), [0, 1, 2, 3, 4]).play()


def ask(loop, node, what, content=None):
    """What a client answers to a question of whoever."""
    identity.run_id, identity.node_id, identity.task_id = 7, 1, 1
    message = app.Message(content or app.RecordDict(), dst_node_id=100 + node, message_type=what)
    return loop.client(message, loop.context(node)).content


def test_one_that_opted_out_trains_for_nobody(capsys):
    out, loop = opted_out(), Loop(ONE, [0, 1, 2, 3, 4])
    with pytest.raises(RuntimeError, match=f"client {out} has opted out"):
        ask(loop, out, "train")
    assert dict(ask(loop, out, "query.join")["told"]) == {"client": out, "examples": 0}
    assert f"client {out} told the server of its examples {{'client'" in capsys.readouterr().out


@pytest.mark.parametrize("share", [1, 0.5])
def test_consent_is_the_machines_own_and_no_message_overrides_it(share):
    """The same examples stay at home whatever seed, task or opting out the server sends."""
    kept = []
    for e in (replace(ONE, task=replace(TASK, opt_out=None)), replace(ONE, seed=5), ONE):
        loop = Loop(e, [0], config={"opt_out": share})
        fed = flower.consenting(e, flower.of_task(e, {"client": 0}), loop.context(0))
        told = int(ask(loop, 0, "query.join")["told"]["examples"])
        home = fed.full_view().train
        away = home.x[home.indices[home.side[flower.OPTED_IN] == 0]]
        mine = fed.train.x[fed.train.indices]
        assert told == len(mine) and told + len(away) == 30
        kept.append([{x.numpy().tobytes() for x in part} for part in (mine, away)])
    assert not any(mine & others for mine, _ in kept for _, others in kept[:2])
    assert share < 1 or not any(mine for mine, _ in kept)


def test_label_shares_are_told_only_where_an_algorithm_needs_them():
    condition = app.RecordDict({"asked": app.ConfigRecord({"condition": "label"})})
    node = (opted_out() + 1) % 5
    for algorithm, needs in ((FOUR["FedMix"], True), (FedMix(marginal_entropy=0), False),
                             (BATTERY["FedGen"], True), (FedAvg(), False)):  # fmt: skip
        loop = Loop(experiment(algorithm), [node])
        if needs:
            told = ask(loop, node, "query.shares", condition)["told"]
            assert float(flower.unpacked(told)["shares"].sum()) == pytest.approx(1)
        else:
            with pytest.raises(RuntimeError, match="none are told"):
                ask(loop, node, "query.shares", condition)


def lying(message=None, dtype=None, **told):
    """A lie of a node: other parameters, an odd kind of them, or other words when it joins."""

    def lie(what, content):
        if what == "query.join" and told:
            return app.RecordDict({"told": app.ConfigRecord({**content["told"], **told})})
        if what != "train" or told:
            return content
        params = flower.unpacked(content.array_records["message"])
        record = flower.packed(message(params) if message else params)
        if dtype:
            record = app.ArrayRecord(
                {n: app.Array(dtype, tuple(a.shape), a.stype, a.data) for n, a in record.items()}
            )
        return app.RecordDict({"message": record})

    return lie


EVERYBODY = replace(ONE, task=replace(TASK, opt_out=None), rounds=2, cohort=5)


LIES = {  # of a node, and what a server logs of it
    'lying(lambda m: {n: t * float("nan") for n, t in m.items()})': "is not finite",
    "lying(lambda m: {n: t.expand(5, *t.shape[1:]) for n, t in m.items()})": "not f",
    "lying(lambda m: {n: t[:0] for n, t in m.items()})": "train: ",
    "lying(lambda m: dict([*m.items()][1:]))": "parameters .*, not",
    'lying(lambda m: {**m, "evil": torch.ones(1, 3)})': "parameters .*evil.*, not",
    "lying(lambda m: {n: t.double() for n, t in m.items()})": "is float64",
    'lying(dtype="load")': "of the unknown kind 'load'",
    "lying(examples=-100)": "examples must be whole.*-100",
    'lying(examples="many")': "examples must be whole.*'many'",
    "lying(client=-7)": "client must be whole.*-7",
    "lying(classes=11)": "examples of .*11.*, where others have",
    "lying(shape=[16, 0, 1])": "no form of examples",
}


@pytest.mark.parametrize(("code", "message"), LIES.items())
@pytest.mark.parametrize("liar", [0, 3])
def test_who_lies_is_named_and_the_others_go_on(code, message, liar, capsys):
    """They end where a federation without the liar does, but for the order of sums."""
    loop = Loop(EVERYBODY, [*range(5)], lie=eval(code), liar=liar)
    end = load_tensors(loop.play() / flower.SERVER)[0]
    alone = Loop(EVERYBODY, [n for n in range(5) if n != liar], lie=lying(client=-1), liar=9)
    alone.config["experiment"] = repr(replace(EVERYBODY, cohort=4))
    torch.testing.assert_close(end, load_tensors(alone.play() / flower.SERVER)[0])
    assert re.search(f"node {100 + liar}.*{message}", capsys.readouterr().out)


def test_two_nodes_of_one_number_are_left_out_and_named(capsys):
    home = Loop(EVERYBODY, [*range(5)], lie=lying(client=0), liar=1).play()
    sent = json.loads((home / flower.LEDGER).read_text("utf-8"))
    assert all(sorted(s["clients"]) == [2, 3, 4] for s in sent)
    said = capsys.readouterr().out
    assert "node 100 is left out: another node is client 0" in said and "node 101 is left" in said


@pytest.mark.parametrize("choice", [99, -1])
def test_a_choice_of_what_there_is_not_is_left_out(choice):
    e = replace(EVERYBODY, algorithm=FOUR["IFCA"])
    change = lying(
        lambda m: {n: t if t.is_floating_point() else t * 0 + choice for n, t in m.items()}
    )
    sent = json.loads(
        (Loop(e, [*range(5)], lie=change, liar=2).play() / flower.LEDGER).read_text("utf-8")
    )
    assert all(2 not in s["clients"] and [*s["refused"]] == ["102"] for s in sent)


def test_where_nobody_is_left_the_nodes_are_named():
    everyone = lying(lambda m: {n: t * float("nan") for n, t in m.items()})
    why = r"round 1 has no message: node .* is not finite; node 104: "
    with pytest.raises(RuntimeError, match=why):
        Loop(EVERYBODY, [*range(5)], lie=everyone, liar=None).play()
    needed = replace(EVERYBODY, algorithm=FOUR["FedMix"])

    def no_shares(what, content):
        bad = flower.packed({"shares": torch.full((1, 10), 0.5)})
        return app.RecordDict({"told": bad}) if what == "query.shares" else content

    with pytest.raises(RuntimeError, match="needed of everybody: node 103: shares are no distrib"):
        Loop(needed, [*range(5)], lie=no_shares, liar=3).play()


QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


def waited(what, seconds=1800):
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
        (home / "flwr" / "config.toml").write_text(f"[superlink.here]\n{address}", "utf-8")

    def environment(self, name):
        own = {"FLWR_HOME": str(self.home / "flwr"), "FEDLIB_RUNS": str(self.home / name)}
        here = {"PATH": self.path, "PYTHONPATH": str(paths.ROOT)}
        return {**os.environ, **QUIET, **here, **own}

    def log(self, name):
        return (self.home / f"{name}.log").read_text("utf-8")

    def start(self, name, *words):
        with (self.home / f"{name}.log").open("w", encoding="utf-8") as log:
            how = {"stdout": log, "stderr": log, "env": self.environment(name)}
            self.started.append(subprocess.Popen([*words], **how, start_new_session=True))

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
        file.write_text("\n".join(f"{n} = {json.dumps(v)}" for n, v in config.items()), "utf-8")
        words = "flwr", "run", str(EXAMPLE), "here", "--run-config", str(file)
        done = subprocess.run(
            words, env=self.environment("server"), capture_output=True, encoding="utf-8"
        )
        assert "Successfully started run" in done.stdout, done.stdout + done.stderr

    def end(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:  # and what they have started, however slow the machine is
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


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

        waited(ended)
    finally:
        machines.end()
    for e in asked.values():
        (home,) = (tmp_path / "server" / ".flower").glob(f"{e.key}-*")
        sent = check(e, lambda name, run=home.name: tmp_path / name / ".flower" / run)
        assert all(s["wire"] == s["ledger"] for s in sent)
    assert "train message" not in machines.log(f"client-{out}")
    assert not (tmp_path / f"client-{out}").exists()
