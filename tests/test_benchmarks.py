"""What the benchmarks compare must be the same computation; no test looks at the clock."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from conftest import LENET, make_federation

from benchmarks import __main__ as bench
from benchmarks import plain
from benchmarks.cases import CASES, WAYS, Case
from benchmarks.memory import peak_here
from fedlib.algorithms import FedAvg, FedMix
from fedlib.engine import play_round
from fedlib.models import part
from fedlib.optim import Optimizer

ROUNDS = 3


def engine_rounds(fed, algorithm, state):
    for t in range(ROUNDS):
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=fed.clients)
    return state


@pytest.mark.parametrize("sizes", [(8, 8, 8), (3, 9, 6)])
def test_the_plain_fedavg_computes_what_the_engine_computes(sizes):
    fed = make_federation(sizes, model=LENET, shape=(12, 12, 1))
    algorithm = FedAvg(batch_size=None)
    state = algorithm.init(fed, 0)
    model = fed.net._make(9)
    model.load_state_dict(state.shared)
    for _ in range(ROUNDS):
        plain.fedavg_round(model, plain.clients_of(fed, 99), algorithm.client.lr)
    state = engine_rounds(fed, algorithm, state)
    for name, leaf in model.state_dict().items():
        torch.testing.assert_close(state.shared[name], leaf, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [(8, 8, 8), (3, 9, 6)])
def test_the_plain_fedmix_computes_what_the_engine_computes(sizes):
    fed = make_federation(sizes, model=LENET, shape=(12, 12, 1))
    server = Optimizer("adam", lr=0.01, eps=1e-2)
    algorithm = FedMix(experts=2, batch_size=None, server=server)
    state = algorithm.init(fed, 0)
    experts = [fed.net._make(k) for k in range(2)]
    for k, expert in enumerate(experts):
        expert.load_state_dict({n: t[k] for n, t in part(state.shared, "experts.").items()})
    mixture = plain.Mixture(experts)
    with torch.no_grad():
        mixture.phi += torch.tensor([[0.5, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    state.shared["phi"] = mixture.phi.detach().clone()
    clients = plain.clients_of(fed, 99)
    plain.add_gates(clients, mixture)
    noise = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    state.local["gate.A"] += 2 * noise  # let gates matter
    for client in clients:
        client.gate.weight.data = state.local["gate.A"][0].T.clone()
    adam = torch.optim.Adam(mixture.parameters(), lr=0.01, eps=1e-2)
    for _ in range(ROUNDS):
        plain.fedmix_round(mixture, adam, clients, algorithm.client.lr, plain.label_shares(clients))
    state = engine_rounds(fed, algorithm, state)
    torch.testing.assert_close(state.shared["phi"], mixture.phi.detach(), rtol=1e-4, atol=1e-5)
    for k, expert in enumerate(mixture.experts):
        for name, leaf in expert.state_dict().items():
            got = state.shared[f"experts.{name}"][k]
            torch.testing.assert_close(got, leaf, rtol=1e-3, atol=1e-5)
    for row, client in enumerate(clients):
        gate = client.gate.weight.detach().T
        torch.testing.assert_close(state.local["gate.A"][row], gate, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_case_plays_in_every_way(name):
    case = CASES[name]
    tiny = Case(case.title, case.algorithm, case.model, case.shape, clients=3, size=11, cohort=2)
    frame = bench.measure(tiny, repeat=2).assign(peak_mib=1.0)
    assert sorted(set(frame["way"])) == sorted(WAYS) and len(frame) == 2 * len(WAYS)
    assert (frame["seconds"] > 0).all()
    assert all(f"{pair}: " in bench.describe(frame) for pair in ("engine/floor", "plain/engine"))


def test_ratios_are_medians_within_a_repetition():
    seconds = {"floor": [1.0, 10.0, 1.0], "engine": [2.0, 20.0, 8.0], "plain": [4.0, 40.0, 8.0]}
    rows = [(t, way, s) for way, times in seconds.items() for t, s in enumerate(times)]
    frame = pd.DataFrame(rows, columns=["repetition", "way", "seconds"])
    assert bench.ratio(frame, "engine", "floor") == 2.0
    assert bench.ratio(frame, "plain", "engine") == 2.0


def test_results_are_written_with_the_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDLIB_BUILD", str(tmp_path))
    small = Case("small", FedAvg(), CASES["F"].model, (4, 4, 1), clients=2, size=3, cohort=1)
    monkeypatch.setattr(bench, "CASES", {"F": small})
    monkeypatch.setattr(bench, "peak_mib", lambda case, way: peak_here(case, way, 1))
    threads = torch.get_num_threads()
    bench.main(["--cases", "F", "--repeat", "1", "--threads", str(threads)])
    frame = pd.read_parquet(tmp_path / "bench.parquet")
    assert set(frame["way"]) == set(WAYS) and (frame["threads"] == threads).all()
    assert frame["peak_mib"].between(20, 10**6).all()
    assert (frame["torch"] == torch.__version__).all() and set(frame["case"]) == {"F"}
    assert "engine/floor" in capsys.readouterr().out


@pytest.mark.parametrize("bad", [["--repeat", "0"], ["--cases", "Z"], ["--threads", "x"]])
def test_bad_arguments_are_errors(bad, capsys):
    with pytest.raises(SystemExit):
        bench.main(bad)
    assert "error: " in capsys.readouterr().err
