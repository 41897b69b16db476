"""What a server can infer of labels (000, App. C; A13), golden test G8; and what hides phi."""

import itertools

import numpy as np
import pytest
import torch
from cases import GOLDEN
from conftest import make_federation
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playing import SKEWED
from scipy.special import softmax
from small import play

from fedlib import Optimizer, Step, adam, algorithms, sgd
from fedlib.algorithms import ClusteredFedMix, FedAvg, FedMix, PrunedFedMix
from fedlib.engine import State, play_round
from fedlib.privacy import audit, labels, total_variation
from fedlib.privacy.labels import from_marginal, from_rows, from_rows_together, from_update
from fedrun import Experiment

SIZES = (11, 4, 9)
BIAS, WEIGHTS, Q = "labels_from_bias", "labels_from_weights", "labels_from_q"
ALL = {BIAS, WEIGHTS, Q, "label_set_from_phi", "labels_from_phi", "labels_from_phi_cohort"}


def one_message(algorithm, fed, uniform=False, phi=None):
    """State before, state after and report of a round of everybody; ``uniform`` silences heads."""
    state = algorithm.init(fed, 0)
    for name, leaf in (*state.server_params.items(), *state.client_params.items()):
        if uniform and "head" in name:
            leaf.zero_()
    if phi is not None:
        state.server_params["phi"] = phi
    before = State.from_flat(state.flat())
    return before, *play_round(algorithm, fed, state, round=0, seed=0, cohort=fed.num_clients)


def audited(algorithm, fed=None, **more):
    """What a server finds, the truth, and the report."""
    fed = fed or make_federation(SIZES)
    before, _, report = one_message(algorithm, fed, **more)
    truth = fed.shares("label").double().numpy()[report.clients]
    return audit(fed, algorithm, before, report), truth, report


ONE_STEP = {"batch_size": None, "epochs": 1}
ORDINARY = [
    FedAvg(**ONE_STEP, client=sgd(0.05)),
    FedAvg(**ONE_STEP, client=Optimizer(lr=0.3, rates=(("head.bias", 0.7),))),
    FedMix(**ONE_STEP, experts=3, client=sgd(0.05)),
    FedMix(**ONE_STEP, experts=3, client=Optimizer(lr=0.3, rates=(("experts.", 0.7),))),
    PrunedFedMix(**ONE_STEP, experts=3, client=sgd(0.5)),
    ClusteredFedMix(**ONE_STEP, experts=3, client=sgd(0.05)),
]


def test_what_hides_messages_is_audited_for_what_it_sends():
    """No q(z|s) is seen behind noise; the rate is that of ``of``."""
    of = FedMix(**ONE_STEP, experts=2, client=sgd(0.3))
    found, _, report = audited(algorithms.Private(of=of, noise=0.0, clip=1e-3), uniform=True)
    assert {*found} == {"label_share", *ALL} - {Q}
    bias = report.messages["experts.head.bias"].double().numpy().sum(1)
    np.testing.assert_allclose(found[BIAS], from_update(bias))


@pytest.mark.parametrize("more", [{"clip": 1e-3}, {"momentum": 0.9, "nesterov": True}])
def test_a_step_that_is_no_plain_one_is_read_as_any_update(more):
    found, _, report = audited(FedAvg(**ONE_STEP, client=Optimizer(lr=0.1, **more)))
    np.testing.assert_allclose(found[BIAS], from_update(report.messages["head.bias"].numpy()))


def test_the_rate_of_a_step_is_that_of_its_round():
    fed, client = make_federation(SIZES), Optimizer(lr=0.1, schedule=Step(every=1, factor=0.1))
    algorithm = FedAvg(**ONE_STEP, client=client)
    before = algorithm.init(fed, 0)
    for name in ("head.weight", "head.bias"):
        before.server_params[name].zero_()
    _, report = play_round(algorithm, fed, before, round=2, seed=0, cohort=3)
    found = audit(fed, algorithm, before, report, 2)
    np.testing.assert_allclose(found[BIAS], found["label_share"], atol=1e-4)


@pytest.mark.parametrize("algorithm", ORDINARY, ids=repr)
def test_g8_one_step_from_uniform_outputs_gives_labels_away(algorithm):
    """Exactly: p(y|s) = 1 / C - difference / rate, summed over the experts of a mixture."""
    found, truth, _ = audited(algorithm, uniform=True)
    np.testing.assert_allclose(found["label_share"], truth)
    np.testing.assert_allclose(found[BIAS], truth, atol=1e-6)
    assert np.abs(truth - 1 / 3).max() > 0.05  # there was something to be found


SHIFTED = [FedAvg(**ONE_STEP, client=o) for o in (adam(0.1), Optimizer(weight_decay=0.1))]
SHIFTED += [FedAvg(batch_size=4), FedMix(batch_size=4, experts=2)]


