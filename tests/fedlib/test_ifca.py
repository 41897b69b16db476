"""Clusters of clients (IFCA), the stages that follow, and mixtures over all clusters (003)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation, scatter
from hypothesis import given
from hypothesis import strategies as st
from playing import SKEWED, close, equal, held_by, loss_on, play, stepped

from fedlib import Task, adam, sgd
from fedlib.algorithms import IFCA, FedAvg, Local, Mixture, ifca
from fedlib.algorithms.mixture import GATE, GLOBAL, OWN
from fedlib.engine import State, evaluate, play_round
from fedlib.metrics import true_groups
from fedlib.models import MLP, select_prefix
from fedlib.partition import IID, LocalHoldout, MatchedHoldout, RepeatedPartition, Rotated
from fedlib.randomness import generator
from fedrun import Experiment
from fedrun.train import initial_state

SIZES = (11, 4, 9, 6)
FAST = {"batch_size": 4, "client": sgd(0.1)}


def model(state, j):
    """One cluster's model as plain leaves."""
    shared = {n: t for n, t in state.server_params.items() if not n.startswith(ifca.CLUSTERS)}
    own = select_prefix(state.server_params, ifca.CLUSTERS)
    return shared | {n: t[j] for n, t in own.items()}


def loss_of(fed, params, table, row):
    """A client's mean loss under a model, one example after another."""
    held = table.client(row).tolist()
    said = [fed.net(params, table.inputs(torch.tensor([i]))).log_softmax(-1) for i in held]
    return float(np.mean([-float(p[0, table.y[i]]) for p, i in zip(said, held, strict=True)]))


@pytest.mark.parametrize("clustered", ["", "head."])
def test_a_round_by_hand(clustered):
    """Every client takes the model with the least loss; every cluster is its choosers' average."""
    fed = make_federation(SIZES, model=LENET, shape=(12, 12, 1))
    algorithm = IFCA(clusters=3, clustered=clustered, batch_size=None, client=sgd(0.1))
    before = algorithm.init(fed, 0)
    after, _ = play_round(algorithm, fed, before, round=0, seed=0, cohort=4)
    losses = [[loss_of(fed, model(before, j), fed.train, i) for j in range(3)] for i in range(4)]
    chosen = [int(np.argmin(each)) for each in losses]
    assert after.server_memory[ifca.CHOICE].tolist() == chosen
    assert len(set(chosen)) > 1, "the test must be able to tell clusters apart"
    trained = []
    for row, j in enumerate(chosen):
        x, y = held_by(fed.train, row)
        trained.append(stepped(model(before, j), loss_on(fed, x, y), 0.1))
    for name, leaf in after.server_params.items():
        plain = name.removeprefix(ifca.CLUSTERS)
        for j in range(3) if name != plain else [...]:
            who = [i for i in range(4) if j is ... or chosen[i] == j]
            total = sum(SIZES[i] for i in who)
            mean = sum(SIZES[i] / total * trained[i][plain] for i in who)
            mean = mean if who else before.server_params[name][j]
            torch.testing.assert_close(leaf[j], mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.33, 1.0])
def test_exploration_is_uniform_and_a_matter_of_seed_round_and_client(eps):
    """Whether and which are draws of their own (G9: of numpy's, whose clusters are as likely)."""
    fed, algorithm = make_federation((2,) * 40), IFCA(clusters=3, explore=ifca.EpsilonGreedy(eps))
    state, rows = algorithm.init(fed, 0), torch.arange(40)
    best = algorithm.fits(fed, state.server_params, fed.train, rows).argmin(1)

    def chosen(round, rows=rows):
        after = algorithm.choose(fed, replace(state, round=round), rows)
        return after.server_memory[ifca.CHOICE].tolist()

    for t in range(2):
        for i, got in enumerate(chosen(t)):
            whether, which = (generator(0, "explore", t, i, *place) for place in ((), (1,)))
            assert got == (which.integers(3) if whether.random() < eps else best[i])
    assert chosen(1, rows[5:8])[5:] == chosen(1)[5:8] + [-1] * 32


