"""What FedMix's posteriors and messages tell of clients (000), on numbers written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.claims import FAILS, HOLDS, UNTESTED
from papers.fedmix import (
    BIASED,
    EPOCH,
    FEDAVG,
    FEDMIX,
    STEP,
    TRAINED,
    claims,
    clusters,
    privacy,
    with_k,
)
from papers.fedmix.experiments import LABEL_SKEW, PERMUTED

COLUMNS = ["method", "seed", "round", "metric", "client", "expert", "item", "value"]
FOUR = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # eight clients, two of each permutation
TRUTH = dict.fromkeys(range(3), FOUR)


def verdicts(tested):
    return [claim.verdict for claim in tested]


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
            for (client, expert), v in np.ndenumerate(q):
                rows.append((method, seed, t, "clusters", -1, expert, str(client), v))
            value = 0.5 + 0.01 * q.shape[1]
            rows.append((method, seed, t, "test_accuracy", 0, -1, "", value))
    return pd.DataFrame(rows, columns=COLUMNS)


def papers_runs(seeds=3):
    """What the paper shows, for every K and seed."""
    shown = {3: MERGED, 4: PERFECT, 5: DOUBLED}
    return {(with_k(k), s): q for k, q in shown.items() for s in range(seeds)}


NOTHING = {key: even(q.shape[1]) for key, q in papers_runs().items()}


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (PERFECT, {"right": 1, "pure": 1, "agreement": 1, "sharpness": 1}),
        (MERGED, {"right": 6 / 8, "pure": 4 / 8}),
        (DOUBLED, {"right": 7 / 8, "pure": 1}),
        (even(4), {"right": 2 / 8, "pure": 0, "sharpness": 0.25}),
    ],
)
def test_measures_by_hand(q, expected):
    found = clusters.measures(q, FOUR)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_who_wins_the_race_between_experts_by_hand():
    """Everybody prefers the first expert at first; then one expert is lost, and two must share."""
    alike = np.tile([0.4, 0.3, 0.2, 0.1], (8, 1))
    lost = assigned([0, 0, 1, 1, 2, 2, 2, 2], 4)
    course = (even(4), alike, lost)
    runs = pd.concat([posteriors({(with_k(4), 0): q}, [t]) for t, q in enumerate(course)])
    assert clusters.least_used(runs)["value"].tolist() == pytest.approx([1.0, 0.4, 0.0])
    race = clusters.parted(runs, {0: FOUR}).pivot_table("value", "round", "method")
    shared, between = race[clusters.SHARED], race[clusters.BETWEEN]
    assert shared.tolist() == pytest.approx([0, 0.15**2 * 2 + 0.05**2 * 2, 0.25**2 * 2])
    # Away from (1, 1, 2, 0) / 4 are the first two permutations by one sum, the others by the other.
    assert between.tolist() == pytest.approx([0, 0, (2 * (9 + 1 + 4) + 2 * (1 + 1 + 4)) / 16 / 4])
    (row,) = clusters.crowded(runs, {0: FOUR}).to_dict("records")
    ahead = row.pop(clusters.AHEAD)
    assert [*row.values()] == [4, 3, 4, 2] and ahead > 1e6  # nothing differs
    (row,) = clusters.crowded(posteriors({(with_k(5), 2): DOUBLED}), TRUTH).to_dict("records")
    assert [*row.values()][:4] == [5, 5, 4, 4]
    assert np.isnan(row[clusters.AHEAD])  # the least used has one client of eight, 5/8 of a fifth


@given(st.permutations(range(5)))
def test_the_names_of_experts_mean_nothing(order):
    shuffled = DOUBLED[:, order]
    assert clusters.measures(shuffled, FOUR) == clusters.measures(DOUBLED, FOUR)
    own = clusters.aligned(shuffled, FOUR)[:, 1:4]
    assert np.array_equal(own, clusters.one_hot(FOUR)[:, 1:])


def test_aligned_experts_look_like_the_truth():
    shuffled = np.array([3, 1, 0, 2, 1, 0, 2, 3])
    seen = clusters.aligned(assigned((shuffled + 1) % 4, 4, sure=0.7), shuffled)
    assert np.array_equal(seen.argmax(1), np.sort(shuffled))
    few = clusters.aligned(MERGED, FOUR)
    assert few.shape == (8, 3) and sorted(few.sum(0)) == [2, 2, 4]


@pytest.mark.parametrize(
    ("q", "merges", "doubles"),
    [
        (MERGED, True, False),
        (DOUBLED, False, True),
        (PERFECT, False, False),
        (assigned([0, 1, 1, 1, 2, 2, 2, 2], 3), False, False),  # one permutation is torn
        (assigned([0, 0, 1, 1, 2, 2, 3, 3], 5), False, False),  # one expert is idle
    ],
)
def test_merging_and_doubling(q, merges, doubles):
    counts = clusters.table_of(q, FOUR)
    assert (clusters.merges_two(counts), clusters.doubles_one(counts)) == (merges, doubles)


def clustered(runs, **more):
    return verdicts(claims.cluster_claims(posteriors(runs, **more), TRUTH))


def test_the_papers_pictures_hold_and_others_do_not():
    stored = posteriors(papers_runs())
    stored.loc[stored["method"] == with_k(3), "value"] *= 0.999  # not all seeds alike
    found = verdicts(claims.cluster_claims(stored, TRUTH))
    assert found[:5] == [HOLDS] * 5
    assert len(clustered(papers_runs(), rounds=(10, 20))) == len(found) + 2
    assert clustered(NOTHING)[:5] == [FAILS] * 5
    assert set(clustered(papers_runs(seeds=2))) == {UNTESTED}
    only = {key: q for key, q in papers_runs().items() if key[0] == with_k(4)}
    assert clustered(only)[:2] == [HOLDS, HOLDS] and set(clustered(only)[2:]) == {UNTESTED}


def test_late_clusters_do_not_count_within_ten_rounds():
    stored = pd.concat([posteriors(NOTHING), posteriors(papers_runs(), rounds=(11,))])
    assert clusters.published_rounds() == 10
    found = verdicts(claims.cluster_claims(stored, TRUTH))
    assert found[:4] == [FAILS, FAILS, HOLDS, HOLDS]


def test_course_and_what_is_seen():
    stored = posteriors(papers_runs(), rounds=(0, 5, 12))
    course = clusters.course(stored, TRUTH)
    assert len(course) == 3 * 3 * 3
    right = clusters.measured(course, "right").groupby("method")["value"].unique()
    assert right[with_k(4)].tolist() == [1.0]
    seen = clusters.seen(stored, 0, FOUR, most=10)
    assert list(seen) == [f"{with_k(k)}, round 5" for k in (3, 4, 5)]
    one = clusters.seen(stored, 0, FOUR, method=with_k(4))
    assert list(one) == ["K = 4, round 12"]
    assert np.array_equal(one["K = 4, round 12"], clusters.one_hot(FOUR))


def test_truth_is_the_permutation_of_the_data():
    task = PERMUTED.settings("quick")["permuted_digits"].task
    permutations = clusters.truth(task, [0, 2])
    assert sorted(permutations) == [0, 2]
    table = task.divide(2).parts["train"]
    for client, mine in enumerate(permutations[2]):
        assert set(table.side["permutation"][client, : table.sizes[client]]) == {mine}


def test_truth_of_stored_runs_needs_no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path))
    setting = PERMUTED.settings("standard")["permuted_cifar10"]
    assert clusters.truth(setting.task, [1])[1].shape == (20,)
    with pytest.raises(ValueError, match="does not permute the labels"):
        clusters.truth(LABEL_SKEW.settings("quick")["digits"].task, [0])


# Messages: what a curious server reads (App. C).

LABELS = np.array([[0.8, 0.2], [0.2, 0.8]])  # two clients, two labels
BIAS, WEIGHTS, Q = "labels_from_bias", "labels_from_weights", "labels_from_q"
PHI, SET = "labels_from_phi", "label_set_from_phi"


def audit(method, message, seed, off, sets=None):
    """Return the rows of one audit; a source is ``off`` by so much at the first label."""
    shift = np.array([1, -1])
    found = {privacy.TRUTH: LABELS, **{m: LABELS + by * shift for m, by in off.items()}}
    found |= {} if sets is None else {SET: sets.astype(float)}
    return [
        (method, seed, 1, metric, client, -1, str(label), value, message)
        for metric, shares in found.items()
        for (client, label), value in np.ndenumerate(shares)
    ]


def heard(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=[*COLUMNS, "message"])


def every(**off):
    """Return three seeds of all methods and messages."""
    told = {FEDAVG: (BIAS, WEIGHTS), BIASED: (WEIGHTS,), FEDMIX: (BIAS, WEIGHTS, Q)}
    return heard(
        *(
            audit(m, message, seed, {s: off.get(message, 0.02) + (s == Q) * 0.2 for s in sources})
            for seed in range(3)
            for message in (STEP, EPOCH, TRAINED)
            for m, sources in told.items()
        )
    )


def with_phi(flip=0, off=0.01):
    """Return three seeds of FedMix's audits with phi; one label set is wrong if ``flip``."""
    told, sources = np.array([[1, 1], [1, 1 - flip]]), {Q: 0.15, PHI: off}
    sources["labels_from_phi_cohort"] = off / 2
    bias = {STEP: 0.0, EPOCH: 0.0, TRAINED: 0.05}
    return heard(
        *(
            audit(FEDMIX, message, seed, {BIAS: bias[message], **sources}, told)
            for seed in range(3)
            for message in (STEP, EPOCH, TRAINED)
        )
    )


