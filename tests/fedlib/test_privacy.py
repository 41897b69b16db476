"""What a server can infer of labels (000, App. C; A13): golden test G8, and its logs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from conftest import make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.algorithms import ClusteredFedMix, FedAvg, FedMix, Local, Personal, PrunedFedMix
from fedlib.engine import play_round
from fedlib.models import MLP
from fedlib.optim import Optimizer, adam, sgd
from fedlib.partition import Dirichlet, Mirrored
from fedlib.privacy import audit, from_marginal, from_step, from_update, total_variation
from fedlib.runs import Experiment, run
from fedlib.tasks import Task

SIZES = (11, 4, 9)
PHI = {"label_set_from_phi", "labels_from_phi", "labels_from_phi_cohort"}


def one_message(algorithm, fed, uniform=False):
    """The state before and the report of a round of everybody; ``uniform`` silences the heads."""
    state = algorithm.init(fed, 0)
    for name, leaf in (*state.shared.items(), *state.local.items()):
        if uniform and "head" in name:
            leaf.zero_()
    before = type(state)(dict(state.shared), dict(state.local), state.optimizer, state.memory)
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=fed.clients)
    return before, report


def truth_of(fed, report):
    return fed.shares("label").double().numpy()[report.rows]


def audited(algorithm, fed, **more):
    state, report = one_message(algorithm, fed, **more)
    return audit(fed, algorithm, state, report), report


ONE_STEP = {"batch_size": None, "epochs": 1}


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(**ONE_STEP, client=sgd(0.05)),
        FedAvg(**ONE_STEP, client=Optimizer(lr=0.3, rates=(("head.bias", 0.7),))),
        FedMix(**ONE_STEP, experts=3, client=sgd(0.05)),
        FedMix(**ONE_STEP, experts=3, client=Optimizer(lr=0.3, rates=(("experts.", 0.7),))),
        PrunedFedMix(**ONE_STEP, experts=3, client=sgd(0.5)),
        ClusteredFedMix(**ONE_STEP, experts=3, client=sgd(0.05)),
    ],
    ids=["FedAvg", "FedAvg, a rate", "FedMix", "FedMix, a rate", "PrunedFedMix", "Clustered"],
)
def test_g8_one_step_from_uniform_outputs_gives_labels_away(algorithm):
    """Exactly: p(y|s) = 1 / C - difference / rate, summed over the experts of a mixture."""
    fed = make_federation(SIZES)
    found, report = audited(algorithm, fed, uniform=True)
    truth = truth_of(fed, report)
    np.testing.assert_allclose(found["label_share"], truth)
    np.testing.assert_allclose(found["labels_from_bias"], truth, atol=1e-6)
    assert np.abs(truth - 1 / 3).max() > 0.05  # there was something to be found


def test_g8_the_sign_matters():
    """As printed, eq. 15 would give 2 / C - p(y|s)."""
    fed = make_federation(SIZES)
    _, report = one_message(FedAvg(**ONE_STEP, client=sgd(0.05)), fed, uniform=True)
    moved = report.messages["head.bias"].double().numpy()
    truth = truth_of(fed, report)
    np.testing.assert_allclose(from_step(moved, 0.05), truth, atol=1e-6)
    np.testing.assert_allclose(from_step(-moved, 0.05), 2 / 3 - truth, atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_step_has_a_rate(rate):
    with pytest.raises(ValueError, match=f"rate must be > 0, got {rate}"):
        from_step(np.zeros(3), rate)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(batch_size=4),
        FedAvg(batch_size=None, epochs=2),
        FedAvg(**ONE_STEP, client=adam(0.1)),
        FedAvg(**ONE_STEP, client=Optimizer(weight_decay=0.1)),
        FedAvg(**ONE_STEP, client=Optimizer(rates=(("head.bias", 0.0),))),
        FedMix(batch_size=4, experts=2),
    ],
    ids=["batches", "epochs", "Adam", "decay", "no rate", "FedMix"],
)
def test_several_steps_or_another_optimiser_are_read_by_shifting(algorithm):
    fed = make_federation(SIZES)
    found, report = audited(algorithm, fed)
    leaf = "head.bias" if "head.bias" in report.messages else "experts.head.bias"
    moved = report.messages[leaf].double().numpy()
    moved = moved.sum(1) if leaf.startswith("experts.") else moved
    np.testing.assert_allclose(found["labels_from_bias"], from_update(moved))
    np.testing.assert_allclose(found["labels_from_bias"].sum(1), 1)


def test_an_update_by_hand():
    """before - after of (.3, -.1, .1) rose by (-.3, .1, -.1): shifted (0, .4, .2)."""
    moved = np.array([[0.3, -0.1, 0.1], [0.0, 0.0, 0.0], [2.0, 2.0, 1.0]])
    expected = [[0, 2 / 3, 1 / 3], [1 / 3] * 3, [0, 0, 1]]
    np.testing.assert_allclose(from_update(moved), expected, atol=1e-12)


def shares(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


@settings(max_examples=60)
@given(classes=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_as_many_experts_as_classes_give_labels_away_exactly(classes, seed):
    rng = np.random.default_rng(seed)
    p, mix = shares(rng, classes), shares(rng, classes, classes)
    q_y = 0.6 * np.eye(classes)[rng.permutation(classes)] + 0.4 * mix  # far from singular
    np.testing.assert_allclose(from_marginal(p @ q_y, q_y), p, atol=1e-4)


@settings(max_examples=60)
@given(classes=st.integers(1, 8), experts=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_what_is_found_is_a_distribution_that_explains_q(classes, experts, seed):
    """Even of a q(z|s) that no p(y|s) has; one that some p(y|s) has is explained."""
    rng = np.random.default_rng(seed)
    q_y = shares(rng, classes, experts)
    for q_s, possible in ((shares(rng, experts), False), (shares(rng, classes) @ q_y, True)):
        p = from_marginal(q_s, q_y)
        assert p.shape == (classes,) and (p >= 0).all()
        assert p.sum() == pytest.approx(1, abs=1e-9)
        if possible:
            np.testing.assert_allclose(p @ q_y, q_s, atol=1e-3)


def softmax(phi):
    odds = np.exp(phi - phi.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


@pytest.mark.parametrize("scale", [1e-4, 0.01, 1.0, 4.0])
def test_labels_that_are_nearly_equal_to_q_are_still_told_apart(scale):
    """As many experts as labels determine p, however close q(z|y) is to uniform."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q_y, p = softmax(scale * rng.standard_normal((10, 10))), shares(rng, 10)
        np.testing.assert_allclose(from_marginal(p @ q_y, q_y), p, atol=1e-6)


