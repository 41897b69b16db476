"""What the benchmarks compare must be the same computation; no test looks at the clock."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import LENET, make_federation
from playing import close, play

from benchmarks import __main__ as bench
from benchmarks import plain
from benchmarks.cases import CASES, federation, ratio
from fedlib import FedAvg, FedMix, Optimizer
from fedlib.models import BiLSTM, select_prefix

ROUNDS = 3
CPU = torch.device("cpu")


ADAM = Optimizer("adam", lr=0.01, eps=1e-2)
TEXTS = replace(CASES["I"], model=BiLSTM(30, 5, 4), shape=(6,), clients=3, size=7, cohort=3)


EVEN, UNEVEN, TEXT = ((8, 8, 8), Optimizer()), ((3, 9, 6), ADAM), (None, ADAM)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "client"), [EVEN, UNEVEN, TEXT])
def test_the_plain_fedavg_computes_what_the_engine_computes(sizes, client):
    fed = federation(TEXTS, CPU)
    if sizes is not None:
        fed = make_federation(sizes, model=LENET, shape=(12, 12, 1))
    algorithm = FedAvg(batch_size=None, client=client, epochs=2)
    state = algorithm.init(fed, 0)
    model = plain.usual(fed.net.module_of(9))
    model.load_state_dict(state.server_params)
    for _ in range(ROUNDS):
        plain.fedavg_round(model, plain.clients_of(fed, 99), client, epochs=2)
    state, _ = play(algorithm, fed, ROUNDS, state=state)
    close(model.state_dict(), state.server_params)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 8, 8), (3, 9, 6)])
def test_the_plain_fedmix_computes_what_the_engine_computes(sizes):
    fed = make_federation(sizes, model=LENET, shape=(12, 12, 1))
    server = Optimizer("adam", lr=0.01, eps=1e-2)
    algorithm = FedMix(experts=2, batch_size=None, server=server)
    state = algorithm.init(fed, 0)
    experts = [fed.net.module_of(k) for k in range(2)]
    for k, expert in enumerate(experts):
        mine = {n: t[k] for n, t in select_prefix(state.server_params, "experts.").items()}
        expert.load_state_dict(mine)
    mixture = plain.Mixture(experts)
    with torch.no_grad():
        mixture.phi += torch.tensor([[0.5, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    state.server_params["phi"] = mixture.phi.detach().clone()
    clients = plain.clients_of(fed, 99)
    plain.add_gates(clients, mixture)
    noise = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    state.client_params["gate.A"] += 2 * noise  # let gates matter
    for client in clients:
        client.gate.weight.data = state.client_params["gate.A"][0].T.clone()
    adam = torch.optim.Adam(mixture.parameters(), lr=0.01, eps=1e-2)
    for _ in range(ROUNDS):
        plain.fedmix_round(mixture, adam, clients, algorithm.client.lr, plain.label_shares(clients))
    state, _ = play(algorithm, fed, ROUNDS, state=state)
    torch.testing.assert_close(
        state.server_params["phi"], mixture.phi.detach(), rtol=1e-4, atol=1e-5
    )
    trained = select_prefix(state.server_params, "experts.")
    for k, expert in enumerate(mixture.experts):
        mine = {n: t[k] for n, t in trained.items()}
        close(expert.state_dict(), mine, rtol=1e-3, atol=1e-5)
    for row, client in enumerate(clients):
        gate = client.gate.weight.detach().T
        torch.testing.assert_close(state.client_params["gate.A"][row], gate, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_plays_in_every_way(name):
    case = replace(CASES[name], clients=3, size=11, cohort=2)
    case = replace(case, populations={"7 clients": (7, 1.1)} if case.populations else {})
    frame = case.measure(2, CPU).assign(peak_mib=1.0)
    assert sorted(set(frame["way"])) == sorted(case.ways) and len(frame) == 2 * len(case.ways)
    assert (frame["seconds"] > 0).all()
    said = case.text(frame)
    assert all(f"{over} / {under}: " in said for over, under, _ in case.ratios)


def timed(**by_way):
    rows = [(t, way, s) for way, times in by_way.items() for t, s in enumerate(times)]
    return pd.DataFrame(rows, columns=["repetition", "way", "seconds"])


def test_ratios_are_medians_within_a_repetition():
    frame = timed(floor=[1.0, 10.0, 1.0], engine=[2.0, 20.0, 8.0], plain=[4.0, 40.0, 8.0])
    assert ratio(frame, "engine", "floor") == ratio(frame, "plain", "engine") == 2.0


def test_what_is_said_of_the_measured_numbers_is_what_they_say():
    frame = pd.read_parquet(Path(bench.__file__).with_name("measured.parquet"))
    assert Path(bench.__file__).with_name("measured.txt").read_text() == bench.text(frame)
