"""Generalist, specialist and gate: by hand, in their limits, and where each begins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation, parts_of, scatter
from playing import SKEWED, close, equal, play

from fedlib import FedAvg, LastClient, Local, Mixture, adam
from fedlib.engine import State, play_round
from fedlib.federation import OPTED_IN
from fedlib.models import MLP, Batch, FunctionalModel, LeNet, add_prefix, select_prefix
from fedrun import Experiment, run_with_state

FAST = {"batch_size": 4, "epochs": 3, "client": adam(0.01), "stop": None}
POOLS = ("probabilities", "log")


@pytest.fixture
def federated(fed):
    return play(FedAvg(batch_size=4), fed)[0]


def probabilities(fed, algorithm, state, row, x):
    """Probabilities of generalist and specialist and the gate, without the algorithm's help."""
    own, _ = parts_of(fed, algorithm, state, row)

    def net(prefix, module):
        return module(select_prefix(own, prefix), x)

    generalist = "copy." if algorithm.train_global else "global."
    gate = torch.sigmoid(net("gate.", fed.net.like(algorithm.gate, 1)))[:, 0]
    specialist = net("own.", fed.net.like(algorithm.expert))
    return net(generalist, fed.net).softmax(-1), specialist.softmax(-1), gate


@pytest.mark.parametrize("train_global", [False, True])
@pytest.mark.parametrize("pool", POOLS)
def test_loss_and_prediction_are_those_of_the_formula(fed, federated, pool, train_global):
    """Eq. 3 of 001 with probabilities; as released a mean of two cross-entropies."""
    algorithm = Mixture(pool=pool, train_global=train_global, gate=MLP((5,)), **FAST)
    state = scatter(algorithm.init(fed, 0, federated), scale=0.3)
    x, y = fed.test.inputs(torch.arange(10)), fed.test.y[:10]
    f_g, f_s, h = (t.double().numpy() for t in probabilities(fed, algorithm, state, 1, x))
    at = np.arange(10), y.numpy()
    if pool == "log":
        expected = np.mean(-h * np.log(f_s[at]) - (1 - h) * np.log(f_g[at]))
        mixed = f_s ** h[:, None] * f_g ** (1 - h[:, None])
        mixed /= mixed.sum(1, keepdims=True)
    else:
        mixed = h[:, None] * f_s + (1 - h[:, None]) * f_g
        expected = np.mean(-np.log(mixed[at]))
    params, ctx = parts_of(fed, algorithm, state, 1)
    batch = Batch(x, y, torch.ones(10))
    assert float(algorithm.loss(fed.net, params, ctx, batch)) == pytest.approx(expected, rel=1e-5)
    code = algorithm.shared_forward(fed.net, params, x)
    said = algorithm.predict(fed.net, params, ctx, code)
    np.testing.assert_allclose(said.logp.exp().numpy(), mixed, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(said.gate.numpy(), np.stack([1 - h, h], 1), rtol=1e-5)


def test_a_network_that_gives_out_p_for_log_p_is_trained_on_p(fed):
    """As released for Fashion-MNIST: -p(y) alone, -[h p_s(y) + (1 - h) p_g(y)] in the mixture."""
    fed = replace(
        fed, net=FunctionalModel(LeNet((2,), (9, 5), kernel=3, output="softmax"), (8, 8, 1), 10)
    )
    x, y = fed.test.inputs(torch.arange(10)), fed.test.y[:10]
    batch, at = Batch(x, y, torch.ones(10)), (np.arange(10), y.numpy())
    first, mix = FedAvg().init(fed, 0), Mixture(pool="log", **FAST)
    p = fed.net(first.server_params, x).softmax(-1).numpy()
    alone = FedAvg().loss(fed.net, first.server_params, {}, batch)
    assert float(alone) == pytest.approx(-p[at].mean(), rel=1e-5)
    state = scatter(mix.init(fed, 0, first), scale=0.5)
    f_g, f_s, h = (t.numpy() for t in probabilities(fed, mix, state, 1, x))
    mixed = h[:, None] * f_s + (1 - h[:, None]) * f_g
    params, ctx = parts_of(fed, mix, state, 1)
    loss = mix.loss(fed.net, params, ctx, batch)
    assert float(loss) == pytest.approx(-mixed[at].mean(), rel=1e-5)
    said = mix.predict(fed.net, params, ctx, mix.shared_forward(fed.net, params, x))
    assert said.logp.argmax(1).tolist() == mixed.argmax(1).tolist()


def test_what_opted_out_trains_gate_and_specialist_only(fed, federated):
    """002: the generalist learns from opt-in data. Client 1 opted out, client 2 in part."""
    algorithm = Mixture(train_global=True, **FAST)
    of, place = fed.train.owners, torch.arange(len(fed.train.indices))
    out = (of == 1) | (of == 2) & ((place - fed.train.offsets[0][of]) % 2 == 0)
    fed.train.side[OPTED_IN] = (~out).long()
    state, _ = play(algorithm, fed, rounds=1, first=federated)
    for name, leaf in federated.server_params.items():
        copies, own = state.client_params[f"copy.{name}"], state.client_params[f"own.{name}"]
        assert torch.equal(copies[1], leaf) and not torch.equal(own[1], leaf)
        assert not torch.equal(copies[0], leaf) and not torch.equal(copies[2], leaf)


def test_gradients_of_the_generalist_are_those_of_the_examples_that_opted_in(fed, federated):
    algorithm = Mixture(train_global=True, **FAST)
    params, ctx = parts_of(fed, algorithm, algorithm.init(fed, 0, federated), 0)
    x, y = fed.test.inputs(torch.arange(8)), fed.test.y[:8]
    inside = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0])
    names = [n for n in params if n.startswith("copy.")]

    def gradient(rows, **side):
        leaves = {n: t.clone().requires_grad_(n in names) for n, t in params.items()}
        batch = Batch(x[rows], y[rows], torch.ones(len(rows)), side=side)
        loss = algorithm.loss(fed.net, leaves, ctx, batch) * len(rows)
        return torch.autograd.grad(loss, [leaves[n] for n in names])

    partly = gradient(torch.arange(8), **{OPTED_IN: inside})
    only = gradient(torch.nonzero(inside)[:, 0])
    for got, expected in zip(partly, only, strict=True):
        torch.testing.assert_close(got, expected)


