"""The server: its optimiser against plain torch.optim, and what an algorithm remembers there."""

import re
import warnings
from dataclasses import fields

import pytest
import torch
from playing import equal

from benchmarks.robustness.tiny import TASK
from fedlib.algorithms import IFCA, PrunedFedMix
from fedlib.engine import State, play_round
from fedlib.optim import Optimizer, adam, server_step, sgd

DECAY = {"weight_decay": 0.1}
TWINS = {
    "sgd": ("sgd", torch.optim.SGD, {"lr": 0.5}),
    "momentum": ("sgd", torch.optim.SGD, {"lr": 0.3, "momentum": 0.9, **DECAY}),
    "adam": ("adam", torch.optim.Adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, **DECAY}),
    "adamw": ("adamw", torch.optim.AdamW, {"lr": 0.02, **DECAY}),
}
# Options by name, and a class without a name of ours.
MORE = {
    "nesterov": ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.5, "centered": True}),
    "amsgrad": ("adam", torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
}
FIELDS = {f.name for f in fields(Optimizer)}
MADE = [Optimizer(name, **how) for name, _, how in TWINS.values()]
every = pytest.mark.parametrize("optimizer", MADE, ids=TWINS)


def fresh(seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "w.bias": (3,), "w/odd": ()}
    return {n: torch.randn(s, generator=rng) for n, s in shapes.items()}


def stored(memory):
    """The memory after a checkpoint."""
    return State.from_flat(State({}, {}, memory).flat()).server_optimizer


@pytest.mark.parametrize("rows", [False, True], ids=["whole", "by row"])
@pytest.mark.parametrize("name", {**TWINS, **MORE})
def test_many_rounds_equal_torch_optim(name, rows):
    """Through stored memory, to the bit; every row of a leaf on its own up to rounding."""
    kind, plain, how = {**TWINS, **MORE}[name]
    own = {n: v for n, v in how.items() if n in FIELDS}
    options = tuple((n, v) for n, v in how.items() if n not in FIELDS)
    optimizer, leaves, memory = Optimizer(kind, **own, options=options), fresh(), {}
    twins = {n: t.clone().requires_grad_(True) for n, t in leaves.items()}
    engine = plain(list(twins.values()), **how)
    awake = {"w": torch.zeros(3, dtype=torch.bool)} if rows else {}
    for t in range(12):
        gradients = {n: g * (1 + t % 3) for n, g in fresh(seed=t + 1).items()}
        leaves, memory = server_step(optimizer, leaves, gradients, stored(memory), awake)
        for n, twin in twins.items():
            twin.grad = gradients[n].clone()
        engine.step()
        for n, twin in twins.items():
            near = {"rtol": 1e-6, "atol": 1e-7} if rows else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(leaves[n], twin.detach(), **near)
            assert not leaves[n].requires_grad


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_steps_have_the_bits_of_torch_optim(name, fused):
    """Step by step in place, with leaves that begin later or stand still, and with two rates."""
    kind, plain, how = TWINS[name]
    optimizer = Optimizer(kind, rates=(("w.bias", 0.7),), **how)
    mine, theirs = ({n: t.requires_grad_(True) for n, t in fresh().items()} for _ in "12")
    engine = optimizer.build(mine, fused=fused)
    groups = [{"params": [theirs["w"], theirs["w/odd"]]}, {"params": [theirs["w.bias"]], "lr": 0.7}]
    twin = plain(groups, fused=fused or None, **how)
    for t in range(5):
        for n, gradient in fresh(seed=t + 1).items():
            moves = n != "w.bias" or t not in (0, 3)
            for leaves in (mine, theirs):
                leaves[n].grad = gradient.clone() if moves else None
        engine.step()
        twin.step()
        assert equal(mine, theirs)
        state = [(f"{n}/{k}", v) for n, w in theirs.items() for k, v in twin.state[w].items()]
        assert equal(engine.memory, {k: v for k, v in state if v is not None})


def test_per_leaf_rates():
    optimizer = Optimizer("sgd", lr=1.0, rates=(("phi", 0.25), ("gate.A", 0.0), ("gate.", 2.0)))
    leaves = {n: torch.zeros(2) for n in ("w", "phi", "gate.A", "gate.b", "my.phi")}
    ones = {n: torch.ones(2) for n in leaves}
    after, _ = server_step(optimizer, leaves, ones, {})
    moved = {n: -t[0].item() for n, t in after.items()}
    assert moved == {"w": 1.0, "phi": 0.25, "gate.A": 0.0, "gate.b": 2.0, "my.phi": 1.0}


@every
def test_a_leaf_without_gradient_stands_still_and_keeps_its_memory(optimizer):
    leaves, memory = server_step(optimizer, fresh(), fresh(1), {})
    some = {"w": fresh(2)["w"]}
    after, remembered = server_step(optimizer, leaves, some, memory)
    assert not torch.equal(after["w"], leaves["w"])
    for n in ("w.bias", "w/odd"):
        own = [k for k in memory if k.startswith(f"{n}/-/")]
        assert torch.equal(after[n], leaves[n]) and (own or optimizer.is_plain)
        assert all(torch.equal(remembered[k], memory[k]) for k in own)
    none, still = server_step(optimizer, leaves, {}, memory)
    assert all(torch.equal(none[n], leaves[n]) for n in leaves) and still.keys() == memory.keys()


@every
def test_a_row_asleep_stands_still_with_its_moments_and_its_step_count(optimizer):
    """A row that slept for a round ends where it would be had that round not happened."""
    slept, memory, twin, twin_memory = {"w": fresh()["w"]}, {}, {"w": fresh()["w"]}, {}
    none = torch.zeros(3, dtype=torch.bool)
    for t, frozen_rows in enumerate([none, torch.tensor([False, True, False]), none]):
        gradients = {"w": fresh(t + 1)["w"]}
        slept, memory = server_step(optimizer, slept, gradients, memory, {"w": frozen_rows})
        if not frozen_rows.any():
            twin, twin_memory = server_step(optimizer, twin, gradients, twin_memory, {"w": none})
    assert torch.equal(slept["w"][1], twin["w"][1])
    assert not torch.equal(slept["w"][0], twin["w"][0])
    row = [k for k in memory if k.startswith("w/1/")]
    assert row or optimizer.is_plain
    assert all(torch.equal(memory[k], twin_memory[k]) for k in row)


@pytest.mark.parametrize("algorithm", [IFCA(server=adam(0.01)), PrunedFedMix(experts=2)], ids=repr)
def test_checkpoints_with_both_memories_in_one_group_are_read(algorithm):
    fed = TASK.build(0)
    state, _ = play_round(algorithm, fed, algorithm.init(fed, 0), round=0, seed=0, cohort=1.0)
    assert state.server_memory and state.server_optimizer
    old = {re.sub("^(optimizer|memory):", "server:", n): t for n, t in state.flat().items()}
    assert not any(n.startswith(("optimizer:", "memory:")) for n in old)
    again = State.from_flat(old)
    for part in ("server_params", "client_params", "server_optimizer", "server_memory"):
        assert equal(getattr(again, part), getattr(state, part))


def test_a_name_may_be_written_in_small_letters():
    assert Optimizer("rmsprop") == Optimizer("RMSprop")


def test_an_absurd_learning_rate_warns():
    for made in (lambda: sgd(1e6), lambda: adam(rates=(("head.", 2e3),))):
        with pytest.warns(UserWarning, match="a learning rate is greater than 1000"):
            made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sgd(1e3)
