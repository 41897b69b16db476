"""Fed-Syn-MoE: its gate at the ends, and what its released code measures instead."""

from __future__ import annotations

import pytest
import torch
from conftest import LENET, make_federation
from test_algorithms import play
from test_splitting import client

from fedlib.algorithms import FedAvg, FedSynMoE
from fedlib.engine import State, play_round
from fedlib.models import FastText, Net, part
from fedlib.optim import sgd

SIZES = (11, 4, 9)
FAST = {"batch_size": 4, "client": sgd(0.2)}


def leaning(state, gate):
    """The state with gates that trust the global (0) or the local (1) base only."""
    local = {n: t * 0 if n.startswith("gate.") else t for n, t in state.local.items()}
    local["gate.head.bias"][:, gate] = 1e4
    return State(state.shared, local, memory=state.memory)


@pytest.mark.parametrize("side", [0, 1])
def test_a_one_hot_gate_is_its_base(side):
    fed = make_federation(SIZES)
    algorithm = FedSynMoE(**FAST)
    state = leaning(play(algorithm, fed)[0], side)
    x = fed.test.inputs(torch.arange(9))
    code = algorithm.encode(fed.net, state.shared, x)
    for row in range(3):
        params, ctx = client(fed, algorithm, state, row)
        base = params if side == 0 else {**params, **part(params, "own.")}
        expected = fed.net(base, x).log_softmax(-1)
        said = algorithm.predict(fed.net, params, ctx, code)
        torch.testing.assert_close(said.logp, expected)
        assert (said.gate[:, side] == 1).all()


def test_a_gate_that_trusts_the_global_base_only_is_fedavg():
    fed = make_federation(SIZES)
    algorithm, plain = FedSynMoE(**FAST), FedAvg(**FAST)
    state, expected = leaning(algorithm.init(fed, 0), 0), plain.init(fed, 0)
    for t in range(3):
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=2)
        expected, _ = play_round(plain, fed, expected, round=t, seed=0, cohort=2)
    for n, t in expected.shared.items():
        torch.testing.assert_close(state.shared[n], t)


@pytest.mark.parametrize("model", [None, LENET])
def test_one_client_at_a_time_is_the_oracle_of_the_cohort(model):
    fed = make_federation(SIZES, model=model, shape=(12, 12, 1))
    algorithm, ends = FedSynMoE(**FAST), []
    for chunk in (1, 3):
        state = algorithm.init(fed, 0)
        for t in range(2):
            state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=3, chunk=chunk)
        ends.append(state.flat())
    for n, t in ends[0].items():
        torch.testing.assert_close(ends[1][n], t, rtol=1e-3, atol=1e-5)


def test_texts_are_gated_by_their_features():
    fed = make_federation(SIZES)
    for table in (fed.train, fed.validation, fed.test):
        table.x = torch.randint(0, 20, (len(table.y), 10), dtype=torch.int32)
        table.scale = table.shift = torch.zeros(0)
    fed.net = Net(FastText(vocabulary=20, width=6), (10,), 3)
    state, report = play(FedSynMoE(**FAST), fed)
    assert report.losses.isfinite().all()
    assert state.local["gate.base.1.weight"].shape == (3, 128, 6)
