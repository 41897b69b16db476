"""FedAvg and Local by hand, and what every algorithm must do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation, parts_of
from safetensors.torch import load, save
from torch import nn

import fedlib.algorithms
from fedlib.algorithms import (
    DBE,
    GPFL,
    IFCA,
    ClusteredFedMix,
    Densities,
    FedAvg,
    FedCP,
    FedGen,
    FedGH,
    FedMix,
    FedPer,
    FedRep,
    FedSynMoE,
    LGFedAvg,
    Local,
    Mixture,
    Newcomers,
    Personal,
    PMMoE,
    PrunedFedMix,
)
from fedlib.algorithms.ifca import ClusterStop, Explore
from fedlib.algorithms.local import SecondStage
from fedlib.engine import (
    EarlyStop,
    State,
    evaluate,
    evaluate_everywhere,
    evaluate_global,
    play_round,
)
from fedlib.engine.batches import make_plan
from fedlib.models import MLP, GateNet
from fedlib.optim import Optimizer, adam, sgd


class Linear:
    """Softmax regression: the model whose gradient fits on one line."""

    def base(self, shape):
        return nn.Flatten(), int(np.prod(shape))


def begun(algorithm, fed, seed=0, first=None):
    """The first state; a second stage follows three rounds of its first."""
    if first is None and isinstance(algorithm, SecondStage | Mixture):
        first, _ = play(getattr(algorithm, "of", FedAvg(**FAST)), fed, seed=seed)
    return algorithm.init(fed, seed, first)


def play(algorithm, fed, rounds=3, seed=0, cohort=3, first=None):
    state = begun(algorithm, fed, seed, first)
    for t in range(rounds):
        state, report = play_round(algorithm, fed, state, round=t, seed=seed, cohort=cohort)
    return state, report


def arrays(leaves):
    return {n: t.double().numpy() for n, t in leaves.items()}


def one_step(fed, row, w, lr):
    """A full-batch gradient step of softmax regression in NumPy."""
    held = fed.train.index[row, : fed.train.sizes[row]].numpy()
    x = fed.train.x.numpy()[held].astype(float) / 128 - 1
    x = x.transpose(0, 3, 1, 2).reshape(len(held), -1)
    scores = np.exp(x @ w["head.weight"].T + w["head.bias"])
    error = scores / scores.sum(1, keepdims=True)
    error[np.arange(len(held)), fed.train.y.numpy()[held]] -= 1
    gradient = {"head.weight": error.T @ x / len(held), "head.bias": error.mean(0)}
    return {n: w[n] - lr * g for n, g in gradient.items()}


@pytest.mark.parametrize(("weighting", "shares"), [("size", (0.2, 0.8)), ("uniform", (0.5, 0.5))])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_two_clients_by_hand(weighting, shares, rate):
    fed = make_federation((3, 12), model=Linear(), shape=(4, 4, 2))
    algorithm = FedAvg(batch_size=None, client=sgd(0.1), server=sgd(rate), weighting=weighting)
    state = algorithm.init(fed, 0)
    start = arrays(state.shared)
    ends = [one_step(fed, row, start, lr=0.1) for row in (0, 1)]
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=2)
    for n, w in start.items():
        mean = shares[0] * ends[0][n] + shares[1] * ends[1][n]
        expected = w + rate * (mean - w)
        np.testing.assert_allclose(after.shared[n].numpy(), expected, rtol=1e-4, atol=1e-6)
        for row in (0, 1):
            sent = report.messages[n][report.rows.tolist().index(row)].numpy()
            np.testing.assert_allclose(sent, w - ends[row][n], rtol=1e-3, atol=1e-6)


def reference(fed, algorithm, rounds, seed, cohort_of, server):
    """Generalised FedAvg the way it is usually written, on nn.Modules, client after client."""
    module = fed.net.module_of(0)
    module.load_state_dict(algorithm.leaves(fed, seed))
    engine = server(module.parameters())
    for t in range(rounds):
        rows = cohort_of[t]
        total = sum(fed.train.sizes[rows])
        engine.zero_grad()
        for p in module.parameters():
            p.grad = torch.zeros_like(p)
        for row in rows:
            client = train_one(fed, algorithm, copy.deepcopy(module), row, seed, t)
            share = float(fed.train.sizes[row] / total)
            for p, q in zip(module.parameters(), client.parameters(), strict=True):
                p.grad += share * (p.detach() - q.detach())
        engine.step()
    return dict(module.named_parameters())


def train_one(fed, algorithm, model, row, seed, round):
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for t in range(plan.steps):
        some = plan.positions[0, t, : plan.counts[0, t]]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
    return model


SERVERS = {
    "average": (sgd(1.0), lambda p: torch.optim.SGD(p, lr=1.0)),
    "momentum": (sgd(0.5, 0.9), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
    "adam": (Optimizer("adam", 0.02, eps=1e-3), lambda p: torch.optim.Adam(p, 0.02, eps=1e-3)),
    "adagrad": (
        Optimizer("adagrad", 0.05, eps=1e-3),
        lambda p: torch.optim.Adagrad(p, 0.05, eps=1e-3),
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_rounds_equal_generalised_fedavg_written_out(name):
    fed = make_federation((11, 4, 9, 6), model=LENET, shape=(12, 12, 1))
    server, plain = SERVERS[name]
    algorithm = FedAvg(epochs=2, batch_size=4, client=sgd(0.1), server=server)
    state, cohorts = algorithm.init(fed, 3), []
    for t in range(4):
        state, report = play_round(algorithm, fed, state, round=t, seed=3, cohort=2)
        cohorts.append(report.rows)
    expected = reference(fed, algorithm, 4, 3, cohorts, plain)
    for n, leaf in expected.items():
        torch.testing.assert_close(state.shared[n], leaf.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad", "yogi"])
def test_every_server_learns(fed, name):
    rate = {"sgd": 0.5, "yogi": 0.05}.get(name, 0.02)
    momentum = 0.5 if name == "sgd" else 0.0
    algorithm = FedAvg(
        server=Optimizer(name, rate, momentum, eps=1e-3), client=sgd(0.1), batch_size=4
    )
    state, report = play(algorithm, fed, rounds=8)
    _, first = play(algorithm, fed, rounds=1)
    assert report.losses.mean() < 0.8 * first.losses.mean()
    assert len(state.optimizer) >= len(state.shared)


def test_local_sends_nothing_and_counts_nothing(fed):
    state, report = play(Local(), fed)
    assert (
        not state.shared
        and not state.optimizer
        and not state.memory
        and not report.messages
        and not report.weights
    )
    assert int(report.down.sum()) == int(report.up.sum()) == 0


def test_local_clients_never_learn_of_each_other():
    """The rows of a cohort of three are those of three federations of one."""
    fed = make_federation((9, 5, 7))
    algorithm = Local(batch_size=4, epochs=2)
    state, _ = play(algorithm, fed, rounds=2)
    for row in range(3):
        only = make_federation((9, 5, 7))
        only.train.sizes = np.where(only.ids == row, only.train.sizes, 0)
        alone, _ = play(algorithm, only, rounds=2)
        for n, leaf in alone.local.items():
            torch.testing.assert_close(leaf[row], state.local[n][row], rtol=1e-4, atol=1e-6)


def test_fine_tuning_starts_from_the_global_model_and_leaves_it_alone(fed):
    first, _ = play(FedAvg(batch_size=4), fed)
    kept = copy.deepcopy(first)
    tuned = Local(batch_size=4, epochs=3)
    begun = tuned.init(fed, 99, first)
    for n, leaf in first.shared.items():
        assert torch.equal(begun.local[n], leaf.expand(3, *leaf.shape))
    start = evaluate(fed, tuned, begun, fed.test)
    np.testing.assert_allclose(start.nll, evaluate(fed, FedAvg(), first, fed.test).nll, rtol=1e-6)
    state, report = play(tuned, fed, rounds=4, first=first)
    assert report.losses.mean() < start.nll.mean()
    assert not torch.equal(state.local["head.bias"][0], state.local["head.bias"][1])
    assert all(torch.equal(kept.shared[n], t) for n, t in first.shared.items())


def test_local_after_local_goes_on_and_leaves_the_first_stage_alone(fed):
    first, _ = play(Local(batch_size=4), fed)
    kept = copy.deepcopy(first)
    begun = Local().init(fed, 1, first)
    assert all(torch.equal(begun.local[n], t) for n, t in first.local.items())
    play(Local(), fed, first=first)
    assert all(torch.equal(kept.local[n], t) for n, t in first.local.items())


def test_a_first_stage_without_the_leaf_is_an_error(fed):
    first, _ = play(FedMix(experts=2), fed, rounds=1)
    with pytest.raises(ValueError, match="the first stage has no leaf of Local"):
        Local().init(fed, 0, first)


def test_bad_hyper_parameters_are_errors():
    with pytest.raises(ValueError, match=r"unknown weighting 'sizes'; .*did you mean 'size'"):
        FedAvg(weighting="sizes")
    with pytest.raises(ValueError, match="epochs must be >= 1, got -1"):
        Local(epochs=-1)


# What every algorithm must do. A new one joins by being exported.
FAST = {"batch_size": 4}
MIXED = FedMix(experts=2, personal_bias=True, **FAST)
# Second stages: what they follow has something local to be trained, or shared to be asked.
MIXTURE = {"epochs": 2, "client": adam(1e-3), **FAST}
GATED = {"epochs": 4, "client": adam(1e-2), **FAST}
FEW = {"noise": 4, "hidden": 8, "steps": 5, **FAST}
SECOND = {
    "PMMoE": PMMoE(of=FedPer(client=sgd(0.5), **FAST), **GATED),
    "FedGen": FedGen(**FEW),
    "Mixture": Mixture(**MIXTURE),
    "Mixture, log": Mixture(
        pool="log", train_global=True, expert=MLP((5,)), gate=MLP((4,)), **MIXTURE
    ),
    "Newcomers": Newcomers(of=Personal(local=("head.",), **FAST), client=sgd(0.1), **FAST),
    "Newcomers, FedMix": Newcomers(of=MIXED, client=sgd(1.0), **FAST),
    "Densities": Densities(of=MIXED, hidden=(8,), latent=2, epochs=2, client=adam(0.03), **FAST),
}
BATTERY = {
    name: SECOND.get(name) or getattr(fedlib.algorithms, name)()
    for name in fedlib.algorithms.__all__
}
BATTERY |= SECOND | {
    "FedAvg, Adam": FedAvg(server=adam(0.01), **FAST),
    "Local, early stop": Local(stop=EarlyStop(every=1, patience=1), epochs=3, **FAST),
    "FedMix, entropy": FedMix(objective="entropy", **FAST),
    "FedMix, likelihood": FedMix(objective="likelihood", **FAST),
    "FedMix, averaged gates": FedMix(gates="averaged", **FAST),
    "FedMix, personal bias": MIXED,
    "Personal, head": Personal(local=("head.",), **FAST),
    "Personal, base": Personal(local=("base.1.",), **FAST),
    "PrunedFedMix, fast": PrunedFedMix(eta=0.95, phi_scale=0.5, **FAST),
    "PrunedFedMix, all options": PrunedFedMix(eta=1.0, phi_scale=0.5, personal_bias=True, **FAST),
    "ClusteredFedMix, all options": ClusteredFedMix(
        damping=0.0, entropy_weight=2.0, personal_bias=True, gates="averaged", **FAST
    ),
    "IFCA, exploring": IFCA(clusters=3, explore=Explore(0.5, decay=1.0), **FAST),
    "IFCA, all options": IFCA(
        explore=Explore(1.0),
        inference="train",
        clustered="head.",
        stop=ClusterStop(every=1, patience=20),
        server=adam(0.01),
        **FAST,
    ),
    "FedRep, fast": FedRep(head_epochs=2, **FAST),
    "FedCP, fast": FedCP(apart=1.0, **FAST),
    "GPFL, fast": GPFL(**FAST),
    "DBE, fast": DBE(momentum=0.1, **FAST),
    "FedSynMoE, fast": FedSynMoE(**FAST),
    "PMMoE, bases": PMMoE(of=LGFedAvg(**FAST), denoise=0.4, **GATED),
    "PMMoE, vectors": PMMoE(of=DBE(kappa=0.0, client=sgd(0.5), **FAST), favour=3.0, **GATED),
    "PMMoE, dropout": PMMoE(of=FedCP(**FAST), gate=GateNet(dropout=0.1), **GATED),
    "FedMix, all options": FedMix(
        experts=2,
        label_prior="uniform",
        phi_scale=0.1,
        weighting="uniform",
        **FAST,
    ),
}
every = pytest.mark.parametrize("algorithm", BATTERY.values(), ids=BATTERY)
SIZES = (11, 4, 9)


def ragged():
    return make_federation(SIZES)


@every
def test_training_lowers_a_finite_loss(algorithm):
    fed = ragged()
    if not algorithm.phases():
        pytest.skip("trains nothing")
    state, losses = begun(algorithm, fed), []
    for t in range(25):
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=3)
        assert report.losses.shape == (3,) and report.losses.isfinite().all()
        losses.append(float(report.losses.mean()))
    # Of an auto-encoder's loss most is the entropy of pixels that are not black or white.
    # A mixture's experts stay as they are.
    enough = 0.99 if isinstance(algorithm, Densities | PMMoE) else 0.97
    assert np.mean(losses[-3:]) < enough * np.mean(losses[:3])
    assert all(t.isfinite().all() for t in state.flat().values())


@every
def test_predictions_are_distributions(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    state = algorithm.assign_models(fed, state)
    code = algorithm.encode(fed.net, state.shared, fed.test.inputs(torch.arange(10)))
    for row in range(3):
        own = {n: t[row] for n, t in state.local.items()}
        ctx = {
            n: t[0] for n, t in algorithm.client_context(fed, state, torch.tensor([row])).items()
        }
        ctx |= algorithm.broadcast(fed, state)
        said = algorithm.predict(fed.net, {**state.shared, **own}, ctx, code)
        assert said.logp.shape == (10, 3)
        torch.testing.assert_close(said.logp.exp().sum(-1), torch.ones(10))
        if said.gate.shape[-1]:
            torch.testing.assert_close(said.gate.sum(-1), torch.ones(10))
    assert 0 <= evaluate_global(fed, algorithm, state) <= 1


@every
def test_everywhere_is_every_client_on_the_same_tests(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    state = algorithm.assign_models(fed, state)
    everywhere = evaluate_everywhere(fed, algorithm, state)
    code = algorithm.encode(fed.net, state.shared, fed.test.inputs(torch.arange(len(fed.test.y))))
    for row in range(3):
        params, ctx = parts_of(fed, algorithm, state, row)
        said = algorithm.predict(fed.net, params, ctx, code).logp.argmax(-1)
        assert everywhere[row] == pytest.approx(float((said == fed.test.y).double().mean()))


@every
def test_no_local_leaf_is_ever_sent(algorithm):
    fed = ragged()
    state, report = play(algorithm, fed)
    assert not set(report.messages) & set(state.local) and not set(state.shared) & set(state.local)
    assert set(report.weights) <= set(state.shared)
    for name in report.weights:
        assert report.messages[name].shape == (3, *state.shared[name].shape)
    for name, leaf in state.local.items():
        assert leaf.shape[0] == fed.clients and algorithm.is_local(name)


@every
def test_bytes_are_those_of_the_tensors(algorithm):
    fed = ragged()
    state, report = play(algorithm, fed, cohort=2)
    assert all(t.dtype == torch.float32 for t in report.messages.values())
    if isinstance(algorithm, PrunedFedMix | Densities | IFCA | FedGH | PMMoE):
        return  # they count by hand, and so do test_pruning, test_newcomers and test_ifca
    if not algorithm.federates and not isinstance(algorithm, Newcomers):
        assert not int(report.down.sum()) and not int(report.up.sum())
        return  # what they begin with was there before
    down = sum(t.nbytes for t in state.shared.values())
    assert int(report.down.sum()) == 2 * down
    assert int(report.up.sum()) == sum(t.nbytes for t in report.messages.values())


@every
def test_a_round_leaves_what_it_was_given_alone(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    kept = copy.deepcopy(state)
    after, _ = play_round(algorithm, fed, state, round=9, seed=0, cohort=3)
    for before, now in (
        (kept.shared, state.shared),
        (kept.optimizer, state.optimizer),
        (kept.memory, state.memory),
    ):
        assert before.keys() == now.keys()
        assert all(torch.equal(before[n], now[n]) for n in before)
    moved = any(not torch.equal(kept.flat()[n], t) for n, t in after.flat().items())
    assert moved == bool(algorithm.phases())


@every
def test_clients_outside_the_cohort_keep_their_leaves(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    kept = copy.deepcopy(state.local)
    after, report = play_round(algorithm, fed, state, round=9, seed=0, cohort=1)
    away = [row for row in range(3) if row not in report.rows]
    assert len(away) == 2
    assert all(torch.equal(after.local[n][away], t[away]) for n, t in kept.items())


@every
def test_a_state_survives_being_flat(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    again = State.from_flat(state.flat())
    for one, other in zip(
        (state.shared, state.local, state.optimizer, state.memory),
        (again.shared, again.local, again.optimizer, again.memory),
        strict=True,
    ):
        assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
    straight, _ = play_round(algorithm, fed, copy.deepcopy(state), round=3, seed=0, cohort=3)
    resumed, _ = play_round(algorithm, fed, again, round=3, seed=0, cohort=3)
    assert straight.flat().keys() == resumed.flat().keys()
    assert all(torch.equal(t, resumed.flat()[n]) for n, t in straight.flat().items())


@every
def test_a_state_can_be_stored_at_any_time(algorithm):
    fed = ragged()
    state = begun(algorithm, fed)
    for t in range(2):
        held = save(state.flat())  # refuses tensors that share memory
        assert load(held).keys() == state.flat().keys()
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=3)


@every
def test_the_same_bits_twice_and_others_with_another_seed(algorithm):
    first, again, other = (play(algorithm, ragged(), seed=s, cohort=2)[0].flat() for s in (4, 4, 5))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not algorithm.phases() or any(not torch.equal(first[n], other[n]) for n in first)


@every
def test_observations_are_finite_and_fit_the_log(algorithm):
    fed = ragged()
    state, _ = play(algorithm, fed)
    for values in algorithm.observe(fed, state).values():
        assert values.ndim <= 2 and values.isfinite().all()