@given(st.floats(0, 1), st.floats(0, 3), st.integers(0, 500))
def test_exploration_decays(eps, decay, round):
    explore = ifca.EpsilonGreedy(eps, decay)
    assert 0 <= explore.at(round + 1) <= explore.at(round) <= explore.at(0) == eps
    assert ifca.EpsilonGreedy(eps).at(round) == eps
    assert ifca.EpsilonGreedy(eps, 1.0).at(round) == pytest.approx(eps / (round + 1))


@pytest.mark.parametrize("inference", ["validation", "train"])
def test_clients_predict_with_the_cluster_that_fits_them(inference):
    fed, algorithm = make_federation(SIZES), IFCA(clusters=2, inference=inference, **FAST)
    state, _ = play(algorithm, fed, cohort=2)
    scores = evaluate(fed, algorithm, state, fed.test)
    table = fed.validation if inference == "validation" else fed.train
    for row in range(4):
        best = int(np.argmin([loss_of(fed, model(state, j), table, row) for j in range(2)]))
        x, y = held_by(fed.test, row)
        right = fed.net(model(state, best), x).argmax(-1) == y
        assert scores.accuracy[row] == pytest.approx(float(right.double().mean()))
    seen = algorithm.log_metrics(fed, algorithm.assign_clusters(fed, state))
    assert seen["cluster_nll"].shape == seen["clusters"].shape
    assert seen["clusters"].sum() == 4 and seen["cluster_share"].sum() == 1


def test_a_round_forgets_what_was_settled():
    fed, algorithm = make_federation(SIZES), IFCA(**FAST)
    state, _ = play(algorithm, fed)
    chosen = algorithm.assign_clusters(fed, state)
    assert ifca.FIT in chosen.server_memory and ifca.FIT not in state.server_memory
    assert algorithm.assign_clusters(fed, chosen) is chosen
    after, _ = play_round(algorithm, fed, chosen, round=3, seed=0, cohort=4)
    assert ifca.FIT not in after.server_memory


def test_a_client_without_validation_examples_asks_its_training_examples():
    fed = make_federation(SIZES)
    fed.validation = fed.validation.subset(np.arange(4), [6, 0, 6, 6])
    algorithm = IFCA(clusters=2)
    state = algorithm.init(fed, 0)
    fit = algorithm.assign_clusters(fed, state).server_memory[ifca.FIT]
    own = algorithm.fits(fed, state.server_params, fed.train, torch.tensor([1]))
    torch.testing.assert_close(fit[1], own[0])
    assert fit.isfinite().all()


def test_converged_clusters_leave_with_their_best_weights():
    """A rate that only spoils: the clusters' initial weights are their best."""
    fed = make_federation(SIZES)
    harm = IFCA(clusters=2, client=sgd(30.0), batch_size=None, stop=ifca.ClusterStop(1, 2))
    state = first = harm.init(fed, 0)
    size, left = 4 * fed.net.parameters(), []
    for t in range(12):
        state, report = play_round(harm, fed, state, round=t, seed=0, cohort=4)
        left.append(int(state.server_memory[ifca.OPEN].sum()))
        assert float(harm.log_metrics(fed, state)["open_clusters"]) == left[-1]
        assert set(report.download.tolist()) == {left[-1] * size}
        choice = state.server_memory[ifca.CHOICE][report.clients]
        expected = state.server_memory[ifca.OPEN][choice].long() * (size + 8)
        assert torch.equal(report.upload, expected)
    assert left == sorted(left, reverse=True) and left[-1] < 2
    closed = (~state.server_memory[ifca.OPEN]).nonzero()[:, 0].tolist()
    asked = fed.validation, torch.arange(4)
    begun, ended = (harm.fits(fed, s.server_params, *asked).mean(0) for s in (first, state))
    assert (ended[closed] <= begun[closed] + 1e-6).all()
    assert 0 <= evaluate(fed, harm, state, fed.test).accuracy.mean() <= 1