def smallest_residual(q_s, q_y):
    """Return what plain constrained least squares leaves: every set of labels is tried."""
    best, classes = np.inf, len(q_y)
    for size in range(1, classes + 1):
        for some in itertools.combinations(range(classes), size):
            left = (q_y[list(some)] - q_s).T
            # p = first + rest: the first one's share is what the others leave of 1.
            step = np.vstack([-np.ones(size - 1), np.eye(size - 1)])
            y = np.linalg.lstsq(left @ step, -left[:, 0], rcond=None)[0]
            p = np.eye(size)[0] + step @ y
            if (p >= -1e-12).all():
                best = min(best, np.linalg.norm(left @ p))
    return best


@settings(max_examples=80)
@given(
    classes=st.integers(1, 5),
    experts=st.integers(1, 5),
    scale=st.sampled_from([1e-8, 1e-4, 0.01, 1.0, 30.0]),
    twins=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_prior_costs_no_residual(classes, experts, scale, twins, seed):
    rng = np.random.default_rng(seed)
    q_y, q_s = softmax(scale * rng.standard_normal((classes, experts))), shares(rng, experts)
    if twins:
        q_y[-1] = q_y[0]
    for asked in (q_s, shares(rng, classes) @ q_y):
        p = from_marginal(asked, q_y, prior=shares(rng, classes))
        assert (p >= 0).all() and p.sum() == pytest.approx(1, abs=1e-8)
        assert np.linalg.norm(p @ q_y - asked) <= smallest_residual(asked, q_y) + 1e-8


@settings(max_examples=60)
@given(classes=st.integers(2, 9), experts=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_no_p_that_explains_q_is_nearer_to_the_prior(classes, experts, seed):
    """From the nearest point of a convex set every other of its points lies ahead."""
    rng = np.random.default_rng(seed)
    q_y, prior = shares(rng, classes, experts), shares(rng, classes)
    others = rng.dirichlet(np.full(classes, 0.3), size=30)
    p = from_marginal(others[0] @ q_y, q_y, prior=prior)
    assert (p - prior) @ (others[0] - p) >= -1e-7
    assert total_variation(p, prior) <= np.sqrt(classes) * np.linalg.norm(others[0] - prior)


def test_differences_below_the_resolution_are_rounding():
    q_y = np.array([[0.5 + 1e-8, 0.5 - 1e-8], [0.5, 0.5]])
    np.testing.assert_allclose(from_marginal(q_y[0], q_y), [1, 0], atol=1e-4)
    np.testing.assert_allclose(from_marginal(q_y[0], q_y, resolution=1e-6), [0.5, 0.5])
    with pytest.raises(ValueError, match="resolution must be > 0, got 0"):
        from_marginal(q_y[0], q_y, resolution=0)


def test_of_all_that_explain_q_the_one_nearest_to_the_prior():
    """Classes 0 and 1 share expert 0: q(z|s) cannot tell them apart, and the prior does."""
    q_y = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    q_s = np.array([0.6, 0.4])
    np.testing.assert_allclose(from_marginal(q_s, q_y), [0.3, 0.3, 0.4], atol=1e-4)
    tilted = from_marginal(q_s, q_y, prior=np.array([0.5, 0.3, 0.2]))
    np.testing.assert_allclose(tilted, [0.4, 0.2, 0.4], atol=1e-4)
    # No negative shares: without them the nearest would be (.65, -.05).
    edge = from_marginal(q_s, q_y, prior=np.array([0.9, 0.2, -0.1]))
    assert (edge >= 0).all() and edge[0] == pytest.approx(0.6, abs=1e-3)


@pytest.mark.parametrize(("q_s", "q_y"), [((3,), (4, 2)), ((2, 1), (4, 2)), ((4,), (4,))])
def test_shapes_that_do_not_match_are_errors(q_s, q_y):
    with pytest.raises(ValueError, match=r"q_s must be \[K\] and q_y \[classes, K\]"):
        from_marginal(np.ones(q_s), np.ones(q_y))


def test_total_variation_by_hand():
    p, q = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1]])
    np.testing.assert_allclose(total_variation(p, q), [0.3, 1.0])
    np.testing.assert_allclose(total_variation(q, q), 0)
    for a, b in itertools.product((p, q), repeat=2):
        np.testing.assert_allclose(total_variation(a, b), total_variation(b, a))


