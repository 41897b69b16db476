"""Theorem 3.1 of 004: bound, exact expectation, and draws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.metrics.gating import drawn, expected, promised

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


def test_without_a_preference_a_gate_is_as_good_as_its_experts():
    for accuracy in (promised, expected):
        assert accuracy(20, 0.3, 0.0) == pytest.approx(0.3)


@pytest.mark.parametrize("p", [0.0, 5e-324, 1e-308, 1.0])
def test_the_ends_of_p_are_ordinary(p):
    assert expected(3, p, 2.0) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("alpha", [-1, float("inf"), float("nan")])
def test_bad_numbers_are_errors(alpha):
    with pytest.raises(ValueError, match="alpha >= 0"):
        promised(20, 0.5, alpha)
