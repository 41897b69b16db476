"""What sums of clients and noise hide of the labels in FedMix's phi."""

import numpy as np
import pytest
from test_privacy import MOVED, SHARES, UNIFORM

from fedlib.privacy.labels import from_rows
from papers.fedmix import leaks
from papers.fedmix.leaks import balanced_accuracy, best_threshold, leak_behind_noise, leak_of_sums


def test_a_sum_tells_the_cohorts_labels_only():
    told = leak_of_sums(MOVED, UNIFORM, SHARES, np.array([0.5, 0.5]), (1, 2), 0)
    assert told["clients"].tolist() == [1, 2]
    assert told["set"].tolist() == [1.0, 0.5]  # alone all is told; together every label is there
    assert told["own"][0] == pytest.approx(told["cohort"][0]) and told["own"][1] > told["cohort"][1]
    # Of one and three examples: the sum is of (x + 3 y) / 4, and so are the cohort's shares.
    last = leak_of_sums(MOVED, UNIFORM, SHARES, np.array([0.25, 0.75]), (2,), 0).iloc[0]
    told, truth = from_rows((MOVED[0] + 3 * MOVED[1]) / 4, UNIFORM), [0.275, 0.125, 0.6]
    assert last["cohort"] == pytest.approx(np.abs(told - truth).sum() / 2)
    assert last["own"] == pytest.approx(np.abs(told - SHARES).sum() / 4)


def test_tests_of_sets_by_hand():
    flags = np.array([True, True, False, False])
    assert balanced_accuracy(np.array([True, False, False, False]), flags) == 0.75
    assert best_threshold(np.array([0.9, 0.3, 0.5, 0.1]), flags) == 0.75
    assert best_threshold(np.array([4.0, 3.0, 2.0, 1.0]), flags) == 1.0
    assert best_threshold(np.ones(4), flags) == 0.5  # equal scores cannot be split
    assert best_threshold(np.array([1.0, 2.0, 3.0, 4.0]), flags) == 0.5
    assert np.isnan(best_threshold(np.ones(2), np.ones(2)))
    assert np.isnan(balanced_accuracy(flags, np.ones(4)))


def test_noise_has_the_size_that_it_says_and_hides_the_set():
    rng = np.random.default_rng(0)
    d = rng.normal(size=(4, 30, 200)) * np.array([1, 10, 0.1, 3.0])[:, None, None]
    size = np.sqrt((d**2).mean((1, 2)))
    added = leaks.noisy(d, 0.5, rng) - d
    np.testing.assert_allclose(added.std((1, 2)) / size, 0.5, rtol=0.05)
    np.testing.assert_array_equal(leaks.noisy(d, 0.0, rng), d)
    truth = np.random.default_rng(1).dirichlet([1, 1, 0.01, 0.01], size=12).round(2)
    truth /= truth.sum(-1, keepdims=True)
    moved = truth[..., None] * np.array([1.0, -1.0])
    told = leak_behind_noise(moved, np.full((4, 2), 0.5), truth, (0.0, 1.0, 30.0), 0)
    assert told["set"][0] == 1.0 and told["own"][0] == pytest.approx(0)
    assert told["set"].is_monotonic_decreasing and told["set"][2] < 0.65
    assert told["own"].is_monotonic_increasing
    # A client's rows are compared with each other: how far it has moved is nothing to the test.
    scaled = moved * 10.0 ** np.arange(-3, 9)[:, None, None]
    again = leak_behind_noise(scaled, np.full((4, 2), 0.5), truth, (1.0,), 0)
    once = leak_behind_noise(moved, np.full((4, 2), 0.5), truth, (1.0,), 0)
    np.testing.assert_allclose(again["set"], once["set"])