@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        (FedAvg(), {"labels_from_bias", "labels_from_weights"}),
        (Personal(), {"labels_from_weights"}),
        (Personal(local=("head.",)), set()),
        (Local(), set()),
        (FedMix(experts=2), {"labels_from_bias", "labels_from_weights", "labels_from_q", *PHI}),
        (FedMix(experts=2, personal_bias=True), {"labels_from_weights", "labels_from_q", *PHI}),
        (FedMix(experts=2, objective="likelihood"), {"labels_from_bias", "labels_from_weights"}),
        (PrunedFedMix(), {"labels_from_bias", "labels_from_weights", "labels_from_q", *PHI}),
        (ClusteredFedMix(), {"labels_from_bias", "labels_from_weights"}),
    ],
    ids=lambda item: type(item).__name__ if not isinstance(item, set) else "",
)
def test_what_does_not_apply_is_left_out(algorithm, names):
    fed = make_federation(SIZES)
    found, _ = audited(algorithm, fed)
    assert set(found) == {"label_share", *names}
    for name, shares_found in found.items():
        assert shares_found.shape == (3, fed.classes)
        if name != "label_set_from_phi":
            np.testing.assert_allclose(shares_found.sum(1), 1, atol=1e-6)


def test_q_of_other_side_information_says_nothing_of_labels():
    """Three angles and three classes: that the numbers agree does not make them labels."""
    fed = make_federation(SIZES, side="angle")
    fed.train.side["angle"][0, :3] = torch.arange(3)
    found, _ = audited(FedMix(experts=2, condition="angle"), fed)
    assert not {"labels_from_q", *PHI} & set(found) and "labels_from_bias" in found


def test_one_hot_q_gives_labels_away():
    fed = make_federation(SIZES)
    algorithm = FedMix(experts=3, client=Optimizer(rates=(("phi", 0.0),)))
    state = algorithm.init(fed, 0)
    state.shared["phi"] = 50 * torch.eye(3)
    before = type(state)(dict(state.shared), {}, {})
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    found = audit(fed, algorithm, before, report)
    np.testing.assert_allclose(found["labels_from_q"], truth_of(fed, report), atol=1e-4)


def test_an_audited_run_logs_every_client_of_the_cohort_at_rounds_that_are_scored():
    task = Task(
        "digits",
        Dirichlet(clients=6, alpha=0.5, size=20),
        MLP(hidden=(8,)),
        Mirrored(pool=100, validation=10, test=10),
    )
    plain = Experiment(task, FedMix(experts=2), rounds=5, cohort=3, evaluate_every=2)
    experiment = Experiment(
        task, FedMix(experts=2), rounds=5, cohort=3, evaluate_every=2, audit=True
    )
    frame = run(experiment, device="cpu", progress=False).metrics.to_pandas()
    found = frame[frame["metric"].isin(["label_share", "labels_from_bias", "labels_from_q"])]
    assert set(found["round"]) == {2, 4, 5}  # round 0 has no message
    for (_, metric), rows in found.groupby(["round", "metric"]):
        assert len(rows) == 3 * 10 and rows["client"].nunique() == 3, metric
        np.testing.assert_allclose(rows.groupby("client")["value"].sum(), 1, atol=1e-6)
    fed = task.build(0)
    for client, rows in frame[frame["metric"] == "label_share"].groupby("client"):
        last = rows[rows["round"] == rows["round"].max()].sort_values("item")
        np.testing.assert_allclose(last["value"], fed.shares("label")[client], atol=1e-6)
    silent = run(plain, device="cpu", progress=False).metrics.to_pandas()
    assert "label_share" not in set(silent["metric"])
    more = {"labels_from_weights", "label_set_from_phi", "labels_from_phi"}  # 3 clients, 10 labels
    assert set(frame["metric"]) - set(found["metric"]) - more == set(silent["metric"])