@pytest.mark.parametrize("algorithm", SHIFTED, ids=repr)
def test_several_steps_or_another_optimiser_are_read_by_shifting(algorithm):
    found, _, report = audited(algorithm)
    one = "head.bias" in report.messages
    moved = report.messages["head.bias" if one else "experts.head.bias"].double()
    expected = from_update((moved if one else moved.sum(1)).numpy())
    np.testing.assert_allclose(found[BIAS], expected)
    np.testing.assert_allclose(found[BIAS].sum(1), 1)


def test_an_update_by_hand():
    """before - after of (.3, -.1, .1) rose by (-.3, .1, -.1): shifted (0, .4, .2)."""
    moved = np.array([[0.3, -0.1, 0.1], [0.0, 0.0, 0.0], [2.0, 2.0, 1.0]])
    expected = [[0, 2 / 3, 1 / 3], [1 / 3] * 3, [0, 0, 1]]
    np.testing.assert_allclose(from_update(moved), expected, atol=1e-12)


def shares(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


@pytest.mark.parametrize("scale", [1e-4, 0.01, 1.0, 4.0])
def test_labels_that_are_nearly_equal_to_q_are_still_told_apart(scale):
    """As many experts as labels determine p, however close q(z|y) is to uniform."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q_y, p = softmax(scale * rng.standard_normal((10, 10)), -1), shares(rng, 10)
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
    st.integers(1, 5), st.integers(1, 5), st.sampled_from([1e-8, 1e-4, 0.01, 1.0, 30.0]),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_being_flat_costs_no_residual(classes, experts, scale, twins, seed):
    rng = np.random.default_rng(seed)
    q_y, q_s = softmax(scale * rng.standard_normal((classes, experts)), -1), shares(rng, experts)
    if twins:
        q_y[-1] = q_y[0]
    for asked in (q_s, shares(rng, classes) @ q_y):
        p = from_marginal(asked, q_y)
        assert (p >= 0).all() and p.sum() == pytest.approx(1, abs=1e-8)
        assert np.linalg.norm(p @ q_y - asked) <= smallest_residual(asked, q_y) + 1e-8


@settings(max_examples=60)
@given(classes=st.integers(2, 9), experts=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_no_p_that_explains_q_is_flatter(classes, experts, seed):
    """From the nearest point of a convex set every other of its points lies ahead."""
    rng = np.random.default_rng(seed)
    q_y, flat = shares(rng, classes, experts), np.full(classes, 1 / classes)
    other = rng.dirichlet(np.full(classes, 0.3))
    p = from_marginal(other @ q_y, q_y)
    assert (p - flat) @ (other - p) >= -1e-7
    assert total_variation(p, flat) <= np.sqrt(classes) * np.linalg.norm(other - flat)


def test_differences_below_the_resolution_are_rounding():
    q_y = np.array([[0.5 + 1e-8, 0.5 - 1e-8], [0.5, 0.5]])
    np.testing.assert_allclose(from_marginal(q_y[0], q_y), [1, 0], atol=1e-4)
    np.testing.assert_allclose(from_marginal(q_y[0], q_y, resolution=1e-6), [0.5, 0.5])
    # Classes 0 and 1 share expert 0: q(z|s) cannot tell them apart, and halves are the flattest.
    q_y = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    p = from_marginal(np.array([0.6, 0.4]), q_y)
    np.testing.assert_allclose(p, [0.3, 0.3, 0.4], atol=1e-4)


def test_total_variation_by_hand():
    p, q = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1]])
    for pair, expected in (((p, q), [0.3, 1.0]), ((q, p), [0.3, 1.0]), ((q, q), [0.0, 0.0])):
        np.testing.assert_allclose(total_variation(*pair), expected)


@pytest.mark.parametrize("code", GOLDEN["readings"])
def test_what_does_not_apply_is_left_out(code):
    fed = make_federation(SIZES, side="angle")
    fed.train.side["angle"][:3] = torch.arange(3)
    found, _, _ = audited(eval(code, {**vars(algorithms), **globals()}), fed)
    assert set(found) == {"label_share", *eval(GOLDEN["readings"][code])}
    for name, shares_found in found.items():
        assert shares_found.shape == (3, fed.classes)
        if name != "label_set_from_phi":
            np.testing.assert_allclose(shares_found.sum(1), 1, atol=1e-6)


def test_an_audited_run_logs_every_client_of_the_cohort_at_rounds_that_are_scored():
    asked = {"evaluate_every": 2, "rounds": 5, "cohort": 3, "algorithm": FedMix(experts=2)}
    runs = (play(Experiment(SKEWED, **asked, audit_labels=a)) for a in (True, False))
    frame, silent = (result.metrics.to_pandas() for result in runs)
    found = frame[frame["metric"].isin(["label_share", "labels_from_bias", "labels_from_q"])]
    assert set(found["round"]) == {2, 4, 5}  # round 0 has no message
    for (_, metric), rows in found.groupby(["round", "metric"]):
        assert len(rows) == 3 * 10 and rows["client"].nunique() == 3, metric
        np.testing.assert_allclose(rows.groupby("client")["value"].sum(), 1, atol=1e-6)
    shares = SKEWED.build(0).shares("label")
    for client, rows in found.query("metric == 'label_share' and round == 5").groupby("client"):
        np.testing.assert_allclose(rows.sort_values("item")["value"], shares[client], atol=1e-6)
    more = {"labels_from_weights", "label_set_from_phi", "labels_from_phi"}  # 3 clients, 10 labels
    assert {*frame["metric"]} - {*silent["metric"]} == more | {*found["metric"]}


# Two clients, three labels, two experts, uniform q: row c moves by rate p(c|s) gap(c) / 4.
SHARES = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8]])
GAP = np.array([1.0, 1.0, 2.0])  # how much better expert 1 fits a label
MOVED = 0.1 / 4 * (SHARES * GAP)[..., None] * np.array([-1.0, 1.0])
UNIFORM = np.full((3, 2), 0.5)


def test_two_clients_and_three_labels_by_hand():
    assert labels.set_from_rows(MOVED).tolist() == [[True, True, False], [True, False, True]]
    # Client 0's labels have equal gaps: exact. Client 1: .2 and .8 x 2, of 1.8.
    expected = [[0.5, 0.5, 0], [0.2 / 1.8, 0, 1.6 / 1.8]]
    np.testing.assert_allclose(from_rows(MOVED, UNIFORM), expected, atol=1e-12)


def test_a_cohort_tells_the_factors():
    """A third client, of label 1 only: gaps follow from shares that sum to 1."""
    shares = np.vstack([SHARES, [0, 1, 0]])
    moved = (shares * GAP)[..., None] * np.array([-1.0, 1.0])
    np.testing.assert_allclose(from_rows_together(moved, UNIFORM), shares, atol=1e-12)
    still = from_rows_together(0 * moved, UNIFORM)
    np.testing.assert_allclose(still, np.full((3, 3), 1 / 3))


def test_q_weighs_what_moved():
    """An expert that hardly takes a label hardly moves: the update is divided by q(z|y)."""
    q = np.array([[0.5, 0.5], [0.9, 0.1]])
    moved = np.array([0.4, 0.6])[:, None] * q * np.array([1.0, -1.0])
    np.testing.assert_allclose(from_rows(moved, q), [0.4, 0.6])


def test_one_step_moves_a_row_by_its_share_as_worked_out():
    """The formula of the module, with a(c, k) computed in a plain loop."""
    fed, rate = make_federation(SIZES), 0.3
    phi = torch.tensor(np.random.default_rng(0).normal(size=(3, 2)), dtype=torch.float32)
    algorithm = FedMix(experts=2, batch_size=None, client=sgd(rate))
    before, _, report = one_message(algorithm, fed, phi=phi)
    y, q = fed.train.y, phi.softmax(-1)
    for place, client in enumerate(report.clients):
        rows = fed.train.client(client)
        code = algorithm.shared_forward(fed.net, before.server_params, fed.train.inputs(rows))
        for c in range(3):
            mine = y[rows] == c
            if mine.any():
                a = code["logp"][mine, :, c].mean(0)  # a fresh gate adds the same to all
                row = -rate * mine.float().mean() * q[c] * (a - q[c] @ a)
                sent = report.messages["phi"][place, c]
                torch.testing.assert_close(sent, row, atol=1e-6, rtol=1e-4)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=5),
    scale=st.sampled_from([0.0, 1.0, 3.0]),
    batch=st.sampled_from([None, 2]),
    client=st.sampled_from([sgd(0.05), sgd(0.05, momentum=0.9), adam(1e-3)]),
    seed=st.integers(0, 10**6),
)
@example(sizes=[1, 1, 5], scale=3.0, batch=None, client=sgd(0.05), seed=130)
def test_only_held_labels_move_a_row_and_all_do_where_q_is_open(sizes, scale, batch, client, seed):
    """Where q(z|c) is nearly one-hot, as in the example, a step is less than phi's rounding."""
    phi = scale * torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    algorithm = FedMix(experts=3, batch_size=batch, client=client)
    found, truth, _ = audited(algorithm, make_federation(tuple(sizes), seed=seed), phi=phi)
    moved, held = found["label_set_from_phi"] == 1, truth > 0
    assert not moved[~held].any()
    is_open = (phi.softmax(-1).amax(-1) < 0.95).numpy()
    np.testing.assert_array_equal(moved[:, is_open], held[:, is_open])


def test_a_saturated_q_is_silent_and_never_wrong():
    """One-hot in float: the gradient is exactly zero. A row that does move is still a label's."""
    phi = torch.tensor([[200.0, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
    found, truth, _ = audited(FedMix(experts=3, client=sgd(0.1)), phi=phi)
    truth = truth > 0
    assert truth[:, 0].any() and not found["label_set_from_phi"][:, 0].any()
    np.testing.assert_array_equal(found["label_set_from_phi"][:, 1:] == 1, truth[:, 1:])
    assert np.isfinite(found["labels_from_phi"]).all()
    _, _, alone = audited(FedMix(experts=1))
    assert not labels.set_from_rows(alone.messages["phi"].numpy()).any()
