"""The floor: always the commonest label, by hand, with ties, for newcomers, beside counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation
from playing import play

from fedlib.algorithms import CommonestLabel, FedAvg
from fedlib.engine import evaluate, evaluate_global
from fedlib.metrics import majority_floor
from fedlib.models import MLP
from fedlib.partition import Dirichlet, Majority, Mirrored, OptOut
from fedlib.runs import Experiment, run
from fedlib.tasks import Task

HELD = Mirrored(pool=600, validation=20, test=30)


def held_by(labels, test):
    """Clients with these training labels, all tested on the same ones."""
    fed = make_federation([len(own) for own in labels])
    y = fed.train.y.clone()
    for row, own in enumerate(labels):
        y[fed.train.index[row, : len(own)]] = torch.tensor(own)
    places = torch.arange(len(y) - len(test), len(y))
    y[places] = torch.tensor(test)
    index = places.expand(len(labels), -1)
    sizes = np.full(len(labels), len(test))
    parts = {n: replace(getattr(fed, n), y=y, index=index, sizes=sizes) for n in ("test",)}
    return replace(fed, train=replace(fed.train, y=y), **parts)


def test_two_clients_by_hand():
    """The first holds 0, 2, 2 and is right on the one 2 of its tests, the second on two 1."""
    fed = held_by([[0, 2, 2], [1, 1, 1, 0]], test=[2, 1, 1, 0])
    floor = CommonestLabel()
    state, report = play(floor, fed, 1, cohort=2)
    scores = evaluate(fed, floor, state, fed.test)
    assert scores.accuracy.tolist() == [0.25, 0.5]
    mine = -sum(math.log((n + 1) / 6) for n in (2, 0, 0, 1)) / 4
    theirs = -sum(math.log((n + 1) / 7) for n in (0, 3, 3, 1)) / 4
    np.testing.assert_allclose(scores.nll, [mine, theirs], rtol=1e-6)
    assert not report.messages and not int(report.down.sum()) and not int(report.up.sum())


def test_a_newcomer_gets_the_commonest_label_of_all_examples():
    """Two of three clients say 0, and so does their mean vote; but most examples have a 1."""
    fed = held_by([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1] * 5], test=[1, 1, 1, 0])
    state = CommonestLabel().init(fed, 0)
    table = replace(fed.test, x=fed.test.x[fed.test.index[0]], y=fed.test.y[fed.test.index[0]])
    only = replace(fed, test=replace(table, index=torch.arange(4).expand(3, -1)))
    assert evaluate_global(only, CommonestLabel(), state) == 0.75


@pytest.mark.parametrize("partition", [Majority(12, 30, p=0.7), Dirichlet(9, alpha=0.2, size=25)])
@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_what_counting_says(partition, seed):
    task = Task("digits", partition, MLP((4,)), HELD)
    fed, counts = task.build(seed), task.counts(seed)
    scores = evaluate(fed, CommonestLabel(), CommonestLabel().init(fed, seed), fed.test)
    expected = majority_floor(counts["train"], counts["test"])
    np.testing.assert_allclose(scores.accuracy, expected, rtol=1e-12)
    by_hand = [
        (fed.test.y[fed.test.index[i, :30]] == int(np.argmax(counts["train"][i]))).double().mean()
        for i in range(fed.clients)
    ]
    np.testing.assert_allclose(expected, by_hand, rtol=1e-12)


def test_what_opted_out_counts_at_home_only():
    """At home everything is known; the newcomer's vote is of what takes part."""
    whole = Task("digits", Majority(10, 40, p=0.9), MLP((4,)), HELD)
    fed = replace(whole, opt_out=OptOut(clients=0.7)).build(1).at_home()
    floor, plain = CommonestLabel(), whole.build(1)
    states = floor.init(fed, 1), floor.init(plain, 1)
    same = [
        evaluate(f, floor, s, f.test).accuracy for f, s in zip((fed, plain), states, strict=True)
    ]
    np.testing.assert_array_equal(*same)
    said = floor.ensemble(fed.net, states[0].shared, {"none": torch.zeros(1, 1)}, {})
    inside = fed.taking_part().train.counts(10).sum(0)
    assert inside.sum() == 120 and int(said.argmax()) == int(inside.argmax())
    torch.testing.assert_close(said[0].exp(), (inside + 1) / 130)


def test_it_is_an_experiment_of_one_round_that_ends_with_the_floor():
    task = Task("digits", Majority(6, 30, p=1.0), MLP((4,)), HELD)
    result = run(Experiment(task, CommonestLabel(), 1, cohort=1.0), progress=False)
    rows = result.metrics.to_pandas()
    last = rows[rows["metric"].eq("test_accuracy") & rows["round"].eq(1)]["value"]
    counts = task.counts(0)
    np.testing.assert_allclose(last, majority_floor(counts["train"], counts["test"]))
    sent = rows[rows["metric"].isin(["bytes_up", "bytes_down"])]["value"]
    assert not sent.any() and np.isfinite(rows["value"].to_numpy(float)).all()


def test_it_follows_no_stage():
    fed = make_federation()
    with pytest.raises(ValueError, match="give it no stage as `after`"):
        CommonestLabel().init(fed, 0, FedAvg().init(fed, 0))


def test_a_floor_of_counts_by_hand():
    train = np.array([[3, 3, 0], [0, 1, 4], [0, 0, 0]])
    test = np.array([[1, 2, 1], [0, 0, 0], [1, 0, 3]])
    floor = majority_floor(train, test)
    assert floor[0] == floor[2] == 0.25 and np.isnan(floor[1])
