"""Features by their neighbours, and what gates can promise (004, Theorem 3.1)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.robustness import odd
from papers.pm_moe.experiments import neighbours
from papers.pm_moe.features import purity
from papers.pm_moe.gating import drawn, expected, promised


def test_neighbours_of_a_label_far_from_others_name_it():
    labels = np.repeat([0, 1], 8)
    features = np.random.default_rng(0).normal(size=(16, 3)) + 50 * labels[:, None]
    assert purity(features, labels) == 1.0
    # An example among five of the other label is the only one of its own: named wrongly.
    lonely = np.array([1] + [0] * 7)
    assert purity(features[:8], lonely) == pytest.approx(7 / 8)


def test_the_neighbours_of_the_client_with_most_classes():
    held = ([0] * 12, [0] * 6 + [1] * 6, [0] * 5 + [1] * 7, [2] * 12)
    # Five examples of a class are too few to count: so client 1 and not 2.
    assert neighbours(odd.federation(held)) == (1, 2, 3)


# Theorem 3.1 of 004: bound, exact expectation, and draws.
GRID = [(m, p, a) for m in (1, 2, 20) for p in (0.1, 0.5, 0.9) for a in (0.0, 1.0, 10.0)]


@pytest.mark.parametrize(("alpha", "bound", "exact"), [(1, 0.6557, 0.6591), (10, 0.88, 0.9095)])
def test_golden_values(alpha, bound, exact):
    assert promised(20, 0.5, alpha) == pytest.approx(bound, abs=5e-5)
    assert expected(20, 0.5, alpha) == pytest.approx(exact, abs=5e-5)


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 100))
def test_the_bound_is_one(experts, p, alpha):
    low, exact = promised(experts, p, alpha), expected(experts, p, alpha)
    assert 0 <= low <= exact + 1e-9 and exact <= 1 + 1e-9


@pytest.mark.parametrize(("experts", "p", "alpha"), GRID)
def test_draws_agree_with_the_expectation(experts, p, alpha):
    share, _ = drawn(experts, p, alpha, draws=1000, seed=0)
    mean = expected(experts, p, alpha)
    assert abs(share - mean) <= 3 * (mean * (1 - mean) / 1000) ** 0.5 + 1e-12


@pytest.mark.parametrize("p, alpha", [(0, 2), (5e-324, 2), (1e-308, 2), (1, 2), (0.3, 0)])
def test_without_a_preference_or_a_choice_a_gate_is_as_good_as_its_experts(p, alpha):
    assert expected(3, p, alpha) == pytest.approx(p, abs=1e-12)
    assert promised(3, p, alpha) == pytest.approx(p, abs=1e-12)
