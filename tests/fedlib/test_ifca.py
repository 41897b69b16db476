"""Clusters of clients: who chooses what, by hand and in the limits that are other methods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation
from hypothesis import given
from hypothesis import strategies as st
from playing import held_by, loss_on, play, stepped

from fedlib.algorithms import IFCA
from fedlib.algorithms.ifca import CHOICE, CLUSTERS, FIT, OPEN, ClusterStop, Explore
from fedlib.engine import evaluate, play_round
from fedlib.models import part
from fedlib.optim import adam, sgd

SIZES = (11, 4, 9, 6)
FAST = {"batch_size": 4, "client": sgd(0.1)}


def model(state, j):
    """One cluster's model as plain leaves."""
    own = {n: t[j] for n, t in part(state.shared, CLUSTERS).items()}
    return {**{n: t for n, t in state.shared.items() if not n.startswith(CLUSTERS)}, **own}


def loss_of(fed, params, table, row):
    """A client's mean loss under a model, one example after another."""
    held = table.index[row, : table.sizes[row]].tolist()
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
    assert after.memory[CHOICE].tolist() == chosen
    assert len(set(chosen)) > 1, "the test must be able to tell clusters apart"
    trained = []
    for row, j in enumerate(chosen):
        x, y = held_by(fed.train, row)
        trained.append(stepped(model(before, j), loss_on(fed, x, y), 0.1))
    for name, leaf in after.shared.items():
        plain = name.removeprefix(CLUSTERS)
        for j in range(3) if name != plain else [None]:
            who = [i for i in range(4) if j is None or chosen[i] == j]
            old = before.shared[name] if j is None else before.shared[name][j]
            n = np.array([SIZES[i] for i in who])
            parts = zip(n / n.sum(), who, strict=True)
            mean = sum(s * trained[i][plain] for s, i in parts) if who else old
            now = leaf if j is None else leaf[j]
            torch.testing.assert_close(now, mean, rtol=1e-4, atol=1e-6)


def test_what_nobody_chose_stands_still_also_under_momentum():
    fed = make_federation(SIZES)
    algorithm = IFCA(clusters=2, server=adam(0.1), **FAST)
    state = algorithm.init(fed, 0)
    state.shared[f"{CLUSTERS}head.bias"][1] = torch.tensor([1e3, -1e3, 0.0])  # nobody's best
    kept = model(state, 1)
    state, _ = play(algorithm, fed, 3, state=state, cohort=4)
    assert set(state.memory[CHOICE].tolist()) == {0}
    assert all(torch.equal(t, kept[n]) for n, t in model(state, 1).items())


def test_exploration_is_uniform_and_a_matter_of_seed_round_and_client():
    """eps = 1: J = 3 clusters are drawn with equal frequencies (G9); eps = 0: never."""
    fed = make_federation((2,) * 40)
    algorithm = IFCA(clusters=3, explore=Explore(1.0))
    state, rows = algorithm.init(fed, 0), torch.arange(40)
    drawn = torch.stack(
        [
            algorithm.before_round(fed, state, rows, round=t, seed=0).memory[CHOICE]
            for t in range(50)
        ]
    )
    counts = drawn.flatten().bincount(minlength=3).double()
    expected = drawn.numel() / 3
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8, "chi-squared, p = 0.001"
    some = algorithm.before_round(fed, state, rows[5:8], round=7, seed=0).memory[CHOICE]
    assert torch.equal(some[5:8], drawn[7, 5:8]) and (some[8:] == -1).all()
    greedy = replace(algorithm, explore=Explore(0.0))
    best = algorithm.fits(fed, state.shared, fed.train, rows).argmin(1)
    for t in range(3):
        assert torch.equal(
            greedy.before_round(fed, state, rows, round=t, seed=0).memory[CHOICE], best
        )
    third, away = replace(algorithm, explore=Explore(0.33)), []
    for t in range(50):
        away.append(third.before_round(fed, state, rows, round=t, seed=0).memory[CHOICE] != best)
    # A third of those who explore draw the best cluster.
    assert float(torch.stack(away).double().mean()) == pytest.approx(0.22, abs=0.03)


@given(st.floats(0, 1), st.floats(0, 3), st.integers(0, 500))
def test_exploration_decays(eps, decay, round):
    explore = Explore(eps, decay)
    assert 0 <= explore.at(round + 1) <= explore.at(round) <= explore.at(0) == eps
    assert Explore(eps).at(round) == eps
    assert Explore(eps, 1.0).at(round) == pytest.approx(eps / (round + 1))


