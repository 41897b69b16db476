"""Gradient divergence against its double sum, and accuracies over clients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.metrics import divergences, gradient_divergence, over_clients


def double_sum(updates, weights):
    """Equations 16 and 17 of the FedMix paper, pair by pair."""
    total = 0.0
    for i, a in enumerate(updates):
        for j, b in enumerate(updates):
            lengths = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
            if i == j or not lengths:  # 1 - cos is 0 with itself; no direction, no term
                continue
            cosine = sum(v * w for v, w in zip(a, b, strict=True)) / lengths
            total += weights[i] * weights[j] * 0.5 * (1 - cosine)
    return total


whole = st.integers(-3, 3).map(float)


@settings(max_examples=150)
@given(
    st.integers(1, 4).flatmap(
        lambda d: st.lists(
            st.tuples(st.lists(whole, min_size=d, max_size=d), st.floats(0, 1)),
            max_size=6,
            min_size=1,
        )
    )
)
def test_divergence_equals_the_double_sum(clients):
    updates, weights = [u for u, _ in clients], [w for _, w in clients]
    got = gradient_divergence(torch.tensor(updates), torch.tensor(weights, dtype=torch.float64))
    assert got.ndim == 0 and got.dtype == torch.float64
    assert float(got) == pytest.approx(double_sum(updates, weights), abs=1e-9)


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_divergence_per_expert_equals_every_expert_alone(clients, experts, seed):
    rng = torch.Generator().manual_seed(seed)
    updates = torch.randn(clients, experts, 2, 3, generator=rng)
    weights = torch.rand(clients, experts, generator=rng).double()
    got = gradient_divergence(updates, weights)
    assert got.shape == (experts,)
    for k in range(experts):
        expected = double_sum(updates[:, k].flatten(1).tolist(), weights[:, k].tolist())
        assert float(got[k]) == pytest.approx(expected, abs=1e-9)
        alone = gradient_divergence(updates[:, k], weights[:, k])
        assert float(alone) == pytest.approx(float(got[k]), abs=1e-12)


@pytest.mark.parametrize(
    ("updates", "weights", "expected"),
    [
        ([[1.0, 2.0]] * 4, [0.25] * 4, 0.0),  # all agree
        ([[1.0, 2.0], [10.0, 20.0]], [0.5, 0.5], 0.0),  # length does not count
        ([[1.0, 0.0], [-2.0, 0.0]], [0.5, 0.5], 0.5),  # opposite: 2 pairs of 1/4 * 1
        ([[1.0, 0.0], [0.0, 3.0]], [0.5, 0.5], 0.25),  # orthogonal: 2 pairs of 1/4 * 1/2
        ([[1.0, 0.0], [0.0, 3.0]], [0.2, 0.8], 0.16),
        ([[1.0, 0.0], [0.0, 0.0]], [0.5, 0.5], 0.0),  # a zero update has no direction
        ([[0.0, 0.0], [0.0, 0.0]], [0.5, 0.5], 0.0),
        ([[5.0, -1.0]], [1.0], 0.0),  # one client
        ([[1e-30, 0.0], [0.0, 1e-30]], [0.5, 0.5], 0.25),
        ([[1e30, 0.0], [0.0, 1e30]], [0.5, 0.5], 0.25),
    ],
)
def test_divergence_by_hand(updates, weights, expected):
    got = gradient_divergence(torch.tensor(updates), torch.tensor(weights, dtype=torch.float64))
    assert float(got) == pytest.approx(expected, abs=1e-12)


def test_a_client_that_an_expert_does_not_count_has_no_say():
    updates = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[-1.0, 0.0]] * 2])
    weights = torch.tensor([[0.5, 1.0], [0.5, 0.0], [0.0, 0.0]]).double()
    assert gradient_divergence(updates, weights).tolist() == pytest.approx([0.25, 0.0])


def test_divergence_of_agreeing_clients_is_never_negative():
    updates = torch.randn(1, 100, generator=torch.Generator().manual_seed(0)).repeat(7, 1)
    got = gradient_divergence(updates, torch.full((7,), 1 / 7).double())
    assert 0 <= float(got) < 1e-12


def test_every_weighted_tensor_is_measured_and_nothing_else():
    eye = torch.eye(2)
    messages = {"w": eye, "experts": eye.unsqueeze(1), "q_s": eye}
    half = torch.full((2,), 0.5).double()
    got = divergences(messages, {"w": half, "experts": half.unsqueeze(1)})
    assert set(got) == {"w", "experts"}
    assert float(got["w"]) == pytest.approx(0.25) and got["experts"].tolist() == pytest.approx(
        [0.25]
    )


def test_over_clients_by_hand():
    got = over_clients(np.array([0.0, 1.0, 0.5]), np.array([1, 2, 5]))
    assert got["mean"] == pytest.approx(0.5)
    assert got["weighted"] == pytest.approx((2 + 2.5) / 8)
    assert got["std"] == pytest.approx(math.sqrt(0.5 / 3))
    assert got["worst_decile"] == 0.0


def test_the_worst_decile_is_a_tenth_of_the_clients():
    accuracy = np.random.default_rng(0).permutation(np.arange(20) / 20)
    assert over_clients(accuracy, np.ones(20))["worst_decile"] == pytest.approx(0.025)
    assert over_clients(accuracy[:19], np.ones(19))["worst_decile"] == accuracy[:19].min()


def test_clients_without_examples_are_left_out():
    got = over_clients(np.array([np.nan, 0.25, 0.75]), np.array([0, 1, 1]))
    assert got == {"mean": 0.5, "weighted": 0.5, "std": 0.25, "worst_decile": 0.25}
    nobody = over_clients(np.array([np.nan]), np.array([0]))
    assert set(nobody) == set(got) and all(math.isnan(v) for v in nobody.values())
