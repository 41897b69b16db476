"""What FedMix's posteriors and messages tell of clients (000), on numbers written by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import initials, logged
from test_privacy import MOVED, SHARES, UNIFORM

from fedlib import MLP, ClusteredFedMix, adam
from fedlib.engine import play_round
from fedlib.privacy.labels import from_rows
from papers import fedmix as names
from papers.fedmix import analysis, claims, leaks, with_k
from papers.fedmix.experiments import PERMUTED, PRIVACY
from papers.fedmix.leaks import balanced_accuracy, best_threshold, leak_behind_noise, leak_of_sums
from papers.named import named

FEDAVG, BIASED, FEDMIX = analysis.METHODS
STEP, EPOCH, TRAINED = MESSAGES = analysis.MESSAGES
M, D = analysis.MERGED, analysis.DOUBLED
FOUR = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # eight clients, two of each permutation
TRUTH = dict.fromkeys(range(3), FOUR)


# Clusters: q(z|s) where labels are permuted.


def assigned(experts, k, sure=1.0):
    """q(z|s) ``[clients, K]`` with one client per entry, the rest spread evenly."""
    q = np.full((len(experts), k), (1 - sure) / max(k - 1, 1))
    q[np.arange(len(experts)), experts] = sure
    return q


def even(k):
    return np.full((8, k), 1 / k)


PERFECT = assigned([2, 2, 0, 0, 3, 3, 1, 1], 4)
MERGED = assigned([1, 1, 0, 0, 0, 0, 2, 2], 3)
DOUBLED = assigned([4, 1, 0, 0, 3, 3, 2, 2], 5)


def posteriors(runs, rounds=(10,)):
    """A frame of the metric "clusters": ``runs`` maps (method, seed) to q of all rounds."""
    rows = []
    for (method, seed), q in runs.items():
        for t in rounds:
            cells = np.ndenumerate(q)
            rows += [(method, seed, t, "clusters", -1, k, str(i), v) for (i, k), v in cells]
            value = 0.5 + 0.01 * q.shape[1]
            rows.append((method, seed, t, "test_accuracy", 0, -1, "", value))
    return logged(rows)


# What the paper shows, for every K and seed.
SHOWN = {(with_k(k), s): q for k, q in ((3, MERGED), (4, PERFECT), (5, DOUBLED)) for s in range(3)}
NOTHING = {key: even(q.shape[1]) for key, q in SHOWN.items()}


MEASURED = [
    (PERFECT, {"right": 1, "pure": 1, "agreement": 1, "sharpness": 1}),
    (MERGED, {"right": 6 / 8, "pure": 4 / 8, M: True, D: False}),
    (DOUBLED, {"right": 7 / 8, "pure": 1, M: False, D: True}),
    (even(4), {"right": 2 / 8, "pure": 0, "sharpness": 0.25}),
    (PERFECT, {M: False, D: False}),
    (assigned([0, 1, 1, 1, 2, 2, 2, 2], 3), {M: False, D: False}),  # one permutation is torn
    (assigned([0, 0, 1, 1, 2, 2, 3, 3], 5), {M: False, D: False}),  # one expert is idle
]


@pytest.mark.parametrize(("q", "expected"), MEASURED)
def test_measures_by_hand(q, expected):
    found = analysis.measures(q, FOUR)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_who_wins_the_race_between_experts_by_hand():
    """Everybody prefers the first expert at first; then one expert is lost, and two must share."""
    alike = np.tile([0.4, 0.3, 0.2, 0.1], (8, 1))
    lost = assigned([0, 0, 1, 1, 2, 2, 2, 2], 4)
    courses = enumerate((even(4), alike, lost))
    runs = pd.concat([posteriors({(with_k(4), 0): q}, [t]) for t, q in courses])
    course = analysis.course(runs, TRUTH)
    assert course[analysis.LEAST].tolist() == pytest.approx([1.0, 0.4, 0.0])
    race = analysis.parted(course).pivot_table("value", "round", "method")
    shared, between = race[names.SHARED], race[names.BETWEEN]
    assert shared.tolist() == pytest.approx([0, 0.15**2 * 2 + 0.05**2 * 2, 0.25**2 * 2])
    # Away from (1, 1, 2, 0) / 4 are the first two permutations by one sum, the others by the other.
    assert between.tolist() == pytest.approx([0, 0, (2 * (9 + 1 + 4) + 2 * (1 + 1 + 4)) / 16 / 4])
    (row,) = analysis.crowded(course).to_dict("records")
    ahead = row.pop(analysis.AHEAD)
    assert [*row.values()] == [4, 3, 4, 2] and ahead > 1e6  # nothing differs
    doubled = analysis.course(posteriors({(with_k(5), 2): DOUBLED}), TRUTH)
    (row,) = analysis.crowded(doubled).to_dict("records")
    assert [*row.values()][:4] == [5, 5, 4, 4]
    assert np.isnan(row[analysis.AHEAD])  # the least used has one client of eight, 5/8 of a fifth


@given(st.permutations(range(5)))
def test_the_names_of_experts_mean_nothing(order):
    shuffled = DOUBLED[:, order]
    assert analysis.measures(shuffled, FOUR) == analysis.measures(DOUBLED, FOUR)
    own = analysis.aligned(shuffled, FOUR)[:, 1:4]
    assert np.array_equal(own, analysis.one_hot(FOUR)[:, 1:])
    assert sorted(analysis.aligned(MERGED, FOUR).sum(0)) == [2, 2, 4]  # fewer than permutations


def clustered(runs, **more):
    return initials(claims.cluster_claims(posteriors(runs, **more), TRUTH))


def test_the_papers_pictures_hold_and_others_do_not():
    # What is so or not in each run is undecided by three runs, and decided by seven.
    assert clustered(SHOWN) == "huu"
    assert clustered(SHOWN, rounds=(10, 20)) == "huuh"
    seven = {(method, s): q for (method, _), q in SHOWN.items() for s in range(7)}
    many = claims.cluster_claims(posteriors(seven), dict.fromkeys(range(7), FOUR))
    assert initials(many) == "hhh"
    assert clustered(NOTHING) == "cuu"
    assert clustered({key: q for key, q in SHOWN.items() if key[1] < 2}) == "nnn"
    only = {key: q for key, q in SHOWN.items() if key[0] == with_k(4)}
    assert clustered(only) == "hnn"
    # Clusters of round 11 do not count within the ten that are published.
    late = pd.concat([posteriors(NOTHING), posteriors(SHOWN, rounds=(11,))])
    assert analysis.published_rounds() == 10
    assert initials(claims.cluster_claims(late, TRUTH)) == "cuuh"


def test_course_and_what_is_seen():
    stored = posteriors(SHOWN, rounds=(0, 5, 12))
    course = analysis.course(stored, TRUTH)
    assert len(course) == 3 * 3 * 3
    right = analysis.measure(course, "right").groupby("method")["value"].unique()
    assert right[with_k(4)].tolist() == [1.0]
    fields = {"Digits (quick)": course.assign(value=0.0), "C (standard)": course.assign(value=1.0)}
    told = analysis.reached(fields, with_k(4), 10)
    assert told == "K = 4, round 5: 1.00 [95% CI: 1.00, 1.00], 3 seeds"
    alone = {"C (standard)": course.query("seed == 0").assign(value=1.0)}
    assert analysis.reached(alone, with_k(4), 10) == "K = 4, round 5: 1.00, 1 seed"
    seen = analysis.seen(stored, 0, FOUR, most=10)
    assert list(seen) == [f"{with_k(k)}, round 5" for k in (3, 4, 5)]
    one = analysis.seen(stored, 0, FOUR, method=with_k(4))
    assert list(one) == ["K = 4, round 12"]
    assert np.array_equal(one["K = 4, round 12"], analysis.one_hot(FOUR))


def test_truth_is_the_permutation_of_the_data_and_that_of_stored_runs_needs_none(places):
    stored = PERMUTED.settings("standard")["permuted_cifar10"].task
    assert analysis.truth(stored, [1])[1].shape == (20,)
    task = PERMUTED.settings("quick")["permuted_digits"].task
    permutations = analysis.truth(task, [0, 2])
    assert sorted(permutations) == [0, 2]
    table = task.divide(2).parts["train"]
    for client, mine in enumerate(permutations[2]):
        assert set(table.side["permutation"][table.owners == client]) == {mine}


# Messages: what a curious server reads (App. C).

LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels
BIAS, WEIGHTS, Q, PHI, COHORT = analysis.SOURCES
AUDITED = {run.where["message"]: run for run in PRIVACY.runs("quick", "digits", [FEDMIX])}


def audit(method, message, seed, off, sets=None):
    """The rows of one audit; a source is ``off`` by so much at the first label."""
    shift = np.array([1, -1])
    found = {analysis.TRUTH: LABELS, **{m: LABELS + by * shift for m, by in off.items()}}
    found |= {} if sets is None else {analysis.LABEL_SET: sets.astype(float)}
    cells = ((m, *cell) for m, shares in found.items() for cell in np.ndenumerate(shares))
    return [(method, seed, 1, m, c, -1, str(label), v, message) for m, (c, label), v in cells]


def heard(*audits):
    return logged(*audits, places=["message"])


def every(*off):
    """Three seeds of all methods, of messages that are ``off``; q(z|s) is so by 0.2 more."""
    told = {FEDAVG: (BIAS, WEIGHTS), BIASED: (WEIGHTS,), FEDMIX: (BIAS, WEIGHTS, Q)}
    each = product(range(3), zip(MESSAGES, off or (0.02,) * 3, strict=True), told.items())
    audits = []
    for seed, (message, by), (m, sources) in each:
        audits.append(audit(m, message, seed, {s: by + (s == Q) * 0.2 for s in sources}))
    return heard(*audits)


def with_phi(flip=0, off=0.01):
    """Three seeds of FedMix's audits with phi; one label set is wrong if ``flip``."""
    told, sources = np.array([[1, 1], [1, 1 - flip]]), {Q: 0.15, PHI: off, COHORT: off / 2}
    bias = {STEP: 0.0, EPOCH: 0.0, TRAINED: 0.05}
    each = [(seed, message) for seed in range(3) for message in MESSAGES]
    return heard(*(audit(FEDMIX, m, s, {BIAS: bias[m], **sources}, told) for s, m in each))