def test_losses_under_all_clusters_are_those_of_a_plain_loop():
    fed = make_federation(SIZES)
    algorithm = IFCA(clusters=3)
    state = algorithm.init(fed, 0)
    for table in (fed.train, fed.validation):
        found = algorithm.fits(fed, state.shared, table, torch.tensor([2, 0]))
        asked = [[loss_of(fed, model(state, j), table, i) for j in range(3)] for i in (2, 0)]
        torch.testing.assert_close(found, torch.tensor(asked), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inference", ["validation", "train"])
def test_clients_predict_with_the_cluster_that_fits_them(inference):
    fed = make_federation(SIZES)
    algorithm = IFCA(clusters=2, inference=inference, **FAST)
    state, _ = play(algorithm, fed, cohort=2)
    scores = evaluate(fed, algorithm, state, fed.test)
    table = fed.validation if inference == "validation" else fed.train
    for row in range(4):
        best = int(np.argmin([loss_of(fed, model(state, j), table, row) for j in range(2)]))
        held = fed.test.index[row, : fed.test.sizes[row]]
        right = fed.net(model(state, best), fed.test.inputs(held)).argmax(-1) == fed.test.y[held]
        assert scores.accuracy[row] == pytest.approx(float(right.double().mean()))
    seen = algorithm.observe(fed, algorithm.assign_models(fed, state))
    assert seen["clusters"].sum() == 4 and seen["cluster_share"].sum() == 1


def test_a_round_forgets_what_was_settled():
    fed = make_federation(SIZES)
    algorithm = IFCA(**FAST)
    state, _ = play(algorithm, fed)
    settled = algorithm.assign_models(fed, state)
    assert FIT in settled.memory and FIT not in state.memory
    assert algorithm.assign_models(fed, settled) is settled
    after, _ = play_round(algorithm, fed, settled, round=3, seed=0, cohort=4)
    assert FIT not in after.memory
    with pytest.raises(ValueError, match="clients have not settled for a cluster"):
        algorithm.predict(fed.net, state.shared, {}, {"logp": torch.zeros(5, 2, 3)})


def test_a_client_without_validation_examples_asks_its_training_examples():
    fed = make_federation(SIZES)
    fed.validation.sizes = np.array([6, 0, 6, 6])
    algorithm = IFCA(clusters=2)
    state = algorithm.init(fed, 0)
    fit = algorithm.assign_models(fed, state).memory[FIT]
    own = algorithm.fits(fed, state.shared, fed.train, torch.tensor([1]))
    assert torch.equal(fit[1], own[0]) and fit.isfinite().all()


def test_converged_clusters_leave_with_their_best_weights():
    """A rate that only spoils: the clusters' initial weights are their best."""
    fed = make_federation(SIZES)
    harm = IFCA(
        clusters=2, client=sgd(30.0), batch_size=None, stop=ClusterStop(every=1, patience=2)
    )
    state = first = harm.init(fed, 0)
    size, left = 4 * fed.net.parameters(), []
    for t in range(12):
        state, report = play_round(harm, fed, state, round=t, seed=0, cohort=4)
        left.append(int(state.memory[OPEN].sum()))
        assert set(report.down.tolist()) == {left[-1] * size}
        choice = state.memory[CHOICE][report.rows]
        expected = state.memory[OPEN][choice].long() * (size + 8)
        assert torch.equal(report.up, expected)
    assert left == sorted(left, reverse=True) and left[-1] < 2
    closed = (~state.memory[OPEN]).nonzero()[:, 0].tolist()
    losses = torch.stack(
        [harm.fits(fed, s.shared, fed.validation, torch.arange(4)).mean(0) for s in (first, state)]
    )
    assert all(losses[1, j] <= losses[0, j] + 1e-6 for j in closed)
    assert 0 <= evaluate(fed, harm, state, fed.test).accuracy.mean() <= 1


def test_a_good_initialisation_is_drawn_until_every_cluster_has_its_share():
    fed = make_federation((3,) * 10)
    everyone = torch.arange(10)
    plain, asked = IFCA(clusters=2), IFCA(clusters=2, least_share=0.3)

    def least(algorithm, seed):
        shared = algorithm.init(fed, seed).shared
        return int(
            algorithm.fits(fed, shared, fed.train, everyone).argmin(1).bincount(minlength=2).min()
        )

    seeds = [s for s in range(12) if least(plain, s) < 3]
    assert seeds, "some draws must be bad"
    assert all(least(asked, s) >= 3 for s in seeds[:3])
    good = next(s for s in range(12) if s not in seeds)
    same = (a.init(fed, good).shared for a in (plain, asked))
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in same), strict=True))
    some = make_federation((3,) * 10)
    some.train.sizes = np.array([3] * 5 + [0] * 5)  # as if five had opted out
    shares = IFCA(clusters=2, least_share=0.4)
    for seed in range(4):
        fit = shares.fits(some, shares.init(some, seed).shared, some.train, torch.arange(5))
        assert int(fit.argmin(1).bincount(minlength=2).min()) >= 2
    fed.train.x[:] = 128  # nothing to tell clients apart by
    fed.train.y[:] = 0
    with pytest.raises(
        RuntimeError, match="in 100 draws no initial models were each the best of 50%"
    ):
        IFCA(clusters=2, least_share=0.5).init(fed, 0)


def test_two_kinds_of_clients_find_their_clusters():
    """Clients of the second kind call every label by the next one's name."""
    fed = make_federation((20,) * 8)
    turned = fed.train.index[4:].flatten()
    fed.train.y[turned] = (fed.train.y[turned] + 1) % 3
    state, _ = play(IFCA(clusters=2, batch_size=None, client=sgd(0.3)), fed, rounds=25, cohort=8)
    choice = state.memory[CHOICE].tolist()
    assert len(set(choice[:4])) == len(set(choice[4:])) == 1 and choice[0] != choice[-1]
