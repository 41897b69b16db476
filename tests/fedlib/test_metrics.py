"""Gradient divergence against its double sum, and the floor."""

import importlib
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import GOLDEN
from conftest import make_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import play

from benchmarks.robustness import odd
from fedlib import MLP, MajorityClass, MajorityClasses, MatchedHoldout, OptOut, Task, metrics
from fedlib.engine import evaluate, evaluate_global
from fedlib.federation import OPTED_IN
from fedlib.metrics import gradient_divergence, over_clients

# The package exports a function of this module's name.
evaluating = importlib.import_module("fedlib.engine.evaluate")


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


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_divergence_per_expert_equals_every_experts_double_sum(clients, experts, size, seed):
    """Of whole numbers, so that some updates are zero, and some opposite."""
    rng = torch.Generator().manual_seed(seed)
    updates = torch.randint(-2, 3, (clients, experts, size, 1), generator=rng).float()
    weights = torch.rand(clients, experts, generator=rng).double()
    got = gradient_divergence(updates, weights)
    assert got.shape == (experts,) and got.dtype == torch.float64
    for k in range(experts):
        expected = double_sum(updates[:, k].flatten(1).tolist(), weights[:, k].tolist())
        assert float(got[k]) == pytest.approx(expected, abs=1e-9) and float(got[k]) >= 0
        alone = gradient_divergence(updates[:, k], weights[:, k])
        assert alone.ndim == 0 and float(alone) == pytest.approx(float(got[k]), abs=1e-12)


@pytest.mark.parametrize("at_once", [0, 1, 24, 10**6], ids=str)
def test_divergence_does_not_depend_on_how_many_clients_are_converted_at_once(at_once, monkeypatch):
    monkeypatch.setattr(metrics, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    updates, weights = torch.randn(5, 2, 3, 2, generator=rng), torch.rand(5, 2, generator=rng)
    updates[3] = 0
    got = gradient_divergence(updates, weights)
    for k in range(2):
        expected = double_sum(updates[:, k].flatten(1).tolist(), weights[:, k].tolist())
        assert float(got[k]) == pytest.approx(expected, abs=1e-9)
    nobody = gradient_divergence(updates[:0], weights[:0])
    assert nobody.shape == (2,) and not nobody.any()


BY_HAND = GOLDEN["divergence"]


@pytest.mark.parametrize(("updates", "weights", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_divergence_by_hand(updates, weights, expected):
    got = gradient_divergence(torch.tensor(updates), torch.tensor(weights, dtype=torch.float64))
    assert float(got) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("code", "by_hand"), GOLDEN["over_clients"].items())
def test_over_clients_by_hand(code, by_hand):
    """The worst decile is a tenth of the clients, those without examples left out."""
    got = over_clients(*map(np.array, eval(code)))
    mean, weighted, std, worst = eval(by_hand)
    expected = {"mean": mean, "weighted": weighted, "std": std, "worst_decile": worst}
    assert got == pytest.approx(expected, nan_ok=True)


def test_what_all_have_but_what_opted_out_lies_in_one_place():
    fed = make_federation((5, 0, 7))
    fed.train.indices[5] = fed.train.indices[0]  # held twice
    flag = torch.ones_like(fed.train.indices)
    flag[9:] = 0
    fed = replace(fed, train=replace(fed.train, side={OPTED_IN: flag}))
    pooled = fed.pooled()
    assert pooled.num_clients == 1 and pooled.sizes.tolist() == [8]
    home = fed.full_view().train
    held = home.x[home.indices[:9]]
    assert torch.equal(pooled.train.x[pooled.train.indices].unique(dim=0), held.unique(dim=0))
    assert pooled.test.sizes.tolist() == [len(set(fed.test.indices.tolist()))]
    assert fed.num_clients == 3


HELD = MatchedHoldout(pool=600, validation=20, test=30)


def held_by(labels, test):
    """Clients with these training labels, all tested on the same ones."""
    fed = odd.federation(labels, held=len(test))
    fed.train.y[-len(test) :] = torch.tensor(test)  # which all tables share
    return fed


def test_two_clients_by_hand():
    """The first holds 0, 2, 2 and is right on the one 2 of its tests, the second on two 1."""
    fed, floor = held_by([[0, 2, 2], [1, 1, 1, 0]], test=[2, 1, 1, 0]), MajorityClass()
    state, report = play(floor, fed, 1, cohort=2)
    scores = evaluate(fed, floor, state, fed.test)
    assert scores.accuracy.tolist() == [0.25, 0.5]
    mine = -sum(math.log((n + 1) / 6) for n in (2, 0, 0, 1)) / 4
    theirs = -sum(math.log((n + 1) / 7) for n in (0, 3, 3, 1)) / 4
    np.testing.assert_allclose(scores.nll, [mine, theirs], rtol=1e-6)
    assert not report.messages and not int(report.download.sum()) and not int(report.upload.sum())


def test_the_loss_that_early_stopping_watches_skips_padding():
    """Two examples with p(y) of 1/2 and 1/8, and a third that is none: log 4."""
    batch = SimpleNamespace(x=None, y=torch.tensor([0, 1, 0]), weight=torch.tensor([1.0, 1.0, 0.0]))
    logp = torch.tensor([[0.5, 0.5], [0.875, 0.125], [0.25, 0.75]]).log()
    told = SimpleNamespace(
        shared_forward=lambda *_: None, predict=lambda *_: SimpleNamespace(logp=logp)
    )
    assert evaluating.nll(told, None, {}, {}, batch).item() == pytest.approx(math.log(4))


def test_the_gate_of_a_label_that_nobody_holds_is_not_there():
    gates = [(torch.tensor([0, 2]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])),
             (torch.tensor([2]), torch.tensor([[0.0, 1.0]]))]  # fmt: skip
    found = evaluating._by_label(gates, 4)
    np.testing.assert_array_equal(found, [[0.5, 0.5], [np.nan] * 2, [0.5, 0.5], [np.nan] * 2])


def test_a_newcomer_gets_the_commonest_label_of_all_examples():
    """Two of three clients say 0, and so does their mean vote; but most examples have a 1."""
    fed = held_by([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1] * 5], test=[1, 1, 1, 0])
    state = MajorityClass().init(fed, 0)
    held = fed.test.indices
    table = replace(fed.test, x=fed.test.x[held], y=fed.test.y[held], indices=torch.arange(12))
    only = replace(fed, test=table)
    assert evaluate_global(only, MajorityClass(), state) == 0.75


def test_what_opted_out_counts_at_home_only():
    """At home everything is known; the newcomer's vote is of what takes part."""
    whole = Task("digits", MajorityClasses(10, 40, p=0.9), MLP((4,)), HELD)
    fed = replace(whole, opt_out=OptOut(clients=0.7)).build(1).full_view()
    floor, plain = MajorityClass(), whole.build(1)
    states = floor.init(fed, 1), floor.init(plain, 1)
    pairs = zip((fed, plain), states, strict=True)
    same = [evaluate(f, floor, s, f.test).accuracy for f, s in pairs]
    np.testing.assert_array_equal(*same)
    said = floor.combine_clients(fed.net, states[0].server_params, {"none": torch.zeros(1, 1)}, {})
    inside = fed.participating_view().train.counts(10).sum(0)
    assert inside.sum() == 120 and int(said.argmax()) == int(inside.argmax())
    torch.testing.assert_close(said[0].exp(), (inside + 1) / 130)
