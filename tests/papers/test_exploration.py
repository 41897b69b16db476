"""What adaptive experts show beyond Table 2: recovery, experts' worth, protocols, other ways."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_federation
from test_adaptive import HOME, SIZES, TASK, gate_of, said_by_all
from test_algorithms import play

from companion.claims import FAILS, HOLDS
from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.cluster_models import FIT
from fedlib.engine import State, evaluate
from fedlib.metrics import adjusted_rand_index, truth
from fedlib.models import MLP
from fedlib.partition import IID, Mirrored, Repeated, Rotated
from fedlib.tasks import Task
from papers.claims import exploration
from papers.recipes import (
    ADAPTIVE_ROTATED,
    ALL_EQUAL,
    ALL_RELEASED,
    BEST,
    FEDAVG,
    LOCAL,
    MOE,
    PEEKING,
    REDRAWN,
    STOPPED,
    TUNED,
    at,
)

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]


def frame(rows):
    return pd.DataFrame(rows, columns=COLUMNS)


def test_the_rand_index_by_hand():
    # Of the pairs of four clients both groupings join {0, 1} only; the formula gives 4/7.
    assert adjusted_rand_index(np.array([0, 0, 1, 2]), np.array([5, 5, 1, 1])) == pytest.approx(
        4 / 7
    )
    assert adjusted_rand_index(np.array([3, 3, 0]), np.array([0, 0, 1])) == 1.0


def test_groups_are_true_where_all_examples_of_a_client_agree():
    values = np.array([[1, 1, 0], [0, 0, 0]])
    assert truth(values, np.array([2, 3])).tolist() == [1, 0]
    assert truth(values, np.array([3, 3])) is None
    assert truth(values, np.array([0, 3])) is None


def test_clusters_are_compared_with_the_orientations_of_the_clients():
    turned = Rotated(Repeated(IID(clients=3, size=30), 2), (0.0, 180.0), alpha=None)
    fed = Task("digits", turned, MLP((8,)), Mirrored(pool=200, validation=20, test=30)).build(0)
    algorithm = IFCA(clusters=2, batch_size=10)
    state = algorithm.assign_models(fed, algorithm.init(fed, 0))
    assert "recovery:angle" not in algorithm.observe(fed, algorithm.init(fed, 0))
    for best, index in (([0, 0, 0, 1, 1, 1], 1.0), ([0, 0, 1, 0, 1, 1], None)):
        fit = torch.nn.functional.one_hot(torch.tensor(best), 2).neg().double()
        state.memory[FIT] = fit
        seen = algorithm.observe(fed, state)["recovery:angle"]
        expected = index or adjusted_rand_index(np.array(best), np.array([0, 0, 0, 1, 1, 1]))
        assert float(seen) == pytest.approx(expected)
    plain = replace(turned, alpha=1.0)
    mixed = replace(
        fed, train=Task("digits", plain, MLP((8,)), Mirrored(200, 20, 30)).build(0).train
    )
    assert "recovery:angle" not in algorithm.observe(mixed, state), "clients hold several angles"


def test_what_a_mixture_observes_of_its_experts():
    fed = make_federation(SIZES)
    clusters = IFCA(clusters=3, batch_size=4)
    first = clusters.assign_models(fed, play(clusters, fed, rounds=3)[0])
    own, _ = play(Local(batch_size=4), fed, rounds=1, cohort=4)
    algorithm = Mixture(**HOME, gate=MLP((5,)))
    state = algorithm.init(fed, 0, State(first.shared, own.local, memory=dict(first.memory)))
    seen = algorithm.observe(fed, state)
    for row in range(4):
        held = fed.test.index[row, : fed.test.sizes[row]]
        x, y = fed.test.inputs(held), fed.test.y[held]
        right = (said_by_all(fed, state, row, x).argmax(-1) == y.unsqueeze(-1)).double().mean(0)
        torch.testing.assert_close(seen["expert_accuracy"][row], right)
        h = gate_of(fed, state, row, x, MLP((5,))).exp().double()
        torch.testing.assert_close(seen["gate_share"][row], h.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            seen["gate_entropy"][row, 0], -(h * h.log()).sum(1).mean(), rtol=1e-5, atol=1e-6
        )
    even = Mixture(**HOME, pool="mean")
    flat = even.observe(fed, even.init(fed, 0, first))["gate_entropy"]
    torch.testing.assert_close(flat, torch.full((4, 1), np.log(4)).double())


def test_choosing_on_the_tests_is_what_the_option_does():
    honest, peeking = (replace(TASK, validate_on=v).build(0) for v in ("validation", "test"))
    assert peeking.validation is peeking.test and honest.validation is not honest.test
    np.testing.assert_array_equal(honest.test.index, peeking.test.index)
    algorithm = IFCA(clusters=3, batch_size=10)
    state, _ = play(algorithm, peeking, rounds=2)
    settled = algorithm.assign_models(peeking, state)
    fit = algorithm.fits(peeking, state.shared, peeking.test, torch.arange(8))
    torch.testing.assert_close(settled.memory[FIT], fit)
    scores = evaluate(peeking, algorithm, settled, peeking.test)
    assert scores.nll == pytest.approx(fit.min(1).values.double().numpy(), rel=1e-4)
    with pytest.raises(ValueError, match="unknown validate_on"):
        replace(TASK, validate_on="train")


@pytest.mark.parametrize(("count", "angles"), [(2, (0.0, 180.0)), (4, (0.0, 90.0, 180.0, 270.0))])
def test_orientations_share_the_clients_of_a_setting(count, angles):
    setting = ADAPTIVE_ROTATED.settings("standard")["rotated_cifar10"]
    turned = setting.turned(count)
    partition = turned.task.partition
    assert partition.angles == angles and turned.js == (1, count)
    assert partition.of.of.clients * partition.of.times == 20


def recovered(greedy, exploring, redrawn):
    rows = []
    for k, seed in [(k, s) for k in (2, 4) for s in range(3)]:
        name = at(REDRAWN, orientations=k, J=k, eps=0.0)
        rows.append((name, seed, 9, "recovery:angle", -1, -1, "", redrawn[seed]))
    for k, eps, seed in [(k, e, s) for k in (2, 4) for e in (0.0, 0.33) for s in range(3)]:
        index = (exploring if eps else greedy)[seed]
        for j in (1, k):
            best = at(BEST, orientations=k, J=j, eps=eps if j > 1 else 0)
            rows.append((best, seed, 9, "recovery:angle", -1, -1, "", index if j > 1 else 0))
        for c in range(2):
            worth = {MOE: 0.8, BEST: 0.7, ALL_EQUAL: 0.6, TUNED: 0.65}
            for method, value in worth.items():
                name = at(method, orientations=k, J=k, eps=eps)
                rows.append((name, seed, 9, "test_accuracy", c, -1, "", value + 0.01 * seed * c))
            name = at(LOCAL, orientations=k)
            rows.append((name, seed, 9, "test_accuracy", c, -1, "", 0.3))
    return frame(rows)


def test_initial_models_are_redrawn_as_often_as_ifcas_code_asks():
    setting = ADAPTIVE_ROTATED.settings("paper")["rotated_cifar10"]
    runs = ADAPTIVE_ROTATED.plan(setting, "rotated_cifar10")
    shares = {
        k: runs[at(REDRAWN, orientations=k, J=k, eps=0.0)].algorithm.least_share for k in (2, 4)
    }
    assert shares == {2: 0.35, 4: 0.1}


def test_recovered_orientations_are_judged_where_there_is_a_cluster_for_each():
    table = recovered((0.4, 0.5, 0.45), (0.99, 1.0, 1.0), (0.1, 0.2, 0.2))
    found = exploration.recovery(table)
    assert (found["J"] == found["orientations"]).all() and len(found) == 2 * 3 * 3
    verdicts = {c.text: c.verdict for c in exploration.recovery_claims(table)}
    greedy = [t for t in verdicts if t.endswith("greedily")]
    assert len(greedy) == 2 and all(verdicts.pop(t) == "does not hold" for t in greedy)
    redrawn = [t for t in verdicts if t.startswith("Redrawing")]
    assert len(redrawn) == 2 and all(verdicts.pop(t) == "does not hold" for t in redrawn)
    assert len(verdicts) == 12 and set(verdicts.values()) == {HOLDS}


def test_the_oracle_is_the_best_expert_of_every_client():
    name, rows = at(MOE, p=0.2, J=2, eps=0.33), []
    accuracy = [[0.5, 0.9, 0.1], [0.2, 0.3, 0.7]]
    for client, experts in enumerate(accuracy):
        for t in (0, 1):
            rows += [
                (name, 0, t, "expert_accuracy", -1, k, str(client), a * t)
                for k, a in enumerate(experts)
            ]
            rows.append((name, 0, t, "gate_entropy", -1, 0, str(client), np.log(3) * t))
        rows.append((name, 0, 1, "test_accuracy", client, -1, "", 0.6))
    table = exploration.worth(frame(rows)).iloc[0]
    assert table["oracle"] == pytest.approx(0.8) and table["local"] == 0.5
    assert table["mixture"] == pytest.approx(0.6) and table["entropy"] == pytest.approx(1)
    (matrix,) = exploration.matrices(frame(rows)).values()
    np.testing.assert_allclose(matrix, accuracy)


def test_the_released_protocol_looks_at_the_first_ten():
    rows = []
    for seed in range(3):
        for client in range(20):
            early = 0.1 * (client < 10) + 0.01 * seed
            for method, value in ((MOE, 0.5), (PEEKING, 0.52), (ALL_RELEASED, 0.53)):
                where = at(method, p=0.6)
                rows.append((where, seed, 1, "test_accuracy", client, -1, "", value + early))
    table = exploration.protocols(frame(rows))
    assert table.loc[MOE, "all clients"].startswith("0.560")
    assert table.loc[ALL_RELEASED, "first 10"].startswith("0.640")
    claims = exploration.protocol_claims(frame(rows))
    assert [c.verdict for c in claims] == [HOLDS, HOLDS]
    assert claims[1].measured.startswith("0.640 vs 0.560")


def test_participation_is_judged_at_each_number_of_clients():
    """With 5 in a round one model is best and exploring helps; with 25 clusters are, and not."""
    values = {
        at(FEDAVG, cohort=5): 0.6,
        at(FEDAVG, cohort=25): 0.6,
        at(BEST, cohort=5, eps=0.0): 0.4,
        at(BEST, cohort=25, eps=0.0): 0.7,
        at(MOE, cohort=5, eps=0.0): 0.5,
        at(MOE, cohort=5, eps=0.33): 0.6,
        at(MOE, cohort=25, eps=0.0): 0.8,
        at(MOE, cohort=25, eps=0.33): 0.7,
        LOCAL: 0.3,
    }
    rows = [
        (m, s, 9, "test_accuracy", c, -1, "", v + 0.001 * s * (1 + v))
        for (m, v), s, c in itertools.product(values.items(), range(3), range(2))
    ]
    table = exploration.participation(frame(rows))
    assert set(table.loc[table["method"] == LOCAL, "cohort"]) == {5, 25}
    verdicts = [claim.verdict for claim in exploration.participation_claims(frame(rows))]
    assert verdicts == [HOLDS, HOLDS, HOLDS, FAILS]


def test_other_ways_are_compared_by_what_they_send():
    rows = []
    for seed in range(3):
        explored = at(BEST, eps=0.33)
        for method, mb in ((at(BEST, eps=0), 10), (explored, 10), (STOPPED, 6 + seed)):
            rows += [(method, seed, t, "bytes_down", -1, -1, "", mb * 5e5) for t in (1, 2)]
            rows += [(method, seed, 2, "test_accuracy", c, -1, "", 0.5 + 0.1 * c) for c in (0, 1)]
            rows += [(method, seed, 2, "cluster_share", -1, k, "", s) for k, s in ((0, 1), (1, 0))]
            rows.append((method, seed, 2, "open_clusters", -1, -1, "", 2 - (method == STOPPED)))
    table = exploration.options(frame(rows))
    assert table.loc[STOPPED, "MB down"] == 7 and table.loc[STOPPED, "open"] == 1
    assert (table["clusters in use"] == 1).all()
    saved, cost = exploration.option_claims(frame(rows))
    assert saved.verdict == cost.verdict == HOLDS and saved.measured.startswith("0.700")


def test_writers_are_judged_with_and_without_exploration():
    rows = []
    for seed, eps, c in [(s, e, c) for s in range(3) for e in (0.0, 0.33) for c in range(2)]:
        apart = (0.05 if eps else 0.1) * c + 0.01 * seed * (c + 1)
        for method, value in {MOE: 0.8, BEST: 0.7, ALL_EQUAL: 0.6, TUNED: 0.65}.items():
            name = at(method, J=3, eps=eps)
            rows.append((name, seed, 9, "test_accuracy", c, -1, "", value + apart))
        if eps:
            rows.append((LOCAL, seed, 9, "test_accuracy", c, -1, "", 0.3 + 0.01 * seed * c))
    claims = exploration.writer_claims(frame(rows))
    assert [c.verdict for c in claims] == [HOLDS] * 5
    assert "training alone, writers" in claims[3].text
