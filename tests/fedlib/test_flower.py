"""A federation over a real wire has the bits of its simulation, and sends what the ledger says."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from playing import FAST
from playing import TASK as PICTURES

import fedlib.algorithms
from fedlib import paths
from fedlib.algorithms import DBE, IFCA, SCAFFOLD, FedAvg, FedGen, FedGH, FedMix, PrunedFedMix
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


def check(e, home, stayed_out):
    """What lies at the server and at every client is what the simulation has."""
    state, reports = simulated(e)
    found = load_tensors(home / flower.SERVER)[0]
    # Of each client the server remembers a row, and knows of no other client.
    there = np.flatnonzero(e.task.build(e.seed).train.sizes)
    held = {n: t[there] if "clients/" in n else t for n, t in state.flat().items()}
    assert bits(found) == bits({n: t for n, t in held.items() if not n.startswith("local:")})
    for row in range(e.task.partition.clients):
        file = home / f"client-{row}.safetensors"
        took_part = any(row in r.rows for r in reports)
        assert file.exists() == (took_part and bool(state.local))
        if file.exists():
            assert bits(load_tensors(file)[0]) == bits(
                {n: t[[row]] for n, t in state.local.items()}
            )
    said = json.loads((home / flower.LEDGER).read_text())
    assert [s["clients"] for s in said] == [r.rows.tolist() for r in reports]
    assert not any(stayed_out in s["clients"] for s in said)
    assert [s["ledger"] for s in said] == [[r.down.tolist(), r.up.tolist()] for r in reports]
    return said


class Loop:
    """A grid whose nodes are called in this process; every message is taken apart and put together."""

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
    said = check(e, loop.play(), out)
    assert all(s["wire"] == s["ledger"] for s in said)
    assert {what for row, what in loop.seen if row == out} == {"query.join"}