def test_a_leak_is_the_total_variation_and_guessing_the_mean_of_all_clients():
    leaked = privacy.leaks(heard(audit(FEDAVG, STEP, 0, {BIAS: 0.05})))
    by_source = leaked.groupby("source")["value"].apply(list)
    assert by_source[privacy.BIAS] == pytest.approx([0.05, 0.05])
    assert by_source[privacy.GUESSING] == pytest.approx([0.3, 0.3])
    assert leaked["client"].tolist() == [0, 1, 0, 1]
    assert set(leaked["method"]) == {FEDAVG} and set(leaked["message"]) == {STEP}


def test_a_frame_without_audits_has_no_leaks():
    assert privacy.leaks(heard()).empty
    assert set(verdicts(claims.privacy_claims(heard()))) == {UNTESTED}


def test_shares_and_one_client():
    rows = heard(
        audit(FEDMIX, EPOCH, 0, {BIAS: 0.05, Q: 0.1}),
        audit(FEDMIX, EPOCH, 1, {BIAS: 0.2}),
        audit(FEDAVG, EPOCH, 0, {BIAS: 0.2}),
    )
    one = privacy.audited(rows, FEDMIX, EPOCH, 0)
    assert privacy.shares(one, privacy.TRUTH).to_numpy().tolist() == LABELS.tolist()
    found = privacy.of_client(one, 1)
    assert list(found) == ["true", privacy.BIAS, privacy.Q]
    assert found[privacy.Q] == pytest.approx([0.3, 0.7])
    assert privacy.of_client(privacy.audited(rows, FEDMIX, STEP, 0), 1) == {}