@pytest.mark.parametrize("server", [sgd(1.0), adam(0.01)], ids=str)
def test_what_clusters_share_is_averaged_over_who_sends_something(server):
    """Client 1's cluster has closed, and then all have: nothing moves for no bytes."""
    fed, rows, name = make_federation((8, 4, 8)), torch.arange(3), "base.1.weight"
    algorithm = IFCA(clustered="head.", client=sgd(0.5), server=server, batch_size=4)
    state, report = play(algorithm, fed, rounds=1)
    state.server_memory[ifca.CHOICE] = torch.tensor([0, 1, 0])
    sent = {n: t[report.clients.argsort()] for n, t in report.messages.items()}
    for is_open, p in (([1, 1], [0.4, 0.2, 0.4]), ([1, 0], [0.5, 0.0, 0.5]), ([0, 0], None)):
        state.server_memory[ifca.OPEN] = torch.tensor(is_open).bool()
        weights = algorithm.weights(fed, state, rows, sent)
        after = algorithm.aggregate(fed, state, rows, sent)
        _, up = algorithm.communication_bytes(state, rows, sent)
        moved = not torch.equal(after.server_params[name], state.server_params[name])
        assert moved == (p is not None) == bool(up.any())
        assert p is None or weights[name].tolist() == pytest.approx(p)


def test_a_cluster_leaves_at_its_patience_th_check_without_an_improvement():
    """By hand: 3, 2 (the best), 2, 2.5; one improves at every check, one is nobody's."""
    stop, is_open = ifca.ClusterStop(patience=2), torch.ones(3).bool()
    name = f"{ifca.CLUSTERS}w"
    begun = stop.initial_state({name: torch.zeros(3)}, is_open)
    state, left = State({}, {}, server_memory={ifca.OPEN: is_open, **begun}), []
    for t, first in enumerate([3.0, 2.0, 2.0, 2.5, 1.0]):
        state = replace(state, server_params={name: torch.full((3,), float(t))})
        fit = torch.tensor([[first, 9.0, 9.0], [9.0, 5.0 - t, 9.0], [torch.nan] * 3])
        state = stop.closed(state, fit, torch.tensor([0, 1, 0]))
        left.append(state.server_memory[ifca.OPEN].tolist())
        if t == 3:
            assert state.server_params[name].tolist() == [1.0, 3.0, 3.0]
    assert left == [[True, True, True]] * 3 + [[False, True, True]] * 2


def test_a_good_initialisation_is_drawn_until_every_cluster_has_its_share():
    fed = make_federation((3,) * 10)
    plain, asked = IFCA(clusters=2), IFCA(clusters=2, least_share=0.3)

    def least(algorithm, seed, clients=10):
        shared = algorithm.init(fed, seed).server_params
        fit = algorithm.fits(fed, shared, fed.train, torch.arange(clients))
        return int(fit.argmin(1).bincount(minlength=2).min())

    bad = [seed for seed in range(12) if least(plain, seed) < 3]
    assert bad and all(least(asked, seed) >= 3 for seed in bad[:3])
    good = next(seed for seed in range(12) if seed not in bad)
    assert equal(plain.init(fed, good).server_params, asked.init(fed, good).server_params)
    fed.train = fed.train.subset(np.arange(10), [3] * 5 + [0] * 5)  # as if five had opted out
    assert all(least(IFCA(clusters=2, least_share=0.4), seed, 5) >= 2 for seed in range(4))
    fed.train.x[:], fed.train.y[:] = 128, 0  # nothing to tell clients apart by
    with pytest.raises(RuntimeError, match="in 100 draws no initial models were each"):
        IFCA(clusters=2, least_share=0.5).init(fed, 0)


STAGED = {"cohort": 1.0, "evaluate_every": 1}
OWN_TESTS = Task("digits", IID(clients=3, size=12), MLP((4,)), LocalHoldout(test=0.25))
CLUSTERED = IFCA(clusters=3)


def test_a_stage_begins_with_the_federation_and_what_was_trained_beside_it():
    fed, first = OWN_TESTS.build(0), Experiment(OWN_TESTS, CLUSTERED, 2)
    alone = Experiment(OWN_TESTS, Local(), 1, **STAGED)
    tuned = replace(alone, first_stage=first)
    both = replace(tuned, algorithm=Mixture(epochs=1, batch_size=4), local_stage=alone)
    federated = CLUSTERED.init(fed, 0)
    own = scatter(Local().init(fed, 0))
    assert equal(initial_state(first, fed, []).server_params, federated.server_params)
    fitted = CLUSTERED.assign_clusters(fed, federated)
    chosen = ifca.pick(fitted.server_params, ifca.best_fit(fitted))
    assert equal(initial_state(tuned, fed, [federated]).client_params, chosen)
    state = initial_state(both, fed, [federated, own])
    assert equal(select_prefix(state.client_params, OWN), own.client_params)
    assert equal(select_prefix(state.server_params, GLOBAL), federated.server_params)