def test_specialists_start_from_what_came_before(fed, federated):
    """001: fine-tuned ones; 002: from scratch; straight after the federation, its model."""
    tuned, _ = play(Local(batch_size=4), fed, first=federated)
    never, _ = play(Local(batch_size=4), fed)
    alone = State(federated.server_params, never.client_params)
    for first in (tuned, alone, federated):
        begun = Mixture(**FAST).init(fed, 0, first)
        for n, leaf in federated.server_params.items():
            own = first.client_params.get(n, leaf.expand(3, *leaf.shape))
            assert torch.equal(begun.client_params[f"own.{n}"], own)
            assert torch.equal(begun.server_params[f"global.{n}"], leaf), "handed on by all"


def test_gates_have_the_parameters_of_the_paper():
    fed = make_federation((6, 6), model=LeNet(), shape=(32, 32, 3), classes=10)
    params = Mixture().init(fed, 0, FedAvg().init(fed, 0)).client_params
    for prefix, count in (("own.", 62_006), ("gate.", 61_241)):
        assert sum(t[0].numel() for n, t in params.items() if n.startswith(prefix)) == count


def test_the_last_clients_model_is_handed_out_and_the_average_goes_on(fed):
    """As released (A21): two rounds by hand, from FedAvg's."""
    average, released = FedAvg(batch_size=4), LastClient(batch_size=4)
    state, other = average.init(fed, 0), released.init(fed, 0)
    for t in range(2):
        before, how = state, {"round": t, "seed": 0, "cohort": 2}
        state, report = play_round(average, fed, state, **how)
        other, _ = play_round(released, fed, other, **how)
        assert equal(other.server_memory, add_prefix(state.server_params, "average."))
        last = {n: before.server_params[n] - t[1] for n, t in report.messages.items()}
        close(last, other.server_params, rtol=1.3e-6, atol=1e-5)
    judged = released.assign_clusters(fed, other, for_selection=True)
    assert equal(judged.server_params, state.server_params) and judged.server_memory == {}
    assert average.assign_clusters(fed, state, for_selection=True) is state


def test_the_average_decides_which_round_the_last_clients_model_is_of():
    how = {"rounds": 6, "cohort": 2, "evaluate_every": 1, "select": "best"}
    kinds = (kind(client=adam(0.02), epochs=3) for kind in (FedAvg, LastClient))
    both = [run_with_state(Experiment(SKEWED, kind, **how), progress=False) for kind in kinds]
    (average, released), states = zip(*both, strict=True)
    for metric in ("validation_nll", "kept_round"):
        one, other = (r.select(metric)["value"].to_pylist() for r in (average, released))
        assert one == other and max(one) > 0
    assert average.curve("test_nll") != released.curve("test_nll")
    best = {n.removeprefix("average."): t for n, t in states[1].server_memory.items()}
    assert equal(states[0].server_params, best)