def of_phi(frame):
    return [c for c in claims.privacy_claims(frame) if "phi" in c.text or "cohort" in c.text]


def test_a_leak_is_the_total_variation_and_guessing_the_mean_of_all_clients():
    leaked = analysis.leaks(heard(audit(FEDAVG, STEP, 0, {BIAS: 0.05})))
    by_source = leaked.groupby("source")["value"].apply(list)
    assert by_source["output bias"] == pytest.approx([0.05, 0.05])
    assert by_source[analysis.GUESSING] == pytest.approx([0.3, 0.3])
    assert leaked["client"].tolist() == [0, 1, 0, 1]
    assert set(leaked["method"]) == {FEDAVG} and set(leaked["message"]) == {STEP}
    assert analysis.leaks(heard()).empty
    assert set(initials(claims.privacy_claims(heard()))) == {"n"}


def test_shares_and_one_client():
    asked = ((FEDMIX, 0, {BIAS: 0.05, Q: 0.1}), (FEDMIX, 1, {BIAS: 0.2}), (FEDAVG, 0, {BIAS: 0.2}))
    rows = heard(*(audit(method, EPOCH, seed, off) for method, seed, off in asked))
    one = analysis.audited(rows, FEDMIX, EPOCH, 0)
    assert analysis.shares(one, analysis.TRUTH).to_numpy().tolist() == LABELS.tolist()
    found = analysis.of_client(one, 1)
    assert list(found) == ["true", "output bias", "q(z|s)"]
    assert found["q(z|s)"] == pytest.approx([0.3, 0.7])
    assert analysis.of_client(analysis.audited(rows, FEDMIX, STEP, 0), 1) == {}


