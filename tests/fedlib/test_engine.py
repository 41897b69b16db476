"""The engine against a plain loop of separate torch trainings, and its promises on randomness."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import LENET, after, assert_alike, make_federation, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.algorithms import FedAvg, FedMix, Local
from fedlib.engine import EarlyStop, Phase, TrainingDiverged, evaluate, play_round, select
from fedlib.engine.batches import make_plan
from fedlib.engine.evaluate import nll
from fedlib.engine.rounds import cohort_size
from fedlib.engine.train import Cohort, train
from fedlib.models import MLP, LeNet, each, fedmix_lenet5
from fedlib.optim import Optimizer

OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1),
    "momentum": Optimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Optimizer("adam", lr=0.01),
    "adamw": Optimizer("adamw", lr=0.01, weight_decay=0.1),
}


def images(sizes=(11, 4, 9), model=LENET):
    return make_federation(sizes, model=model, shape=(12, 12, 1))


def plain_loop(fed, algorithm, seed, round):
    """Every client on its own: deep copy, DataLoader-like slices, torch.optim, cross-entropy."""
    models = {}
    for row, client in enumerate(fed.ids):
        model = copy.deepcopy(fed.net.module_of(0))
        model.load_state_dict(algorithm.leaves(fed, seed))
        optimizer = algorithm.client.build(dict(model.named_parameters()))
        held = fed.train.index[row, : fed.train.sizes[row]]
        x, y = fed.train.inputs(held), fed.train.y[held]
        how = {"batch_size": algorithm.batch_size, "epochs": algorithm.epochs, "seed": seed}
        plan = make_plan(fed.ids[[row]], fed.train.sizes[[row]], where=(round, 0), **how)
        for t in range(plan.steps):
            some = plan.positions[0, t, : plan.counts[0, t]]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
        models[int(client)] = {n: p.detach() for n, p in model.named_parameters()}
    return models


@pytest.mark.parametrize("model", [MLP(hidden=(7,)), LENET], ids=["mlp", "lenet"])
@pytest.mark.parametrize("sizes", [(12, 12, 12, 12), (3, 17, 8, 1)], ids=["equal", "ragged"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_cohort_equals_separate_trainings(model, sizes, name, chunk):
    fed = images(sizes, model)
    algorithm = Local(client=OPTIMIZERS[name], epochs=3, batch_size=4)
    state, _ = play_round(
        algorithm, fed, algorithm.init(fed, 5), round=2, seed=5, cohort=4, chunk=chunk
    )
    for client, expected in plain_loop(fed, algorithm, 5, 2).items():
        for leaf, value in expected.items():
            torch.testing.assert_close(state.local[leaf][client], value, rtol=1e-4, atol=1e-5)


def test_a_client_without_examples_keeps_its_weights():
    fed = make_federation((4, 0))
    algorithm = Local(client=OPTIMIZERS["momentum"], epochs=2, batch_size=2)
    start, end = algorithm.init(fed, 0).local, after(algorithm, fed, chunk=2).local
    assert all(torch.equal(end[n][1], start[n][1]) for n in start)
    assert not torch.equal(end["head.weight"][0], start["head.weight"][0])


@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=5), FedMix(experts=3, batch_size=5)])
def test_chunk_does_not_change_a_round(algorithm):
    one, two, three = (after(algorithm, images(), seed=1, chunk=c) for c in (1, 2, 3))
    assert_alike(one, two, rtol=1e-3, atol=1e-5)
    assert_alike(one, three, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3])
def test_experts_in_one_vmapped_program_equal_experts_one_by_one(monkeypatch, chunk):
    """The path that a GPU takes: clients and experts both vmapped."""
    fed, algorithm = images(), FedMix(experts=3, batch_size=5)
    one_by_one = after(algorithm, fed, seed=1, chunk=chunk)
    nll = evaluate(fed, algorithm, one_by_one, fed.test).nll
    monkeypatch.setattr("fedlib.algorithms.fedmix.each", partial(each, together=True))
    together = after(algorithm, fed, seed=1, chunk=chunk)
    assert_alike(one_by_one, together, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(evaluate(fed, algorithm, together, fed.test).nll, nll, rtol=1e-4)


def test_permuting_the_population_changes_no_clients_draws():
    fed = make_federation((9, 5, 7, 6))
    order = np.array([2, 0, 3, 1])
    algorithm = Local(batch_size=2, epochs=2)
    kwargs = {"round": 4, "seed": 2, "cohort": 3, "chunk": 1}
    straight, _ = play_round(algorithm, fed, algorithm.init(fed, 2), **kwargs)
    mixed = fed.permuted(order)
    permuted, _ = play_round(algorithm, mixed, algorithm.init(mixed, 2), **kwargs)
    assert set(fed.ids[select(fed, 3, 2, 4)]) == set(mixed.ids[select(mixed, 3, 2, 4)])
    for name, leaf in straight.local.items():
        assert torch.equal(leaf[torch.tensor(order)], permuted.local[name])


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 23), min_size=1, max_size=5),
    batch=st.one_of(st.none(), st.integers(1, 9)),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_a_plan_shows_every_example_once_per_epoch(sizes, batch, epochs, seed):
    ids, n = np.arange(len(sizes)) + 7, np.array(sizes)
    how = {"epochs": epochs, "seed": seed, "where": (1, 0)}
    plan = make_plan(ids, n, batch_size=batch, **how)
    for i, size in enumerate(sizes):
        real = plan.counts[i, : plan.ends[i]]
        assert (real > 0).all() and (plan.counts[i, plan.ends[i] :] == 0).all()
        for epoch in np.split(np.arange(plan.ends[i]), epochs):
            seen = [p for t in epoch for p in plan.positions[i, t, : plan.counts[i, t]]]
            assert sorted(seen) == list(range(size))
    alone = make_plan(ids[-1:], n[-1:], batch_size=batch or max(sizes) or None, **how)
    steps, width = alone.positions.shape[1:]
    assert (alone.positions[0] == plan.positions[-1, :steps, :width]).all()


@pytest.mark.parametrize("keep", ["best", "last"])
def test_early_stopping_returns_each_clients_best_weights(keep):
    fed, rows = make_federation((12, 5, 9)), torch.arange(3)
    algorithm = FedAvg()
    leaves = algorithm.start(fed, algorithm.init(fed, 0), rows)
    stop = EarlyStop(every=2, patience=3, keep=keep)
    phase = Phase(Optimizer("adam", lr=0.02), epochs=40, batch_size=4, stop=stop)
    plan = make_plan(fed.ids, fed.train.sizes, batch_size=4, epochs=40, seed=0, where=(0, 0))
    cohort = Cohort(fed, rows, leaves, {}, {}, torch.zeros(3))
    together = train(algorithm, cohort, phase, plan, chunk=3, usual=3).leaves
    for i in range(3):
        expected = _stop_by_hand(fed, algorithm, leaves, i, plan, phase)
        for name, value in expected.items():
            torch.testing.assert_close(together[name][i], value, rtol=1e-4, atol=1e-5)


def _stop_by_hand(fed, algorithm, leaves, i, plan, phase):
    w = {n: t[i].clone().requires_grad_(True) for n, t in leaves.items()}
    optimizer = phase.optimizer.build(w)
    best, kept, waited = np.inf, None, 0
    row = torch.tensor([i])
    for t in range(plan.ends[i]):
        c = plan.counts[i, t]
        places = plan.positions[i, t, :c].reshape(1, 1, -1)
        batch = next(fed.train.batches(row, places, np.array([[c]]), np.array([c])))
        optimizer.zero_grad()
        algorithm.loss(fed.net, w, {}, {n: b[0] for n, b in batch.items()}).backward()
        optimizer.step()
        if (t + 1) % (phase.stop.every * plan.per_epoch[i]) == 0:
            held = {n: b[0] for n, b in fed.validation.whole(row).items()}
            now = float(nll(algorithm)(fed.net, w, {}, held).detach())
            waited += 1
            if now < best:
                best, waited, kept = now, 0, {n: v.detach().clone() for n, v in w.items()}
            if waited == phase.stop.patience:
                break
    assert waited == phase.stop.patience
    return kept if phase.stop.keep == "best" else {n: v.detach() for n, v in w.items()}


@pytest.mark.parametrize("algorithm", [FedAvg(), FedMix(experts=2), Local()], ids=repr)
def test_evaluation_equals_a_loop_over_clients(algorithm):
    fed = images((10, 10, 10))
    state = algorithm.init(fed, 0)
    scores = evaluate(fed, algorithm, state, fed.test)
    for i in range(3):
        held = fed.test.index[i]
        code = algorithm.encode(fed.net, state.shared, fed.test.inputs(held))
        logp = algorithm.predict(fed.net, *parts_of(fed, algorithm, state, i), code).logp
        right = (logp.argmax(1) == fed.test.y[held]).double().mean()
        assert scores.accuracy[i] == pytest.approx(float(right))
        said = -logp[torch.arange(6), fed.test.y[held]].double().mean()
        assert scores.nll[i] == pytest.approx(float(said), rel=1e-4)


def test_clients_without_tests_have_no_score(fed):
    nobody = replace(fed.test, sizes=np.zeros(3, dtype=int))
    scores = evaluate(fed, FedMix(), FedMix().init(fed, 0), nobody)
    assert np.isnan(scores.accuracy).all() and np.isnan(scores.nll).all() and scores.gate is None


def test_a_diverging_client_is_named():
    fed = make_federation((8, 8))
    algorithm = FedAvg(client=Optimizer("sgd", lr=1e30), epochs=4, batch_size=2)
    with pytest.raises(TrainingDiverged, match=r"round 3: the loss of client"):
        play_round(algorithm, fed, algorithm.init(fed, 0), round=3, seed=0, cohort=2)


@pytest.mark.parametrize("cohort", [0, 4, -1, 0.0, 2.0, math.inf, math.nan])
def test_a_cohort_that_does_not_fit_is_an_error(cohort):
    with pytest.raises(ValueError, match=f"cohort of {cohort} does not fit 3 clients"):
        cohort_size(cohort, 3)


@pytest.mark.parametrize(
    ("cohort", "clients", "size"),
    [
        (0.03, 182, 6),  # 5.46, the writers of 003
        (0.1, 50, 5),
        (0.07, 100, 7),  # 7.000000000000001 in floats
        (0.29, 100, 29),  # 28.999999999999996
        (1 / 3, 3, 1),
        (1e-12, 50, 1),
        (1.0, 50, 50),
        (7, 50, 7),
    ],
)
def test_a_fraction_of_the_clients_is_rounded_up(cohort, clients, size):
    """003, algorithm 1, line 3; what a product of floats is off by rounds nothing up."""
    assert cohort_size(cohort, clients) == size


def test_bad_phases_are_errors(fed):
    with pytest.raises(ValueError, match="epochs must be >= 1, got 0"):
        FedAvg(epochs=0)
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        FedAvg(batch_size=0)
    with pytest.raises(ValueError, match="patience must be >= 1"):
        EarlyStop(patience=0)
    with pytest.raises(ValueError, match="chunk must be >= 1"):
        after(FedAvg(), fed, chunk=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=5), FedMix(batch_size=5)], ids=repr)
def test_on_a_gpu_rounds_agree_with_the_cpu(algorithm):
    fed = images((12, 9, 12))
    cpu = after(algorithm, fed, rounds=4)
    gpu = after(algorithm, fed.to("cuda"), rounds=4).shared
    for name, leaf in cpu.shared.items():
        torch.testing.assert_close(gpu[name].cpu(), leaf, rtol=1e-3, atol=1e-4)


CIFAR10 = {"shape": (32, 32, 3), "classes": 10}
FEMNIST = {"shape": (28, 28, 1), "classes": 62}


def traffic(algorithm, model, data):
    """MB of a round of ten clients with one example each: traffic does not depend on the data."""
    fed = make_federation((1,) * 10, model=model, **data)
    state = algorithm.init(fed, 0)
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=10)
    assert len(report.down) == len(report.up) == 10
    return int((report.down + report.up).sum()) / 1e6


@pytest.mark.parametrize(
    ("algorithm", "model", "data", "megabytes"),
    [
        (FedAvg(), LeNet(), CIFAR10, 4.96),
        (FedAvg(), fedmix_lenet5(), CIFAR10, 35.5),
        (FedMix(experts=2), fedmix_lenet5(), CIFAR10, 70.9),
        (FedMix(experts=4), fedmix_lenet5(), CIFAR10, 141.9),
        (FedAvg(), fedmix_lenet5(113), CIFAR10, 142.4),
        (FedAvg(), fedmix_lenet5(), FEMNIST, 25.7),
        (FedMix(experts=4), fedmix_lenet5(), FEMNIST, 102.7),
        (Local(), fedmix_lenet5(), CIFAR10, 0.0),
    ],
)
def test_megabytes_per_round_of_ten_clients(algorithm, model, data, megabytes):
    assert traffic(algorithm, model, data) == pytest.approx(megabytes, abs=0.06)


def test_phi_and_q_are_negligible_but_counted_and_gates_cost_what_they_weigh():
    """4 experts: phi is 10 x 4 both ways, q(z|s) 4 up, an averaged gate 512 x 4 + 4 both ways."""
    local, averaged = FedMix(experts=4), FedMix(experts=4, gates="averaged")
    mixed = traffic(local, fedmix_lenet5(), CIFAR10) * 1e6
    assert mixed == 10 * 4 * (2 * (4 * 443_306 + 40) + 4)
    more = traffic(averaged, fedmix_lenet5(), CIFAR10) * 1e6
    assert more - mixed == pytest.approx(10 * 4 * 2 * (512 * 4 + 4))
