"""The server's optimiser against plain torch.optim, and what must stand still."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import make_federation

from fedlib.algorithms import FedAvg
from fedlib.engine import State
from fedlib.optim import Optimizer, Yogi, adam, server_step, sgd

TWINS = {
    "sgd": (Optimizer("sgd", lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
    "momentum": (
        Optimizer("sgd", lr=0.3, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=0.1),
    ),
    "adam": (
        Optimizer("adam", lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "adamw": (
        Optimizer("adamw", lr=0.02, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    ),
    "adagrad": (
        Optimizer("adagrad", lr=0.1, eps=1e-6, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6, weight_decay=0.1),
    ),
    "yogi": (
        Optimizer("yogi", lr=0.1, eps=1e-3),
        lambda p: Yogi(p, lr=0.1, betas=(0.9, 0.999), eps=1e-3),
    ),
}


def fresh(seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "w.bias": (3,), "w/odd": ()}
    return {n: torch.randn(s, generator=rng) for n, s in shapes.items()}


def stored(memory):
    """The memory after a checkpoint."""
    return State.from_flat(State({}, {}, memory).flat()).optimizer


@pytest.mark.parametrize("rows", [False, True], ids=["whole", "by row"])
@pytest.mark.parametrize("name", TWINS)
def test_many_rounds_equal_torch_optim(name, rows):
    """Also when every row of a leaf is an expert of its own, and through stored memory."""
    optimizer, plain = TWINS[name]
    leaves, memory = fresh(), {}
    twins = {n: t.clone().requires_grad_(True) for n, t in leaves.items()}
    engine = plain(list(twins.values()))
    awake = {"w": torch.zeros(3, dtype=torch.bool)} if rows else {}
    for t in range(12):
        gradients = {n: g * (1 + t % 3) for n, g in fresh(seed=t + 1).items()}
        leaves, memory = server_step(optimizer, leaves, gradients, stored(memory), awake)
        for n, twin in twins.items():
            twin.grad = gradients[n].clone()
        engine.step()
        for n, twin in twins.items():
            assert torch.equal(leaves[n], twin.detach()), (n, t)
            assert not leaves[n].requires_grad


def test_the_input_is_left_alone():
    leaves, memory = fresh(), {}
    for seed in range(3):
        before = {n: t.clone() for n, t in leaves.items()}
        kept = {n: t.clone() for n, t in memory.items()}
        after, remembered = server_step(adam(0.1), leaves, fresh(seed), memory)
        assert all(torch.equal(leaves[n], before[n]) for n in leaves)
        assert all(torch.equal(memory[n], kept[n]) for n in memory)
        leaves, memory = after, remembered


def test_two_steps_of_momentum_by_hand():
    """lr 0.5, momentum 0.9: w = 1 - 0.5 * 2 = 0, then v = 0.9 * 2 + 4 = 5.8, w = -2.9."""
    leaves, memory = server_step(
        sgd(0.5, 0.9), {"w": torch.ones(1)}, {"w": torch.tensor([2.0])}, {}
    )
    assert leaves["w"].item() == 0
    leaves, _ = server_step(sgd(0.5, 0.9), leaves, {"w": torch.tensor([4.0])}, memory)
    assert leaves["w"].item() == pytest.approx(-2.9)


def test_the_first_step_of_adam_is_its_rate_whatever_the_gradient():
    leaves = {"w": torch.zeros(3)}
    after, _ = server_step(adam(0.25), leaves, {"w": torch.tensor([1e-3, -1.0, 1e3])}, {})
    torch.testing.assert_close(after["w"], torch.tensor([-0.25, 0.25, -0.25]), rtol=1e-4, atol=0)


def yogi_by_hand(w, gradients, lr, first, second, eps):
    m, v = 0.0, eps**2
    for g in gradients:
        m = first * m + (1 - first) * g
        sign = (v > g * g) - (v < g * g)
        v = v - (1 - second) * g * g * sign
        w = w - lr * m / (math.sqrt(v) + eps)
    return w


@pytest.mark.parametrize("eps", [1e-3, 0.5])
@pytest.mark.parametrize("gradients", [[1.0] * 5, [3.0, 0.1, -2.0, 0.0, 0.5, -0.5]])
def test_yogi_equals_a_scalar_loop(gradients, eps):
    optimizer = Optimizer("yogi", lr=0.1, betas=(0.9, 0.8), eps=eps)
    leaves, memory = {"w": torch.tensor([2.0], dtype=torch.float64)}, {}
    for t, g in enumerate(gradients):
        leaves, memory = server_step(optimizer, leaves, {"w": torch.tensor([g])}, memory)
        expected = yogi_by_hand(2.0, gradients[: t + 1], 0.1, 0.9, 0.8, eps)
        assert leaves["w"].item() == pytest.approx(expected, rel=1e-6)


def test_per_leaf_rates():
    optimizer = Optimizer("sgd", lr=1.0, rates=(("phi", 0.25), ("gate.A", 0.0), ("gate.", 2.0)))
    leaves = {n: torch.zeros(2) for n in ("w", "phi", "gate.A", "gate.b", "my.phi")}
    ones = {n: torch.ones(2) for n in leaves}
    after, _ = server_step(optimizer, leaves, ones, {})
    moved = {n: -t[0].item() for n, t in after.items()}
    assert moved == {"w": 1.0, "phi": 0.25, "gate.A": 0.0, "gate.b": 2.0, "my.phi": 1.0}


@pytest.mark.parametrize("name", TWINS)
def test_a_leaf_without_gradient_stands_still_and_keeps_its_memory(name):
    optimizer = TWINS[name][0]
    leaves, memory = server_step(optimizer, fresh(), fresh(1), {})
    some = {"w": fresh(2)["w"]}
    after, remembered = server_step(optimizer, leaves, some, memory)
    assert not torch.equal(after["w"], leaves["w"])
    for n in ("w.bias", "w/odd"):
        assert torch.equal(after[n], leaves[n])
        own = [k for k in memory if k.startswith(f"{n}/-/")]
        assert own or name == "sgd"
        assert all(torch.equal(remembered[k], memory[k]) for k in own)
    none, still = server_step(optimizer, leaves, {}, memory)
    assert all(torch.equal(none[n], leaves[n]) for n in leaves) and still.keys() == memory.keys()


@pytest.mark.parametrize("name", TWINS)
def test_a_row_asleep_stands_still_with_its_moments_and_its_step_count(name):
    """A row that slept for a round ends where it would be had that round not happened."""
    optimizer = TWINS[name][0]
    slept, memory = {"w": fresh()["w"]}, {}
    twin, twin_memory = {"w": fresh()["w"]}, {}
    none = torch.zeros(3, dtype=torch.bool)
    for t, asleep in enumerate([none, torch.tensor([False, True, False]), none]):
        gradients = {"w": fresh(t + 1)["w"]}
        slept, memory = server_step(optimizer, slept, gradients, memory, {"w": asleep})
        if not asleep.any():
            twin, twin_memory = server_step(optimizer, twin, gradients, twin_memory, {"w": none})
    assert torch.equal(slept["w"][1], twin["w"][1])
    assert not torch.equal(slept["w"][0], twin["w"][0])
    row = [k for k in memory if k.startswith("w/1/")]
    assert row or name == "sgd"
    assert all(torch.equal(memory[k], twin_memory[k]) for k in row)


def test_a_row_that_never_woke_has_not_moved():
    asleep = {"w": torch.tensor([False, True, True])}
    leaves, memory = {"w": fresh()["w"]}, {}
    for t in range(3):
        leaves, memory = server_step(adam(0.1), leaves, {"w": fresh(t)["w"]}, memory, asleep)
    assert torch.equal(leaves["w"][1:], fresh()["w"][1:])
    assert {k.split("/")[1] for k in memory} == {"0"}


def test_server_sgd_with_rate_one_is_the_weighted_average():
    """Clients of 1 and 3 examples end at w - 4 and w - 8: the mean is w - (4 + 3 * 8) / 4."""
    fed = make_federation((1, 3))
    algorithm = FedAvg()
    state = algorithm.init(fed, 0)
    messages = {
        n: torch.stack([torch.full(t.shape, 4.0), torch.full(t.shape, 8.0)])
        for n, t in state.shared.items()
    }
    after = algorithm.aggregate(fed, state, torch.tensor([0, 1]), messages)
    for name, leaf in state.shared.items():
        torch.testing.assert_close(after.shared[name], leaf - 7)
    swapped = algorithm.aggregate(fed, state, torch.tensor([1, 0]), messages)
    torch.testing.assert_close(swapped.shared["head.bias"], state.shared["head.bias"] - 5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"name": "adamm"}, "unknown optimizer name 'adamm'; allowed: .*did you mean 'adam'"),
        ({"lr": -0.1}, "Optimizer.lr must be >= 0, got -0.1"),
        ({"rates": (("phi", -1.0),)}, "phi: a learning rate must be >= 0, got -1.0"),
        ({"momentum": -0.5}, "Optimizer.momentum must be >= 0, got -0.5"),
        ({"weight_decay": -0.5}, "Optimizer.weight_decay must be >= 0, got -0.5"),
        ({"betas": (0.9, 1.0)}, r"Optimizer.betas must lie in \[0, 1\), got"),
        ({"eps": -1e-8}, "Optimizer.eps must be >= 0, got -1e-08"),
    ],
)
def test_bad_optimisers_are_errors(bad, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(**bad)