def test_what_is_overheard_leaks_less_in_larger_sums_and_more_noise():
    run = PRIVACY.experiments("quick", "digits", AUDITED[EPOCH], seeds=1)[0]
    sums, noise = analysis.hidden({EPOCH: [run]})
    assert sums["clients"].tolist() == [1, 2, 3, 5, 10, 20] and set(noise["method"]) == {EPOCH}
    for table in (sums, noise):
        assert table["set"].iloc[0] == 1.0 > table["set"].iloc[-1]
        assert table["own"].iloc[0] < table["own"].iloc[-1]


def test_the_claims_follow_the_distances():
    assert initials(claims.privacy_claims(every(0.01, 0.03, 0.1))) == "h" * 8
    bad = claims.privacy_claims(every(0.4, 0.35, 0.2))
    assert initials(bad[:4]) == "cccc"
    assert bad[-1].text.startswith("q(z|s) reveals less") and initials(bad[-1:]) == "c"


def test_claims_of_phi_are_ours_and_follow_the_label_sets():
    assert initials(of_phi(with_phi())) == "h" * 4
    assert initials(of_phi(with_phi(off=0.2))) == "cchh"  # no better than q(z|s)
    truth, told = analysis.label_sets(with_phi(flip=1), EPOCH, seed=1)
    assert truth.tolist() == LABELS.tolist() and told.tolist() == [[True, True], [True, False]]
    assert claims.wrong_sets(with_phi(flip=1)).to_dict() == dict.fromkeys(MESSAGES, 3)
    audited_before = every()
    assert of_phi(audited_before) == [] and not analysis.label_sets(audited_before, STEP)[0].size