HOME = {"epochs": 3, "batch_size": 4, "client": adam(0.01), "stop": None}


@pytest.fixture(params=[None, LENET], ids=["mlp", "lenet"])
def fed(request):
    return make_federation(SIZES, model=request.param, shape=(12, 12, 1))


@pytest.fixture
def clusters(fed):
    """Three clusters after some rounds, settled."""
    algorithm = IFCA(clusters=3, **FAST)
    return algorithm.assign_clusters(fed, play(algorithm, fed, rounds=4)[0])


@pytest.fixture
def alone(fed, clusters):
    """Local models from scratch, beside the clusters."""
    own, _ = play(Local(**FAST), fed, rounds=1, cohort=4)
    return replace(clusters, client_params=own.client_params)


def said_by_all(fed, state, row, x):
    """log p of the three clusters and of one client's own model, [B, 4, classes]."""
    shared = {n.removeprefix(GLOBAL): t for n, t in state.server_params.items()}
    each = [{n.removeprefix(ifca.CLUSTERS): t[j] for n, t in shared.items()} for j in range(3)]
    theirs = [fed.net(one, x) for one in each]
    own = {n: t[row] for n, t in select_prefix(state.client_params, OWN).items()}
    return torch.stack([s.log_softmax(-1) for s in [*theirs, fed.net(own, x)]], 1)


def gate_of(fed, state, row, x):
    """How a client's gate of MLP((5,)) weighs the three clusters and its own model, [B, 4]."""
    own = {n: t[row] for n, t in select_prefix(state.client_params, GATE).items()}
    return fed.net.like(MLP((5,)), 4)(own, x).softmax(-1)


def mixed(fed, first, rounds=1, **options):
    algorithm = Mixture(**{**HOME, "gate": MLP((5,)), **options})
    return algorithm, play(algorithm, fed, rounds, first=first, cohort=4)[0]


@pytest.mark.parametrize("pool", ["probabilities", "mean"])
def test_predictions_are_those_of_the_formula(fed, alone, pool):
    """And so is what is observed; an ensemble counts all experts the same and trains nothing."""
    algorithm, state = mixed(fed, alone, pool=pool)
    scores, seen = evaluate(fed, algorithm, state, fed.test), algorithm.log_metrics(fed, state)
    assert scores.gate.shape == (3, 4)
    for row in range(4):
        x, y = held_by(fed.test, row)
        said = said_by_all(fed, state, row, x)
        h = torch.full((6, 4), 0.25) if pool == "mean" else gate_of(fed, state, row, x)
        p = (h.unsqueeze(-1) * said.exp()).sum(1)
        assert scores.accuracy[row] == pytest.approx(float((p.argmax(-1) == y).double().mean()))
        nll = -p[torch.arange(len(y)), y].log().mean()
        assert scores.nll[row] == pytest.approx(float(nll), rel=1e-4)
        right = (said.argmax(-1) == y.unsqueeze(-1)).double().mean(0)
        h = h.double()
        entropy = -(h * h.log()).sum(1).mean(0, keepdim=True)
        observed = {"expert_accuracy": right, "gate_share": h.mean(0), "gate_entropy": entropy}
        close(observed, {n: t[row] for n, t in seen.items()}, rtol=1e-5)
    if pool == "mean":
        assert not select_prefix(state.client_params, GATE) and algorithm.phases() == ()
        assert equal(algorithm.init(fed, 0, alone).flat(), state.flat())


