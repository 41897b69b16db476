"""What clusters and mixtures observe of themselves: recovery, experts' worth, protocols."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation
from playing import TASK, play
from test_adaptive import HOME, SIZES, gate_of, said_by_all

from fedlib.algorithms import IFCA, Local, Mixture
from fedlib.algorithms.ifca import FIT
from fedlib.engine import State, evaluate
from fedlib.metrics import adjusted_rand_index, truth
from fedlib.models import MLP
from fedlib.partition import IID, Mirrored, Repeated, Rotated
from fedlib.tasks import Task


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
