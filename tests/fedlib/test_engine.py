"""The engine against a plain loop of separate torch trainings, and its promises on randomness."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.algorithms import FedAvg, FedMix, Local
from fedlib.engine import EarlyStop, Phase, TrainingDiverged, evaluate, play_round, select
from fedlib.engine.batches import make_plan
from fedlib.engine.evaluate import nll_of
from fedlib.engine.rounds import cohort_size
from fedlib.engine.train import Cohort, train
from fedlib.models import MLP, each
from fedlib.optim import Optimizer

OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1),
    "momentum": Optimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Optimizer("adam", lr=0.01),
    "adamw": Optimizer("adamw", lr=0.01, weight_decay=0.1),
}


def plain_loop(fed, algorithm, seed, round):
    """Every client on its own: deep copy, DataLoader-like slices, torch.optim, cross-entropy."""
    torch.set_num_threads(1)
    models = {}
    for row, client in enumerate(fed.ids):
        model = copy.deepcopy(fed.net.module_of(0))
        model.load_state_dict(algorithm.leaves(fed, seed))
        optimizer = algorithm.client.build(dict(model.named_parameters()))
        held = fed.train.index[row, : fed.train.sizes[row]]
        x, y = fed.train.inputs(held), fed.train.y[held]
        plan = make_plan(
            fed.ids[[row]],
            fed.train.sizes[[row]],
            batch_size=algorithm.batch_size,
            epochs=algorithm.epochs,
            seed=seed,
            where=(round, 0),
        )
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
    fed = make_federation(sizes, model=model, shape=(12, 12, 1))
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
    before = algorithm.init(fed, 0)
    start = {n: t.clone() for n, t in before.local.items()}
    after, _ = play_round(algorithm, fed, before, round=0, seed=0, cohort=2, chunk=2)
    assert all(torch.equal(after.local[n][1], start[n][1]) for n in start)
    assert not torch.equal(after.local["head.weight"][0], start["head.weight"][0])


@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=5), FedMix(experts=3, batch_size=5)])
def test_chunk_does_not_change_a_round(algorithm):
    fed = make_federation((11, 4, 9), model=LENET, shape=(12, 12, 1))
    states = [
        play_round(algorithm, fed, algorithm.init(fed, 1), round=0, seed=1, cohort=3, chunk=c)[0]
        for c in (1, 2, 3)
    ]
    for other in states[1:]:
        for name, leaf in {**states[0].shared, **states[0].local}.items():
            torch.testing.assert_close(
                {**other.shared, **other.local}[name], leaf, rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("chunk", [1, 3])
def test_experts_in_one_vmapped_program_equal_experts_one_by_one(monkeypatch, chunk):
    """The path that a GPU takes: clients and experts both vmapped."""
    fed = make_federation((11, 4, 9), model=LENET, shape=(12, 12, 1))
    algorithm = FedMix(experts=3, batch_size=5)

    def end():
        start = algorithm.init(fed, 1)
        state, _ = play_round(algorithm, fed, start, round=0, seed=1, cohort=3, chunk=chunk)
        return state.flat(), evaluate(fed, algorithm, state, fed.test).nll

    one_by_one, nll = end()
    monkeypatch.setattr("fedlib.algorithms.fedmix.each", partial(each, together=True))
    together, other = end()
    for name, leaf in one_by_one.items():
        torch.testing.assert_close(together[name], leaf, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(other, nll, rtol=1e-4)


def test_same_bits_twice():
    def once():
        fed = make_federation((11, 4, 9), model=LENET, shape=(12, 12, 1))
        algorithm = FedMix(experts=2, batch_size=4)
        state = algorithm.init(fed, 3)
        for t in range(3):
            state, _ = play_round(algorithm, fed, state, round=t, seed=3, cohort=2)
        return state.flat()

    first, second = once(), once()
    assert all(torch.equal(first[n], second[n]) for n in first)


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
    plan = make_plan(ids, n, batch_size=batch, epochs=epochs, seed=seed, where=(1, 0))
    for i, size in enumerate(sizes):
        real = plan.counts[i, : plan.ends[i]]
        assert (real > 0).all() and (plan.counts[i, plan.ends[i] :] == 0).all()
        seen = [plan.positions[i, t, :c] for t, c in enumerate(plan.counts[i]) if c]
        seen = np.concatenate(seen) if seen else np.array([], dtype=int)
        times = np.bincount(seen, minlength=max(size, 1))
        assert times.max(initial=0) <= epochs
        assert len(seen) == epochs * size
    alone = make_plan(
        ids[-1:],
        n[-1:],
        batch_size=batch or max(sizes) or None,
        epochs=epochs,
        seed=seed,
        where=(1, 0),
    )
    steps, width = alone.positions.shape[1:]
    assert (alone.positions[0] == plan.positions[-1, :steps, :width]).all()


def _phase(stop, epochs=40):
    return Phase(Optimizer("adam", lr=0.02), epochs=epochs, batch_size=4, stop=stop)


def test_early_stopping_returns_each_clients_best_weights():
    fed = make_federation((12, 5, 9))
    algorithm = FedAvg()
    rows = np.arange(3)
    leaves = algorithm.start(fed, algorithm.init(fed, 0), torch.arange(3))
    phase = _phase(EarlyStop(every=2, patience=3))
    plan = make_plan(fed.ids, fed.train.sizes, batch_size=4, epochs=40, seed=0, where=(0, 0))
    watch = nll_of(algorithm, fed)
    loss = partial(lambda p, c, b, k: algorithm.loss(fed.net, p, c, b))
    together, _ = train(Cohort(fed, rows, leaves, {}, {}), phase, plan, loss, watch)
    for i in rows:
        expected = _stop_by_hand(fed, algorithm, leaves, i, plan, phase, watch)
        for name, value in expected.items():
            torch.testing.assert_close(together[name][i], value, rtol=1e-4, atol=1e-5)


def _stop_by_hand(fed, algorithm, leaves, i, plan, phase, watch):
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
            now = float(
                watch(w, {}, {n: b[0] for n, b in fed.validation.whole(row).items()}, {}).detach()
            )
            waited += 1
            if now < best:
                best, waited, kept = now, 0, {n: v.detach().clone() for n, v in w.items()}
            if waited == phase.stop.patience:
                break
    return kept


def test_evaluation_equals_a_loop_over_clients():
    fed = make_federation((10, 10, 10), model=LENET, shape=(12, 12, 1))
    for algorithm in (FedAvg(), FedMix(experts=2), Local()):
        state = algorithm.init(fed, 0)
        scores = evaluate(fed, algorithm, state, fed.test)
        for i in range(3):
            held = fed.test.index[i]
            own = {n: t[i] for n, t in state.local.items()}
            ctx = {
                n: t[0] for n, t in algorithm.client_context(fed, state, torch.tensor([i])).items()
            }
            code = algorithm.encode(fed.net, state.shared, fed.test.inputs(held))
            logp = algorithm.predict(fed.net, {**state.shared, **own}, ctx, code).logp
            right = (logp.argmax(1) == fed.test.y[held]).double().mean()
            assert scores.accuracy[i] == pytest.approx(float(right))
            said = -logp[torch.arange(6), fed.test.y[held]].double().mean()
            assert scores.nll[i] == pytest.approx(float(said), rel=1e-4)


def test_a_diverging_client_is_named():
    fed = make_federation((8, 8))
    algorithm = FedAvg(client=Optimizer("sgd", lr=1e30), epochs=4, batch_size=2)
    with pytest.raises(TrainingDiverged, match=r"round 3: the loss of client"):
        play_round(algorithm, fed, algorithm.init(fed, 0), round=3, seed=0, cohort=2)


@pytest.mark.parametrize("cohort", [0, 4, -1, 0.0, 2.0])
def test_a_cohort_that_does_not_fit_is_an_error(cohort):
    with pytest.raises(ValueError, match=f"cohort of {cohort} does not fit 3 clients"):
        cohort_size(cohort, 3)


@pytest.mark.parametrize(
    ("cohort", "clients", "size"),
    [
        (0.03, 182, 6),  # 5.46, the writers of 003
        (0.1, 50, 5),
        (0.1, 41, 5),
        (0.07, 100, 7),  # 7.000000000000001 in floats
        (0.29, 100, 29),  # 28.999999999999996
        (5 / 6, 6, 5),
        (1 / 3, 3, 1),
        (0.1 + 0.2, 10, 3),
        (1e-12, 50, 1),
        (1.0, 50, 50),
        (7, 50, 7),
    ],
)
def test_a_fraction_of_the_clients_is_rounded_up(cohort, clients, size):
    """003, algorithm 1, line 3; what a product of floats is off by rounds nothing up."""
    assert cohort_size(cohort, clients) == size


@pytest.mark.parametrize("cohort", [math.inf, math.nan])
def test_a_cohort_is_a_finite_share(cohort):
    with pytest.raises(ValueError, match="does not fit 50 clients"):
        cohort_size(cohort, 50)


def test_bad_phases_are_errors(fed):
    with pytest.raises(ValueError, match="epochs must be >= 1, got 0"):
        FedAvg(epochs=0)
    with pytest.raises(ValueError, match="batch_size must be >= 1 or None, got 0"):
        FedAvg(batch_size=0)
    with pytest.raises(ValueError, match="patience must be >= 1"):
        EarlyStop(patience=0)
    with pytest.raises(ValueError, match="chunk must be >= 1"):
        a = FedAvg()
        play_round(a, fed, a.init(fed, 0), round=0, seed=0, cohort=1, chunk=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu():
    cpu, cuda = make_federation(model=LENET, shape=(12, 12, 1)), None
    cuda = make_federation(model=LENET, shape=(12, 12, 1)).to("cuda")
    algorithm = FedMix(experts=2, batch_size=4)
    ends = [
        play_round(algorithm, f, algorithm.init(f, 0), round=0, seed=0, cohort=3)[0].shared
        for f in (cpu, cuda)
    ]
    for name, leaf in ends[0].items():
        torch.testing.assert_close(ends[1][name].cpu(), leaf, rtol=1e-3, atol=1e-4)