def test_joint_training_moves_specialists_and_copies_of_the_clusters(fed, alone):
    algorithm, state = mixed(fed, alone, train_global=True)
    begun = algorithm.init(fed, 0, alone)
    weights = {n: t for n, t in state.client_params.items() if "weight" in n}
    assert not any(torch.equal(t, begun.client_params[n]) for n, t in weights.items())
    assert equal(begun.server_params, state.server_params)
    copies = weights[f"copy.{ifca.CLUSTERS}head.weight"]
    assert copies.shape == (4, 3, *fed.net.init(0)["head.weight"].shape)


def test_clusters_that_are_nobodys_best_can_be_left_out(fed, clusters, alone):
    alone.server_memory[ifca.FIT] = torch.tensor([[1.0, 2.0, 0.5]] * 3 + [[0.1, 2.0, 0.5]])
    algorithm, state = mixed(fed, alone, used_only=True)
    name = f"{ifca.CLUSTERS}head.weight"
    assert torch.equal(state.server_params[GLOBAL + name], clusters.server_params[name][[0, 2]])
    assert state.client_params[f"{GATE}head.bias"].shape == (4, 3)
    assert evaluate(fed, algorithm, state, fed.test).accuracy.shape == (4,)


def test_one_cluster_is_the_mixture_of_001():
    fed = make_federation(SIZES)
    one, own = IFCA(clusters=1, **FAST), play(Local(**FAST), fed, 1, cohort=4)[0].client_params
    ours = one.assign_clusters(fed, play(one, fed, rounds=3)[0])
    plain, _ = play(FedAvg(**FAST), fed, rounds=3)
    states = [replace(state, client_params=own) for state in (plain, ours)]
    scores = [evaluate(fed, *mixed(fed, first), fed.test) for first in states]
    np.testing.assert_allclose(scores[0].nll, scores[1].nll, rtol=1e-5)
    assert scores[0].gate.shape == scores[1].gate.shape == (3, 2)


def test_groups_are_true_where_all_examples_of_a_client_agree():
    values = np.array([1, 1, 0, 0, 0])
    assert true_groups(values, np.array([2, 3])).tolist() == [1, 0]
    assert true_groups(values, np.array([3, 2])) is None
    assert true_groups(values[2:], np.array([0, 3])) is None


def test_clusters_are_compared_with_the_orientations_of_the_clients():
    held_out = MatchedHoldout(200, 20, 30)
    turned = Rotated(RepeatedPartition(IID(clients=3, size=30), 2), (0.0, 180.0), alpha=None)
    fed = Task("digits", turned, MLP((8,)), held_out).build(0)
    algorithm = IFCA(clusters=2, batch_size=10)
    state = algorithm.assign_clusters(fed, algorithm.init(fed, 0))
    assert "recovery:angle" not in algorithm.log_metrics(fed, algorithm.init(fed, 0))
    for best, index in (([0, 0, 0, 1, 1, 1], 1.0), ([0, 0, 1, 0, 1, 1], -1 / 9)):
        fit = torch.nn.functional.one_hot(torch.tensor(best), 2).neg().double()
        state.server_memory[ifca.FIT] = fit
        seen = algorithm.log_metrics(fed, state)["recovery:angle"]
        assert float(seen) == pytest.approx(index)  # (2 - 36 / 15) / (6 - 36 / 15) for the second
    several = Task("digits", replace(turned, alpha=1.0), MLP((8,)), held_out).build(0)
    seen = algorithm.log_metrics(replace(fed, train=several.train), state)
    assert "recovery:angle" not in seen, "clients hold several angles"


def test_choosing_on_the_tests_is_what_the_option_does():
    honest, peeking = (replace(SKEWED, validate_on=v).build(0) for v in ("validation", "test"))
    assert peeking.validation is peeking.test and honest.validation is not honest.test
    np.testing.assert_array_equal(honest.test.indices, peeking.test.indices)
    algorithm = IFCA(clusters=3, batch_size=10)
    state, _ = play(algorithm, peeking, rounds=2)
    chosen = algorithm.assign_clusters(peeking, state)
    fit = algorithm.fits(peeking, state.server_params, peeking.test, torch.arange(8))
    torch.testing.assert_close(chosen.server_memory[ifca.FIT], fit)
    scores = evaluate(peeking, algorithm, chosen, peeking.test)
    assert scores.nll == pytest.approx(fit.min(1).values.double().numpy(), rel=1e-4)
