"""What rows of phi tell of labels, and what hides it: by hand, on rounds, and in the limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.algorithms import FedMix
from fedlib.engine import State, play_round
from fedlib.optim import Optimizer, adam, sgd
from fedlib.privacy import NoisyFedMix, audit, from_rows, leak_behind_noise, leak_of_sums
from fedlib.privacy.hiding import balanced_accuracy, best_threshold, noisy, summed
from fedlib.privacy.labels import from_rows_together, set_from_rows

# Two clients, three labels, two experts, uniform q: row c moves by rate p(c|s) gap(c) / 4.
SHARES = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8]])
GAP = np.array([1.0, 1.0, 2.0])  # how much better expert 1 fits a label
MOVED = 0.1 / 4 * (SHARES * GAP)[..., None] * np.array([-1.0, 1.0])
UNIFORM = np.full((3, 2), 0.5)


def one_message(algorithm, fed, phi=None):
    state = algorithm.init(fed, 0)
    if phi is not None:
        state.shared["phi"] = phi
    before = State(dict(state.shared), dict(state.local), dict(state.optimizer), dict(state.memory))
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=fed.clients)
    return before, after, report


def held(fed, report):
    return fed.shares("label").numpy()[report.rows] > 0


def test_two_clients_and_three_labels_by_hand():
    assert set_from_rows(MOVED).tolist() == [[True, True, False], [True, False, True]]
    # Client 0's labels have equal gaps: exact. Client 1: .2 and .8 x 2, of 1.8.
    expected = [[0.5, 0.5, 0], [0.2 / 1.8, 0, 1.6 / 1.8]]
    np.testing.assert_allclose(from_rows(MOVED, UNIFORM), expected, atol=1e-12)


def test_a_cohort_tells_the_factors():
    """A third client, of label 1 only: gaps follow from shares that sum to 1."""
    shares = np.vstack([SHARES, [0, 1, 0]])
    moved = (shares * GAP)[..., None] * np.array([-1.0, 1.0])
    np.testing.assert_allclose(from_rows_together(moved, UNIFORM), shares, atol=1e-12)
    with pytest.raises(ValueError, match="as many clients as classes"):
        from_rows_together(MOVED, UNIFORM)
    still = from_rows_together(0 * moved, UNIFORM)
    np.testing.assert_allclose(still, np.full((3, 3), 1 / 3))


def test_q_weighs_what_moved():
    """An expert that hardly takes a label hardly moves: the update is divided by q(z|y)."""
    q = np.array([[0.5, 0.5], [0.9, 0.1]])
    moved = np.array([0.4, 0.6])[:, None] * q * np.array([1.0, -1.0])
    np.testing.assert_allclose(from_rows(moved, q), [0.4, 0.6])
    with pytest.raises(ValueError, match="must match"):
        from_rows(moved, q[:1])


def test_one_step_moves_a_row_by_its_share_as_worked_out():
    """The formula of the module, with a(c, k) computed in a plain loop."""
    fed, rate = make_federation((11, 4, 9)), 0.3
    phi = torch.tensor(np.random.default_rng(0).normal(size=(3, 2)), dtype=torch.float32)
    algorithm = FedMix(experts=2, batch_size=None, client=sgd(rate))
    before, _, report = one_message(algorithm, fed, phi)
    x, y, index = fed.train.x, fed.train.y, fed.train.index
    q = phi.softmax(-1)
    for place, client in enumerate(report.rows):
        rows = index[client][index[client] >= 0]
        image = (x[rows].reshape(len(rows), -1) / 128 - 1).reshape(len(rows), *x.shape[1:])
        code = algorithm.encode(fed.net, before.shared, image.permute(0, 3, 1, 2))
        for c in range(3):
            mine = y[rows] == c
            if mine.any():
                a = code["logp"][mine, :, c].mean(0)  # a fresh gate adds the same to all
                row = -rate * mine.float().mean() * q[c] * (a - q[c] @ a)
                torch.testing.assert_close(
                    report.messages["phi"][place, c], row, atol=1e-6, rtol=1e-4
                )


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=5),
    scale=st.sampled_from([0.0, 1.0, 3.0]),
    batch=st.sampled_from([None, 2]),
    client=st.sampled_from([sgd(0.05), sgd(0.05, momentum=0.9), adam(1e-3)]),
    seed=st.integers(0, 10**6),
)
def test_a_row_moves_if_and_only_if_its_label_is_held(sizes, scale, batch, client, seed):
    fed = make_federation(tuple(sizes), seed=seed)
    algorithm = FedMix(experts=3, phi_scale=scale, batch_size=batch, client=client)
    state, _, report = one_message(algorithm, fed)
    found = audit(fed, algorithm, state, report)["label_set_from_phi"]
    np.testing.assert_array_equal(found == 1, held(fed, report))


def test_a_saturated_q_is_silent_and_never_wrong():
    """One-hot in float: the gradient is exactly zero. A row that does move is still a label's."""
    fed = make_federation((11, 4, 9))
    phi = torch.tensor([[200.0, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
    algorithm = FedMix(experts=3, client=sgd(0.1))
    state, _, report = one_message(algorithm, fed, phi)
    found = audit(fed, algorithm, state, report)
    truth = held(fed, report)
    assert truth[:, 0].any() and not found["label_set_from_phi"][:, 0].any()
    np.testing.assert_array_equal(found["label_set_from_phi"][:, 1:] == 1, truth[:, 1:])
    assert np.isfinite(found["labels_from_phi"]).all()
    _, _, alone = one_message(FedMix(experts=1), fed)
    assert not set_from_rows(alone.messages["phi"].numpy()).any()


def test_what_is_not_moved_or_always_moved_is_left_out():
    fed = make_federation((11, 4, 9))
    for client, names in (
        (Optimizer(rates=(("phi", 0.0),)), set()),
        (Optimizer(weight_decay=0.1), {"labels_from_phi", "labels_from_phi_cohort"}),
    ):
        algorithm = FedMix(experts=2, phi_scale=1.0, client=client)
        state, _, report = one_message(algorithm, fed)
        found = audit(fed, algorithm, state, report)
        assert {n for n in found if "phi" in n} == names


def test_a_sum_tells_the_cohorts_labels_only():
    total = summed(MOVED, np.array([3, 1]))
    np.testing.assert_allclose(total, 0.75 * MOVED[0] + 0.25 * MOVED[1])
    assert set_from_rows(total).tolist() == [True, True, True]
    told = leak_of_sums(MOVED, UNIFORM, SHARES, np.array([0.5, 0.5]), (1, 2), draws=8)
    assert told["clients"].tolist() == [1, 2]
    assert told["set"].tolist() == [1.0, 0.5]  # alone all is told; together every label is there
    assert told["own"][0] == pytest.approx(told["cohort"][0]) and told["own"][1] > told["cohort"][1]


def test_tests_of_sets_by_hand():
    flags = np.array([True, True, False, False])
    assert balanced_accuracy(np.array([True, False, False, False]), flags) == 0.75
    assert best_threshold(np.array([0.9, 0.3, 0.5, 0.1]), flags) == 0.75
    assert best_threshold(np.array([4.0, 3.0, 2.0, 1.0]), flags) == 1.0
    assert best_threshold(np.ones(4), flags) == 0.5  # equal scores cannot be split
    assert best_threshold(np.array([1.0, 2.0, 3.0, 4.0]), flags) == 0.5
    assert np.isnan(best_threshold(np.ones(2), np.ones(2)))
    assert np.isnan(balanced_accuracy(flags, np.ones(4)))


def test_noise_has_the_size_that_it_says_and_hides_the_set():
    rng = np.random.default_rng(0)
    d = rng.normal(size=(4, 30, 200)) * np.array([1, 10, 0.1, 3.0])[:, None, None]
    size = np.sqrt((d**2).mean((1, 2)))
    added = noisy(d, 0.5, rng) - d
    np.testing.assert_allclose(added.std((1, 2)) / size, 0.5, rtol=0.05)
    np.testing.assert_array_equal(noisy(d, 0.0, rng), d)
    truth = np.random.default_rng(1).dirichlet([1, 1, 0.01, 0.01], size=12).round(2)
    truth /= truth.sum(-1, keepdims=True)
    moved = truth[..., None] * np.array([1.0, -1.0])
    told = leak_behind_noise(moved, np.full((4, 2), 0.5), truth, (0.0, 1.0, 30.0), draws=10)
    assert told["set"][0] == 1.0 and told["own"][0] == pytest.approx(0)
    assert told["set"].is_monotonic_decreasing and told["set"][2] < 0.65
    assert told["own"].is_monotonic_increasing


def test_a_noisy_message_is_fedmix_message_but_for_phi():
    fed = make_federation((11, 4, 9))
    _, after, plain = one_message(FedMix(experts=2), fed)
    _, same, quiet = one_message(NoisyFedMix(experts=2, noise=0.0), fed)
    for name, leaf in after.shared.items():
        torch.testing.assert_close(same.shared[name], leaf, rtol=0, atol=0)
    _, other, loud = one_message(NoisyFedMix(experts=2, noise=2.0), fed)
    for name, message in plain.messages.items():
        torch.testing.assert_close(quiet.messages[name], message, rtol=0, atol=0)
        assert (name == "phi") != torch.equal(loud.messages[name], message)
    assert (loud.messages["phi"] != 0).all()
    assert same.optimizer.keys() == other.optimizer.keys() == after.optimizer.keys()
    with pytest.raises(ValueError, match="noise must be >= 0"):
        NoisyFedMix(noise=-1.0)


def test_noise_depends_on_the_client_and_the_round_and_not_on_the_cohort():
    fed, algorithm = make_federation((11, 4, 9)), NoisyFedMix(experts=2)
    state = algorithm.init(fed, 0)

    def drawn(rows, round):
        where = torch.tensor(rows)
        prepared = algorithm.before_round(fed, state, where, round=round, seed=0)
        return algorithm.client_context(fed, prepared, where)["drawn"]

    both = drawn([0, 2], 0)
    torch.testing.assert_close(drawn([2], 0)[0], both[1], rtol=0, atol=0)
    assert not torch.equal(both[0], both[1]) and not torch.equal(drawn([2], 1)[0], both[1])
