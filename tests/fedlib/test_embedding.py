"""All data in one place, and features of one client's examples in the plane."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation

from companion import plotting
from fedlib import metrics
from fedlib.algorithms import FedAvg
from fedlib.engine import play_round
from fedlib.federation import OPTED_IN
from fedlib.optim import sgd


def test_what_all_have_lies_in_one_place():
    fed = make_federation((5, 0, 7))
    fed.train.index[2, 0] = fed.train.index[0, 0]  # held twice
    pooled = fed.pooled()
    assert pooled.clients == 1 and pooled.sizes.tolist() == [11]
    held = {int(i) for row, n in ((0, 5), (2, 7)) for i in fed.train.index[row, :n]}
    assert set(pooled.train.index[0].tolist()) == held
    assert pooled.test.sizes.tolist() == [len(set(fed.test.index.flatten().tolist()))]
    assert fed.clients == 3


def test_what_opted_out_is_not_trained_on_in_one_place():
    fed = make_federation((4, 6))
    flag = torch.ones_like(fed.train.index)
    flag[0, :3] = 0
    inside = set(fed.train.index[0, 3:4].tolist()) | set(fed.train.index[1].tolist())
    fed = replace(fed, train=replace(fed.train, side={OPTED_IN: flag}))
    assert set(fed.pooled().train.index[0].tolist()) == inside


def test_training_in_one_place_is_plain_gradient_descent():
    fed = make_federation((6, 9)).pooled()
    algorithm = FedAvg(batch_size=None, client=sgd(0.1))
    state = algorithm.init(fed, 0)
    before = {n: t.clone().requires_grad_() for n, t in state.shared.items()}
    x, y = fed.train.inputs(fed.train.index[0]), fed.train.y[fed.train.index[0]]
    torch.nn.functional.cross_entropy(fed.net(before, x), y).backward()
    state, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=1)
    for name, leaf in before.items():
        expected = leaf.detach() - 0.1 * leaf.grad
        torch.testing.assert_close(state.shared[name], expected, rtol=1e-4, atol=1e-6)


def test_neighbours_of_a_label_far_from_others_name_it():
    labels = np.repeat([0, 1], 8)
    features = np.random.default_rng(0).normal(size=(16, 3)) + 50 * labels[:, None]
    assert metrics.purity(features, labels) == 1.0
    # An example among five of the other label is the only one of its own: named wrongly.
    lonely = np.array([1] + [0] * 7)
    assert metrics.purity(features[:8], lonely) == pytest.approx(7 / 8)


def test_features_of_two_bases_lie_in_a_plane_each():
    fed = make_federation((30, 30))
    fed.test = fed.train
    bases = {"one": fed.net.init(0), "other": fed.net.init(1)}
    points = metrics.embedded(fed, bases, client=1)
    assert points.groupby("base").size().to_dict() == {"one": 30, "other": 30}
    assert points["label"].tolist()[:30] == fed.train.y[fed.train.index[1]].tolist()
    features = fed.net.features(bases["one"], fed.train.inputs(fed.train.index[1])).numpy()
    near = metrics.purity(features, fed.train.y[fed.train.index[1]].numpy())
    assert points.query("base == 'one'")["purity"].unique().tolist() == [near]
    figure, drawn = plotting.embedding(points, ("a", "b", "c"))
    assert len(figure.axes) == 2 and len(drawn) == 60
    assert {t.get_text() for t in figure.legends[0].get_texts()} <= {"a", "b", "c"}


def test_a_client_with_few_tests_has_no_picture():
    fed = make_federation((30, 30))
    with pytest.raises(ValueError, match="client 0 has 6 test examples"):
        metrics.embedded(fed, {"one": fed.net.init(0)}, client=0)


def test_the_neighbours_of_the_client_with_most_classes():
    fed = make_federation((12, 12, 12, 12))
    held = ([0] * 12, [0] * 6 + [1] * 6, [0] * 5 + [1] * 7, [2] * 12)
    for row, labels in enumerate(held):
        fed.train.y[fed.train.index[row]] = torch.tensor(labels)
    # Five examples of a class are too few to count: so client 1 and not 2.
    assert metrics.neighbours(fed) == (1, 2, 3)
    with pytest.raises(ValueError, match="needs three clients or more, got 2"):
        metrics.neighbours(make_federation((6, 6)))