def test_spread_and_summary_are_in_the_order_of_sources_and_messages():
    leaked = privacy.leaks(every())
    ranges = privacy.spread(leaked)
    mix, sources = ranges[ranges["method"] == FEDMIX], (privacy.BIAS, privacy.WEIGHTS, privacy.Q)
    assert mix["row"].tolist() == [s for s in sources for _ in "123"]
    assert mix["group"].tolist() == [STEP, EPOCH, TRAINED] * 3
    table = privacy.summary(leaked)
    assert list(table.columns) == [STEP, EPOCH, TRAINED]
    assert (BIASED, privacy.BIAS) not in table.index
    assert table.loc[(FEDMIX, privacy.Q), STEP] == pytest.approx(0.22)
    assert table.loc[(FEDAVG, privacy.GUESSING), STEP] == pytest.approx(0.3)


def test_the_claims_follow_the_distances():
    good = verdicts(claims.privacy_claims(every(**{STEP: 0.01, EPOCH: 0.03, TRAINED: 0.1})))
    assert good == [HOLDS] * 12
    bad = claims.privacy_claims(every(**{STEP: 0.4, EPOCH: 0.35, TRAINED: 0.2}))
    assert set(verdicts(bad[:4])) == {FAILS}
    assert bad[-1].text.startswith("q(z|s) reveals less") and bad[-1].verdict == FAILS


def test_claims_of_phi_are_ours_and_follow_the_label_sets():
    ours = [c for c in claims.privacy_claims(with_phi()) if c.source == claims.OURS]
    assert verdicts(ours) == [HOLDS] * 9
    wrong = [c for c in claims.privacy_claims(with_phi(flip=1)) if "name every" in c.text]
    assert verdicts(wrong) == [FAILS] * 3
    assert all(c.measured == "3 (asked: 0)" for c in wrong)
    loose = [c for c in claims.privacy_claims(with_phi(off=0.2)) if "more than q" in c.text]
    assert verdicts(loose) == [FAILS] * 3


def test_runs_that_were_audited_before_phi_make_no_claim_of_it():
    assert not [c for c in claims.privacy_claims(every()) if c.source == claims.OURS]
    truth, told = privacy.label_sets(every(), STEP)
    assert truth.size == told.size == 0


def test_label_sets_and_how_many_are_wrong():
    rows = with_phi(flip=1)
    truth, told = privacy.label_sets(rows, EPOCH, seed=1)
    assert truth.tolist() == LABELS.tolist() and told.tolist() == [[True, True], [True, False]]
    assert privacy.wrong_sets(rows, EPOCH) == (3, 6)


def test_a_bias_that_is_sent_is_noticed():
    rows = heard(*(audit(BIASED, STEP, s, {BIAS: 0.0, WEIGHTS: 0.1}) for s in range(3)))
    claim = next(c for c in claims.privacy_claims(rows) if "sends no bias" in c.text)
    assert claim.verdict == FAILS and "6 (asked: 0)" in claim.measured


def test_exactness_is_to_six_decimals():
    assert claims.exactness_claim(4e-7).verdict == HOLDS
    assert claims.exactness_claim(6e-7).verdict == FAILS