@pytest.mark.slow
def test_four_permutations_are_found():
    """Sec. 4.3 on digits: one expert per permutation, all clients on the right one.

    Not from every start: with other seeds two permutations share an expert for good.
    """
    task = named("000/permuted_cifar10", "quick")
    fed = replace(task, model=MLP((64,))).build(3)
    algorithm = ClusteredFedMix(experts=4, epochs=3, batch_size=20, server=adam(1e-2))
    truth = fed.train.side["permutation"][fed.train.offsets[0]].numpy()  # of the first example
    assert len(set(truth.tolist())) == 4
    state = algorithm.init(fed, 3)
    for t in range(14):
        state, _ = play_round(algorithm, fed, state, round=t, seed=3, cohort=fed.num_clients)
    assert analysis.measures(state.client_params["pi"].double().numpy(), truth)["right"] == 1


# What sums of clients and noise hide of the labels in phi.


def test_a_sum_tells_the_cohorts_labels_only():
    told = leak_of_sums(MOVED, UNIFORM, SHARES, np.array([0.5, 0.5]), (1, 2), 0)
    assert told["clients"].tolist() == [1, 2]
    assert told["set"].tolist() == [1.0, 0.5]  # alone all is told; together every label is there
    assert told["own"][0] == pytest.approx(told["cohort"][0]) and told["own"][1] > told["cohort"][1]
    # Of one and three examples: the sum is of (x + 3 y) / 4, and so are the cohort's shares.
    last = leak_of_sums(MOVED, UNIFORM, SHARES, np.array([0.25, 0.75]), (2,), 0).iloc[0]
    told, truth = from_rows((MOVED[0] + 3 * MOVED[1]) / 4, UNIFORM), [0.275, 0.125, 0.6]
    assert last["cohort"] == pytest.approx(np.abs(told - truth).sum() / 2)
    assert last["own"] == pytest.approx(np.abs(told - SHARES).sum() / 4)


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
    added = leaks.noisy(d, 0.5, rng) - d
    np.testing.assert_allclose(added.std((1, 2)) / size, 0.5, rtol=0.05)
    np.testing.assert_array_equal(leaks.noisy(d, 0.0, rng), d)
    truth = np.random.default_rng(1).dirichlet([1, 1, 0.01, 0.01], size=12).round(2)
    truth /= truth.sum(-1, keepdims=True)
    moved = truth[..., None] * np.array([1.0, -1.0])
    told = leak_behind_noise(moved, np.full((4, 2), 0.5), truth, (0.0, 1.0, 30.0), 0)
    assert told["set"][0] == 1.0 and told["own"][0] == pytest.approx(0)
    assert told["set"].is_monotonic_decreasing and told["set"][2] < 0.65
    assert told["own"].is_monotonic_increasing
    # A client's rows are compared with each other: how far it has moved is nothing to the test.
    scaled = moved * 10.0 ** np.arange(-3, 9)[:, None, None]
    again = leak_behind_noise(scaled, np.full((4, 2), 0.5), truth, (1.0,), 0)
    once = leak_behind_noise(moved, np.full((4, 2), 0.5), truth, (1.0,), 0)
    np.testing.assert_allclose(again["set"], once["set"])
